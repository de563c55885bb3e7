"""`autotune table plot`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app as program
from autotune.cli import lab_plot
from autotune.cli.plotting import draw, times_by_backend
from autotune.lab.report import make_report
from autotune.lab.results import Folder
from autotune.vocabulary.errors import AutotuneError, MissingDependencyError, UsageError
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


def test_what_is_wrong_with_the_source_is_said_beside_the_picture(tmp_path: Path) -> None:
    program._register()
    (tmp_path / "broken.json").write_text("{")
    good = ROOT / "autotune" / "data" / "tables" / "nvidia_h200-qwen-moe-fp8.json"
    (tmp_path / "good.json").write_bytes(good.read_bytes())
    options = ["--gpu", "h200", "--model", "qwen-moe-fp8", "--table", str(tmp_path)]
    done = CliRunner().invoke(program.app, ["table", "plot", *options, "--out", str(tmp_path / "x.svg")])
    assert done.exit_code == 0, done.output
    assert "broken.json" in done.output


def test_the_command_draws_a_table_file(tmp_path: Path) -> None:
    program._register()
    file = ROOT / "autotune" / "data" / "tables" / "nvidia_h200-qwen-moe-fp8.json"
    options = ["--gpu", "h200", "--model", "qwen-moe-fp8", "--table", str(file)]
    runner = CliRunner()
    done = runner.invoke(program.app, ["table", "plot", *options, "--out", str(tmp_path / "x.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


EXPERIMENT = next((ROOT / "benchmarks" / "results").glob("*-four-loads"))
DRAWERS = [
    pytest.param(lambda path: draw(table_of(TABLES[0]), path), id="table plot"),
    pytest.param(lambda path: lab_plot.draw(make_report(Folder(EXPERIMENT), 0.01), path), id="lab report"),
]
Drawer = Callable[[Path], None]


@pytest.mark.parametrize("drawer", DRAWERS)
@pytest.mark.parametrize("name", ["x.nothing", "x", ".svg"])
def test_a_name_that_is_no_pictures_is_refused(drawer: Drawer, name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.svg"):
        drawer(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("drawer", DRAWERS)
def test_a_place_that_cannot_be_written_is_failed_work(drawer: Drawer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutotuneError, match="cannot be written") as caught:
        drawer(tmp_path / "file" / "x.svg")
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("drawer", DRAWERS)
def test_equal_content_gives_equal_files_and_leaves_no_figure_open(drawer: Drawer, tmp_path: Path) -> None:
    from matplotlib import pyplot, rcParams

    for name in ("one.svg", "two.svg", "x.PNG", "x.pdf"):
        drawer(tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "x.PNG").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "x.pdf").read_bytes().startswith(b"%PDF")
    assert pyplot.get_fignums() == []
    assert rcParams["svg.hashsalt"] is None


@pytest.mark.parametrize("drawer", DRAWERS)
def test_without_matplotlib_the_extra_is_named(
    drawer: Drawer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[plot\]"):
        drawer(tmp_path / "x.svg")


def test_a_full_disk_leaves_the_picture_that_is_there(tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    draw(table_of(TABLES[0]), out)
    before = out.read_bytes()
    # A limit on the file size fails the write as a full disk does.
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "from autotune.cli import main; main()"
    )
    file = ROOT / "autotune" / "data" / "tables" / "nvidia_h200-qwen-moe-fp8.json"
    options = ["--gpu", "h200", "--model", "qwen-moe-fp8", "--table", str(file)]
    failed = subprocess.run(
        [sys.executable, "-c", script, "table", "plot", *options, "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert failed.returncode == 1, failed.stderr
    assert "cannot be written" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.svg"]
