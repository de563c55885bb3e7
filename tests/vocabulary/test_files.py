"""Reading files that somebody else names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.lab_plan import read_plan
from autotune.cli.publishing_files import read_table
from autotune.cli.routing_import import show_vllm_config
from autotune.cli.routing_sources import Sources, read_source, wanted
from autotune.client.cache import LastKnownGood
from autotune.client.lint import lint_file
from autotune.client.snapshot import DIGEST_VARIABLE, PATH_VARIABLE, take_over
from autotune.client.sources import from_path, read_file
from autotune.db.engine import open_database
from autotune.lab import tables as lab_tables
from autotune.lab.results import Folder
from autotune.measure.evidence_file import read_evidence
from autotune.server.tokens import read_tokens
from autotune.vocabulary.errors import AutotuneError, UsageError
from autotune.vocabulary.files import MAX_BYTES, read_bytes, read_text
from autotune.vocabulary.model_config import read_model_config
from autotune.vocabulary.settings import Settings

NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"


def within_seconds(work: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What `work` returns or raises, as a value; it failing to end is a failure of the test."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, "it waits for the file"
    return outcome[0]


def pipe(folder: Path, name: str) -> Path:
    path = folder / name
    os.mkfifo(path)
    return path


def endless(folder: Path, name: str) -> Path:
    path = folder / name
    path.symlink_to("/dev/zero")
    return path


def huge(folder: Path, name: str) -> Path:
    path = folder / name
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no disk
    return path


UNFIT = pytest.mark.parametrize("make", [pipe, endless, huge])


def handed_over(path: Path) -> Any:
    return take_over(Settings(), {PATH_VARIABLE: str(path), DIGEST_VARIABLE: "0" * 64})[1]


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a table for the client": ("t.json", read_file),
    "a table for vLLM": ("t.json", lambda path: from_path(path).why),
    "a parent's snapshot": ("s.json", handed_over),
    "a table to publish": ("t.json", read_table),
    "a table of the lab": ("t.json", lab_tables.read_table),
    "a plan": ("plan.json", read_plan),
    "an experiment's plan": ("plan.json", lambda path: Folder(path.parent).plan()),
    "a vLLM config file": (NAME, show_vllm_config),
    "evidence": ("e.jsonl.gz", read_evidence),
    "tokens": ("tokens", lambda path: read_tokens(str(path))),
    "a model": ("config.json", read_model_config),
    "a model's folder": ("config.json", lambda path: read_model_config(path.parent)),
}


@UNFIT
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_for_a_pipe_or_swallows_an_endless_file(
    tmp_path: Path, reader: str, make: Callable[[Path, str], Path]
) -> None:
    name, read = READERS[reader]
    path = make(tmp_path, name)
    found = within_seconds(lambda: read(path))
    if isinstance(found, AutotuneError):
        assert found.hint
    assert not isinstance(found, Exception) or isinstance(found, AutotuneError), repr(found)
    text = str(found)
    assert str(path) in text
    assert ("is larger than" if make is huge else "it is no regular file") in text


@UNFIT
def test_linting_ends_too(tmp_path: Path, make: Callable[[Path, str], Path]) -> None:
    path = make(tmp_path, "t.json")
    found = within_seconds(lambda: lint_file(path))
    assert ("larger than 32 MiB" if make is huge else "no regular file") in str(found)


@UNFIT
def test_a_good_table_beside_one_that_cannot_be_read_is_used(
    tmp_path: Path, make: Callable[[Path, str], Path]
) -> None:
    starter = next(iter(resources.files("autotune").joinpath("data", "tables").iterdir()))
    (tmp_path / "good.json").write_bytes(starter.read_bytes())
    make(tmp_path, "odd.json")
    found = within_seconds(lambda: from_path(tmp_path))
    assert len(found.tables) == 1
    assert found.miss is None
    assert "odd.json" in found.why


@UNFIT
def test_what_was_kept_is_ignored_and_replaced(tmp_path: Path, make: Callable[[Path, str], Path]) -> None:
    store = LastKnownGood(tmp_path, "http://a", None, "stable")
    store.path.parent.mkdir(parents=True)
    make(store.path.parent, store.path.name)
    kept, reason = within_seconds(store.read)
    assert kept is None
    assert "are ignored: it is" in reason
    body = {"tables": [], "digest": "x"}
    assert within_seconds(lambda: store.write(body, None)) == ""
    assert store.path.is_file()
    assert not store.path.is_symlink()
    assert store.read()[0] is not None


def test_the_limit_is_what_may_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbf" + b"x" * (MAX_BYTES - 3))
    assert len(read_bytes(path)) == MAX_BYTES
    assert read_text(path) == "x" * (MAX_BYTES - 3)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_bytes(path, 1 << 20)


def as_nobody(work: Callable[[], Any]) -> str:
    """What `work` says or raises in a child of another account: root may read everything."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(tell, str(said).encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as reading:
        text = reading.read().decode()
    os.waitpid(pid, 0)
    return text


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that other accounts can enter, which pytest's own is not for root."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_that_may_not_be_read_is_not_called_empty(open_place: Path) -> None:
    folder = open_place / "closed"
    folder.mkdir(mode=0o000)
    assert as_nobody(lambda: from_path(folder).why) == f"{folder} cannot be read: Permission denied."


@pytest.fixture
def shut(open_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which nobody but root may enter."""
    folder = open_place / "shut"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("TABLE", "URL", "DB"):
        monkeypatch.delenv(f"AUTOTUNE_{name}", raising=False)
    folder.chmod(0o000)
    return folder


def test_a_working_folder_that_may_not_be_entered(shut: Path) -> None:
    want = wanted("h200", "qwen-moe-fp8", None, 1, 1, None)
    look_up = as_nobody(lambda: (found := read_source(want, Sources())) and (found.source, found.why))
    assert look_up == "('starter', 'autotune.db cannot be looked for in this folder: Permission denied.')"
    assert as_nobody(lambda: read_source(want, Sources(table=Path("t.json")))).startswith(
        "UsageError: t.json cannot be read: Permission denied. Name"
    )
    for create in (True, False):
        opened = as_nobody(lambda create=create: open_database("sqlite:///autotune.db", create=create))
        assert opened.startswith("DatabaseError: sqlite:///autotune.db cannot be reached: Permission denied")


def test_a_working_folder_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    script = f"import os; os.rmdir({str(folder)!r}); from autotune.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    model = ["--gpu", "h200", "--model", "qwen-moe-fp8"]
    for arguments, code in (
        (["sweep", *model, "--tokens", "8", "--replay"], 1),
        (["db", "upgrade"], 1),
        (["serve", "--port", "1"], 1),
        (["route", *model, "--tokens", "8"], 0),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=folder, env=environment, capture_output=True,
            text=True, timeout=60,
        )  # fmt: skip
        folder.mkdir()
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert ("cannot be reached" in done.stderr) is (code == 1)


def test_a_database_is_a_regular_file(tmp_path: Path) -> None:
    for path in (pipe(tmp_path, "pipe.db"), Path("/dev/zero"), tmp_path):
        for create in (True, False):
            found = within_seconds(
                lambda path=path, create=create: open_database(f"sqlite:///{path}", create=create)
            )
            assert isinstance(found, UsageError)
            assert "is no regular file" in found.message
