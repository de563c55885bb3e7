"""Handing a snapshot from a parent process to its children."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.client.snapshot import (
    DATA_LIMIT,
    DATA_VARIABLE,
    DIGEST_VARIABLE,
    PATH_VARIABLE,
    Snapshot,
    hand_over,
    take_over,
)
from autotune.client.sources import resolve
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import Miss
from tests.factories import make_published, make_table


def test_a_child_process_decides_with_the_parents_tables(tmp_path: Path) -> None:
    table = tmp_path / "t.json"
    table.write_text(json.dumps(make_table().to_json_data()))
    settings = Settings(table=table, cache=tmp_path / "cache")
    snapshot = resolve(settings, None, {})
    env: dict[str, str] = {}
    assert hand_over(snapshot, settings, env) is None
    table.write_text("{}")
    code = "from autotune.client import RoutingClient as R; s = R().snapshot; print(s.digest, len(s.tables))"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, **env, "AUTOTUNE_TABLE": str(table), "AUTOTUNE_CACHE": str(settings.cache)},
    )  # fmt: skip
    assert child.stdout.split() == [snapshot.digest, "1"]
    assert set(env) == {PATH_VARIABLE, DATA_VARIABLE, DIGEST_VARIABLE}
    assert env[DIGEST_VARIABLE] == snapshot.digest


def test_the_digest_is_that_of_the_tables_alone() -> None:
    tables = (make_published(),)
    assert Snapshot(tables, "a").digest == Snapshot(tables, "b", ("x",)).digest
    assert Snapshot(tables, "a").digest != Snapshot((make_published(revision=2),), "a").digest


def test_another_place_when_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    settings = Settings(cache=tmp_path / "cache")
    env: dict[str, str] = {}
    assert hand_over(Snapshot((make_published(),), "x"), settings, env) is None
    found, reason = take_over(settings, env)
    assert reason == ""
    assert found is not None
    assert len(found.tables) == 1


RANK = """
import os, subprocess, sys
from tempfile import gettempdir
from autotune.client import RoutingClient
from autotune.client.snapshot import hand_over
client = RoutingClient()
assert hand_over(client.snapshot, client.settings, os.environ) is None
if os.fork() == 0:
    sys.exit(0)  # a fork ends as a process does, and takes nothing with it
os.wait()
depth = int(sys.argv[2])
if depth:
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[1], str(depth - 1)], check=True)
print(client.snapshot.source, os.path.isfile(os.environ["AUTOTUNE_SNAPSHOT"]), os.listdir(gettempdir()))
"""


def test_only_who_made_a_folder_for_it_removes_it(tmp_path: Path) -> None:
    """Three processes, each started by the one before, where the cache cannot be written."""
    (tmp_path / "cache").write_text("not a folder")
    (tmp_path / "tmp").mkdir()
    table = tmp_path / "t.json"
    table.write_text(json.dumps(make_table().to_json_data()))
    done = subprocess.run(
        [sys.executable, "-c", RANK, RANK, "2"], capture_output=True, text=True, check=True,
        env={
            **os.environ, "AUTOTUNE_TABLE": str(table), "AUTOTUNE_CACHE": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path / "tmp"),
        },
    )  # fmt: skip
    lines = done.stdout.splitlines()
    (folder,) = {line.partition(" True ")[2] for line in lines}
    assert folder.startswith("['moe-autotune-snapshot-")
    assert "," not in folder
    inherited = f"{table}, taken over from a parent process"
    assert [line.partition(" True ")[0] for line in lines] == [inherited, inherited, str(table)]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_was_taken_over_is_handed_on_as_it_came(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    found, _ = take_over(settings, env)
    assert found is not None
    assert found.source == f"{settings.table}, taken over from a parent process"
    before = dict(env)
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert hand_over(found, settings, env) is None
    assert env == before
    assert not (tmp_path / "cache").exists()
    # Where something else was announced since, it is written again; who takes that says it once.
    env[DIGEST_VARIABLE] = "0" * 64
    assert hand_over(found, settings, env) is None
    assert take_over(settings, env)[0] == found


def _handed(tmp_path: Path) -> tuple[Settings, dict[str, str]]:
    table = tmp_path / "t.json"
    table.write_text(json.dumps(make_table().to_json_data()))
    settings = Settings(table=table, cache=tmp_path / "cache")
    env: dict[str, str] = {}
    hand_over(resolve(settings, None, {}), settings, env)
    return settings, env


def test_on_another_host_the_value_serves(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    own, _ = take_over(settings, env)
    Path(env[PATH_VARIABLE]).unlink()
    assert settings.table is not None
    settings.table.unlink()
    found, reason = take_over(settings, env)
    assert (found, reason) == (own, "")
    assert resolve(settings, None, env).digest == env[DIGEST_VARIABLE]


@pytest.mark.parametrize("spoil", ["", "AAAA", "no base64!", "cut"])
def test_a_spoilt_value_is_not_used(tmp_path: Path, spoil: str) -> None:
    settings, env = _handed(tmp_path)
    Path(env[PATH_VARIABLE]).unlink()
    env[DATA_VARIABLE] = env[DATA_VARIABLE][:400] if spoil == "cut" else spoil
    found, reason = take_over(settings, env)
    assert found is None
    assert "cannot be used" in reason
    assert (DATA_VARIABLE in reason) is bool(spoil)


def test_another_snapshots_value_is_not_used(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    Path(env[PATH_VARIABLE]).unlink()
    other: dict[str, str] = {}
    hand_over(Snapshot((make_published(revision=9),), "x"), settings, other)
    assert "not the one announced" in take_over(settings, {**env, DATA_VARIABLE: other[DATA_VARIABLE]})[1]


def test_what_is_too_long_for_a_variable_goes_by_file_alone(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    assert len(env[DATA_VARIABLE]) < DATA_LIMIT
    # Random names do not compress.
    many = tuple(make_published(revision=n, channel=secrets.token_hex(300)) for n in range(1, 400))
    snapshot = Snapshot(many, "x")
    assert hand_over(snapshot, settings, env) is None
    assert set(env) == {PATH_VARIABLE, DIGEST_VARIABLE}, "the earlier value is gone"
    found, _ = take_over(settings, env)
    assert found is not None
    assert found.digest == snapshot.digest


def test_a_child_elsewhere_resolves_by_itself_and_must_find_the_same(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    del env[DATA_VARIABLE]
    Path(env[PATH_VARIABLE]).unlink()
    assert len(resolve(settings, None, env).tables) == 1
    assert settings.table is not None
    settings.table.write_text(json.dumps(make_table(tokens=(1, 2)).to_json_data()))
    found = resolve(settings, None, env)
    assert (found.tables, found.miss) == ((), Miss.BROKEN_TABLE)
    assert "answers something else" in found.reasons[0]


def test_a_changed_snapshot_is_not_used(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    by_value = env.pop(DATA_VARIABLE)
    path = Path(env[PATH_VARIABLE])
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.02'))
    assert take_over(settings, env)[0] is None
    path.write_text("{")
    assert "cannot be used" in take_over(settings, env)[1]
    assert take_over(settings, {**env, DATA_VARIABLE: by_value})[0] is not None


def test_a_process_set_to_another_source_reads_that(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(make_table(tokens=(1, 2)).to_json_data()))
    found = resolve(dataclasses.replace(settings, table=other), None, env)
    assert found.miss is None
    assert found.source == str(other)
