"""Handing a snapshot from a parent process to its children."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.client.snapshot import DIGEST_VARIABLE, PATH_VARIABLE, Snapshot, hand_over, take_over
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
    assert env == {PATH_VARIABLE: env[PATH_VARIABLE], DIGEST_VARIABLE: snapshot.digest}


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
    Path(env[PATH_VARIABLE]).unlink()
    Path(env[PATH_VARIABLE]).parent.rmdir()


def _handed(tmp_path: Path) -> tuple[Settings, dict[str, str]]:
    table = tmp_path / "t.json"
    table.write_text(json.dumps(make_table().to_json_data()))
    settings = Settings(table=table, cache=tmp_path / "cache")
    env: dict[str, str] = {}
    hand_over(resolve(settings, None, {}), settings, env)
    return settings, env


def test_a_child_elsewhere_resolves_by_itself_and_must_find_the_same(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    Path(env[PATH_VARIABLE]).unlink()
    assert len(resolve(settings, None, env).tables) == 1
    assert settings.table is not None
    settings.table.write_text(json.dumps(make_table(tokens=(1, 2)).to_json_data()))
    found = resolve(settings, None, env)
    assert (found.tables, found.miss) == ((), Miss.BROKEN_TABLE)
    assert "answers something else" in found.reasons[0]


def test_a_changed_snapshot_is_not_used(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    path = Path(env[PATH_VARIABLE])
    path.write_text(path.read_text().replace('"margin": 0.01', '"margin": 0.02'))
    assert take_over(settings, env)[0] is None
    path.write_text("{")
    assert "cannot be used" in take_over(settings, env)[1]


def test_a_process_set_to_another_source_reads_that(tmp_path: Path) -> None:
    settings, env = _handed(tmp_path)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(make_table(tokens=(1, 2)).to_json_data()))
    found = resolve(dataclasses.replace(settings, table=other), None, env)
    assert found.miss is None
    assert found.source == str(other)
