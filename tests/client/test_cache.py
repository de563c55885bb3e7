"""The last known good answer on disk."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.client.cache import LastKnownGood, write_atomically

BODY = {"tables": [], "digest": "tag-x"}


def store(folder: Path, **changes: str) -> LastKnownGood:
    asked = {"url": "http://a", "gpu": "NVIDIA_H200", "channel": "stable", **changes}
    return LastKnownGood(folder, **asked)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert store(tmp_path).read() == (None, "")
    assert store(tmp_path).write(BODY, '"tag-x"') == ""
    kept, reason = store(tmp_path).read()
    assert reason == ""
    assert kept is not None
    assert (kept.body, kept.etag) == (BODY, '"tag-x"')
    assert kept.saved_at.endswith("+00:00")


@pytest.mark.parametrize("change", [{"url": "http://b"}, {"gpu": "NVIDIA_H100"}, {"channel": "canary"}])
def test_it_answers_only_what_was_asked(tmp_path: Path, change: dict[str, str]) -> None:
    store(tmp_path).write(BODY, None)
    assert store(tmp_path, **change).read() == (None, "")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 9}', "[" * 100_000, "\x00\x01", '{"format": 1, "asked": []}']
)
def test_a_corrupt_file_is_ignored_with_a_reason(tmp_path: Path, text: str) -> None:
    kept = store(tmp_path)
    kept.path.parent.mkdir(parents=True)
    kept.path.write_text(text)
    found, reason = kept.read()
    assert found is None
    assert "ignored" in reason


def test_a_changed_body_is_ignored(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.write(BODY, None)
    stored = json.loads(kept.path.read_text())
    stored["body"]["tables"] = [1]
    kept.path.write_text(json.dumps(stored))
    assert kept.read()[0] is None
    assert "digest" in kept.read()[1]


def test_a_place_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "tables").write_text("a file where the folder should be")
    assert "cannot be written" in store(tmp_path).write(BODY, None)


def test_the_cache_is_private_and_other_files_follow_the_umask(tmp_path: Path) -> None:
    store(tmp_path).write(BODY, None)
    assert stat.S_IMODE(store(tmp_path).path.stat().st_mode) == 0o600
    before = os.umask(0o027)
    try:
        assert write_atomically(tmp_path / "out.json", "x", private=False) is None
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_accounts_file_is_ignored(tmp_path: Path) -> None:
    store(tmp_path).write(BODY, None)
    os.chown(store(tmp_path).path, 65534, 65534)
    kept, reason = store(tmp_path).read()
    assert kept is None
    assert reason.endswith("are ignored: it belongs to another account")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "folder" / "target.json", tmp_path / "link.json"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    assert write_atomically(link, "new", private=False) is None
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    assert write_atomically(Path("/dev/null"), "x", private=False) is None
    assert Path("/dev/null").is_char_device()


def test_a_full_disk_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    assert write_atomically(path, "old") is None
    # A limit on the file size fails the write as a full disk does, for root too.
    pid = os.fork()
    if pid == 0:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        reason = write_atomically(path, "x" * 5000)
        os._exit(0 if reason and "cannot be written" in reason else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]


def left_by_a_killed_process(path: Path, private: bool) -> Path:
    code = (
        "import os, signal, sys; from pathlib import Path; from autotune.client import cache\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache.write_atomically(Path(sys.argv[1]), 'x', private=sys.argv[2] == 'True')"
    )
    before = set(path.parent.iterdir())
    done = subprocess.run([sys.executable, "-c", code, str(path), str(private)])
    assert done.returncode == -signal.SIGKILL
    (left,) = set(path.parent.iterdir()) - before
    return left


@pytest.mark.parametrize("private", [True, False])
def test_what_a_killed_process_left_goes_after_an_hour(tmp_path: Path, private: bool) -> None:
    path, other = tmp_path / "file.json", tmp_path / "other.json"
    old, fresh, others = (left_by_a_killed_process(each, private) for each in (path, path, other))
    (tmp_path / ".notes-0123").write_text("no temporary file")
    (tmp_path / f".folder-{'0' * 16}").mkdir()
    (tmp_path / f".link-{'0' * 16}").symlink_to(tmp_path / ".notes-0123")
    ago = time.time() - 3700
    for each in tmp_path.iterdir():
        if each != fresh:
            os.utime(each, (ago, ago))
    assert write_atomically(path, "new", private=private) is None
    expected = {
        path,
        fresh,
        *(tmp_path / name for name in (".notes-0123", f".folder-{'0' * 16}", f".link-{'0' * 16}")),
    }
    # In people's folders a file of another name may be theirs.
    assert set(tmp_path.iterdir()) == (expected if private else {*expected, others})
    assert not old.exists()
