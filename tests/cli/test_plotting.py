"""`autotune table plot`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app as program
from autotune.cli.plotting import draw, times_by_backend
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.table import RoutingTable

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "autotune" / "data" / "tables").glob("*.json"))


def table_of(path: Path) -> RoutingTable:
    return RoutingTable.from_json_data(json.loads(path.read_text()))


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_every_starter_table_has_its_picture(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "layer.svg"
    draw(table_of(path), out)
    text = out.read_text()
    assert "<svg" in text
    # One picture for one table: the repository's shows this very content.
    assert (ROOT / "docs" / "figures" / f"{path.stem}.svg").exists()
    assert f"docs/figures/{path.stem}.svg" in (ROOT / "README.md").read_text()


def test_each_backend_has_a_time_wherever_it_was_measured() -> None:
    table = table_of(TABLES[0])
    times = times_by_backend(table)
    assert [tokens for tokens, _ in times[table.routes[0].baseline.backend]] == [
        r.tokens for r in table.routes
    ]
    first = table.routes[0]
    best = min(first.baseline_timing.p50_us, first.winner_timing.p50_us)
    assert min(dict(points).get(first.tokens, 1e9) for points in times.values()) == best


def test_the_command_draws_a_table_file(tmp_path: Path) -> None:
    program._register()
    file = ROOT / "autotune" / "data" / "tables" / "nvidia_h200-qwen-moe-fp8.json"
    options = ["--gpu", "h200", "--model", "qwen-moe-fp8", "--table", str(file)]
    runner = CliRunner()
    done = runner.invoke(program.app, ["table", "plot", *options, "--out", str(tmp_path / "x.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["x.nothing", "missing/x.svg"])
def test_a_picture_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.svg"):
        draw(table_of(TABLES[0]), tmp_path / name)
