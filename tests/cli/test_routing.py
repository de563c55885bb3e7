"""`autotune route` and `autotune table`, run as a user runs them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import routing
from autotune.cli.routing_sources import read_plugins_source, wanted
from autotune.db.engine import open_database
from autotune.db.measurements import MeasurementRepository
from autotune.vocabulary.candidate import FlashinferCutlassCandidate, FusedTritonCandidate
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, http_service
from tests.factories import OTHER_PROBLEM, PROBLEM, make_measurement, make_published, make_table, triton

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = len(list((ROOT / "autotune" / "data" / "tables").glob("*.json")))
"""Starter tables, all of one GPU."""
SHAPE = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"
MODEL = ("--gpu", "h200", "--model", "qwen-moe-fp8")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TABLE", "URL", "DB", "MATCH", "MODE", "CHANNEL"):
        monkeypatch.delenv(f"AUTOTUNE_{name}", raising=False)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(make_table().to_json_data()))
    return str(path)


def run(*arguments: str) -> Any:
    app = typer.Typer()
    routing.add_to(app)
    return CliRunner().invoke(app, arguments)


def words(text: str) -> str:
    return " ".join(text.split())


def failure(*arguments: str) -> AutotuneError:
    error = run(*arguments).exception
    assert isinstance(error, AutotuneError), error
    return error


def test_a_route_from_a_file(file: str) -> None:
    decision = json.loads(run("route", *MODEL, "--tokens", "8", "--table", file, "--json").stdout)
    assert decision["answer"] == "route"
    assert decision["route"]["winner"]["swap_ab"] is True
    assert decision["source"] == file
    text = run("route", *MODEL, "--tokens", "8", "--table", file).stdout
    assert "1.250x the baseline" in words(text)


def test_shape_and_model_mean_the_same(file: str) -> None:
    by_shape = run(
        "route", "--gpu", "NVIDIA_H200", "--shape", SHAPE, "--tokens", "8", "--table", file, "--json"
    )
    by_model = run("route", *MODEL, "--tokens", "8", "--table", file, "--json")
    assert by_shape.stdout == by_model.stdout


def test_an_unseen_shape_is_a_fallback_with_a_reason(file: str) -> None:
    shape = "E=8,N=64,K=64,topk=2,scheme=bf16"
    result = run("route", "--gpu", "h200", "--shape", shape, "--tokens", "8", "--table", file, "--json")
    decision = json.loads(result.stdout)
    assert (result.exit_code, decision["answer"], decision["reason"]) == (0, "fallback", "unknown_problem")
    assert "vLLM's own choice stays" in run("route", *MODEL, "--tokens", "65", "--table", file).stdout


def test_the_order_of_sources(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def source(*more: str) -> str:
        result = run("route", *MODEL, "--tokens", "8", *more, "--json")
        return str(json.loads(result.stdout)["source"])

    script = Script()
    script.says(encode_tables([make_published(revision=5)]))
    db = f"sqlite:///{tmp_path}/other.db"
    assert source() == "starter"
    assert run("table", "import", file).exit_code == 0
    assert source().endswith("autotune.db"), "the database in this folder counts once it exists"
    run("table", "import", file, "--db", db)
    assert source("--db", db) == db
    with http_service(script) as url:
        monkeypatch.setenv("AUTOTUNE_URL", url)
        assert source() == url
        assert source("--db", db) == db, "an option counts before the environment"
        monkeypatch.setenv("AUTOTUNE_TABLE", file)
        assert source() == file
        monkeypatch.delenv("AUTOTUNE_TABLE")
        monkeypatch.setenv("AUTOTUNE_DB", db)
        assert source() == url
        monkeypatch.delenv("AUTOTUNE_URL")
        assert source() == db


def swept(path: Path) -> str:
    """A database with measurements of PROBLEM, of which nothing was published."""
    from autotune.db.engine import open_database
    from autotune.db.measurements import MeasurementRepository

    with open_database(f"sqlite:///{path}") as database, database.write() as session:
        MeasurementRepository(session).add(make_measurement())
    return f"sqlite:///{path}"


def test_a_default_database_without_tables_leaves_the_starter_tables_in_force(tmp_path: Path) -> None:
    from autotune.db.engine import open_database

    open_database(f"sqlite:///{tmp_path}/autotune.db").close()
    result = run("route", *MODEL, "--tokens", "8", "--json")
    assert (json.loads(result.stdout)["source"], result.stderr) == ("starter", "")
    assert run("table", "show", *MODEL).exit_code == 0
    assert run("table", "export", *MODEL).exit_code == 0


def test_what_was_swept_but_not_published_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = swept(tmp_path / "autotune.db")
    hint = "swept but not published: the same sweep with --resume --publish publishes them"
    result = run("route", *MODEL, "--tokens", "8", "--json")
    assert json.loads(result.stdout)["source"] == "starter"
    assert hint in result.stderr
    for options, environment in ((("--db", db), {}), ((), {"AUTOTUNE_DB": "sqlite:///autotune.db"})):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = run("route", *MODEL, "--tokens", "8", *options, "--json")
        decision = json.loads(result.stdout)
        assert decision["reason"] == "unknown_problem", "a database that was named is final"
        assert hint in decision["detail"]
        assert hint in result.stderr
    assert hint in str(failure("table", "show", *MODEL))


def test_the_starter_tables_answer_what_the_default_database_does_not(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(make_table(problem=OTHER_PROBLEM).to_json_data()))
    assert run("table", "import", str(other)).exit_code == 0
    result = run("route", *MODEL, "--tokens", "8", "--json")
    assert json.loads(result.stdout)["source"] == "starter"
    assert f"autotune.db has no table for {PROBLEM}: the starter tables answer" in result.stderr
    mine = run("route", "--gpu", "h200", "--shape", str(OTHER_PROBLEM), "--tokens", "8", "--json")
    assert json.loads(mine.stdout)["source"].endswith("autotune.db")
    neither = run("route", "--gpu", "h200", "--model", "deepseek-r1", "--tokens", "8", "--json")
    assert json.loads(neither.stdout)["source"].endswith("autotune.db")


def test_a_table_published_in_another_channel_is_not_called_unpublished(file: str, tmp_path: Path) -> None:
    swept(tmp_path / "autotune.db")
    run("table", "import", file)
    told = run("route", *MODEL, "--tokens", "8", "--channel", "canary").stderr
    assert "not in channel 'canary', but published as revision 1 in stable" in told
    assert "not published" not in told


def test_all_of_a_gpus_files_are_those_that_answer_each_layer(file: str, tmp_path: Path) -> None:
    export = ("table", "export", "--gpu", "h200", "--format", "vllm", "--out")
    run(*export, "starters")
    starters = {path.name: path.read_text() for path in Path("starters").iterdir()}
    assert len(starters) == SHIPPED
    run("table", "import", file)
    assert run(*export, "own").exit_code == 0
    own = {path.name: path.read_text() for path in Path("own").iterdir()}
    assert own.keys() == starters.keys()
    assert [name for name in own if own[name] != starters[name]] == [
        "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    ]
    run(*export, "named", "--db", "sqlite:///autotune.db")
    assert len(list(Path("named").iterdir())) == 1, "a database that was named is final"


def test_none_published_is_not_called_no_table(file: str, tmp_path: Path) -> None:
    from autotune.publish import rollback

    run("table", "import", file)
    table = make_table()
    db = f"sqlite:///{tmp_path}/autotune.db"
    with open_database(db) as database, database.write() as session:
        rollback(
            session, problem=table.problem, environment=table.environment, checkpoint=table.checkpoint,
            author="a", reason="slower", to="none",
        )  # fmt: skip
    error = failure("table", "export", "--gpu", "h200", "--format", "vllm", "--out", "f", "--db", db)
    assert f"{PROBLEM}: none is published, so nothing is to be applied" in error.message
    assert "Sweep" not in error.hint
    shown = failure("table", "show", "--gpu", "h200", "--shape", str(PROBLEM), "--db", db)
    assert "`autotune rollback --to N` puts it back" in shown.hint
    empty = failure("table", "export", "--gpu", "h100", "--format", "vllm", "--out", "f", "--db", db)
    assert "There is no table for NVIDIA_H100" in empty.message
    # The starter tables of the other layers are still written, and none of this one.
    assert run("table", "export", "--gpu", "h200", "--format", "vllm", "--out", "g").exit_code == 0
    assert len(list(Path("g").iterdir())) == SHIPPED - 1


def test_a_gap_is_explained_by_what_stands_at_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "gap.json"
    path.write_text(json.dumps(make_table(tokens=(8, 64), firsts={64: 64}).to_json_data()))
    decision = json.loads(run("route", *MODEL, "--tokens", "9", "--table", str(path), "--json").stdout)
    assert decision["reason"] == "unmeasured"
    ends = f"8 ({make_table().lookup(8).winner}) and 64 ({make_table().lookup(64).winner}"  # type: ignore[union-attr]
    assert f"9 tokens lies between the measured counts {ends}" in decision["detail"]
    assert "What runs at 64 also has to be measured at 8" in decision["detail"]
    one = run("route", *MODEL, "--tokens", "1", "--table", str(path)).stdout
    assert "1 token is below the measured range 8 to 64" in words(one)


def test_known_layers_are_those_of_all_sources(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(make_table(problem=OTHER_PROBLEM).to_json_data()))
    run("table", "import", str(other))
    detail = json.loads(
        run("route", "--gpu", "h200", "--model", "deepseek-r1", "--tokens", "8", "--json").stdout
    )["detail"]
    assert "Known: " in detail
    assert str(OTHER_PROBLEM) in detail
    assert str(PROBLEM) in detail


def test_none_in_the_default_database_counts_as_an_answer(file: str, tmp_path: Path) -> None:
    from autotune.db.engine import open_database
    from autotune.publish import rollback

    run("table", "import", file)
    table = make_table()
    with open_database(f"sqlite:///{tmp_path}/autotune.db") as database, database.write() as session:
        rollback(
            session, problem=table.problem, environment=table.environment, checkpoint=table.checkpoint,
            author="a", reason="slower", to="none",
        )  # fmt: skip
    decision = json.loads(run("route", *MODEL, "--tokens", "8", "--json").stdout)
    assert decision["reason"] == "none_published"
    out = tmp_path / "tiles"
    said = run("table", "export", "--gpu", "h200", "--format", "vllm", "--out", str(out)).stderr
    assert f"{table.problem} is left out: its channel says that nothing is to be applied" in said
    assert list(out.iterdir())


def test_what_the_plugin_reads_is_no_database(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in this folder, whatever it says, is nothing to vLLM, and so to `jit warm-up`."""
    Path("autotune.db").write_text("no database")
    monkeypatch.setenv("AUTOTUNE_DB", "sqlite:///autotune.db")
    want = wanted("h200", "qwen-moe-fp8", None, 1, 1, None)
    assert read_plugins_source(want, None).source == "starter"
    monkeypatch.setenv("AUTOTUNE_TABLE", file)
    assert read_plugins_source(want, None).source == file


def test_an_unknown_channel_is_answered_with_those_that_exist(file: str, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/other.db"
    run("table", "import", file, "--db", db, "--channel", "canary")
    said = "channel 'nightly' has no tables in {}; there are: canary"
    result = run("route", *MODEL, "--tokens", "8", "--db", db, "--channel", "nightly", "--json")
    assert said.format(db) in json.loads(result.stdout)["detail"]
    script = Script()
    tables, revisions = encode_tables([]), {"revisions": [{"channels": ["canary"]}, {"channels": []}]}
    with http_service(script) as url:
        script.says({**tables, **revisions})
        result = run("route", *MODEL, "--tokens", "8", "--url", url, "--channel", "nightly", "--json")
    assert said.format(url) in json.loads(result.stdout)["detail"]
    assert [path.partition("?")[0] for path, _ in script.requests] == ["/routing/tables", "/revisions"]


def test_a_service_that_is_down_is_a_fallback_and_a_warning() -> None:
    result = run("route", *MODEL, "--tokens", "8", "--url", "http://127.0.0.1:1", "--json")
    assert json.loads(result.stdout)["reason"] == "unreachable"
    assert "warning: http://127.0.0.1:1 gave no usable answer" in result.stderr


def test_bad_usage(file: str) -> None:
    cases = {
        ("route", *MODEL, "--tokens", "0"): "at least 1",
        ("route", "--gpu", "h300", "--shape", SHAPE, "--tokens", "8"): "Did you mean",
        ("route", "--gpu", "h200", "--model", "qwen-moe-fp9", "--tokens", "8"): "Did you mean",
        ("route", "--gpu", "h200", "--tokens", "8"): "either --model or --shape",
        ("route", "--gpu", "h200", "--shape", SHAPE, "--tp", "2", "--tokens", "8"): "--tp and --ep go with",
        ("table", "show", "--gpu", "h200", "--shape", SHAPE, "--ep", "2"): "--tp and --ep go with",
        ("table", "export", "--gpu", "h200", "--format", "vllm", "--tp", "2"): "--tp and --ep go with",
        ("route", *MODEL, "--tokens", "8", "--table", file, "--db", "sqlite:///x.db"): "exclude each other",
        ("table", "show", *MODEL, "--url", "http://127.0.0.1:1", "--db", "x"): "exclude each other",
        ("route", *MODEL, "--tokens", "8", "--url", "garbage"): "no http://",
        ("route", *MODEL, "--tokens", "8", "--channel", "st\udcff"): "no channel name",
        ("table", "import", file, "--channel", "St"): "no channel name",
        ("route", *MODEL, "--tokens", "8", "--channel", ""): "no channel name",
        ("route", "--gpu", "NVIDIA_\udcff", "--shape", SHAPE, "--tokens", "8"): "no GPU's name",
        ("route", *MODEL, "--tokens", "8", "--table", "x" * 5000): "There is no table",
        ("table", "import", "x" * 5000): "no regular file",
        ("table", "lint", "x" * 5000): "no regular file",
        ("route", "--gpu", "h200", "--shape", "E=x", "--tokens", "8"): "position 2",
        ("route", *MODEL, "--tokens", "8", "--table", "absent.json"): "There is no table absent.json",
        ("route", *MODEL, "--tokens", "8", "--table", file, "--checkpoint", "gguf"): "checkpoint",
        ("table", "export", *MODEL, "--table", file, "--format", "vlm"): "'vllm'",
        ("table", "export", *MODEL, "--table", file, "--format", "vllm"): "--out",
        ("table", "lint", "absent.json"): "no regular file",
        ("table", "import", "absent.json"): "no regular file",
    }
    for arguments, said in cases.items():
        error = failure(*arguments)
        assert error.exit_code == 2, arguments
        assert said in str(error), arguments
    assert run("route", *MODEL, "--tokens", "eight").exit_code == 2
    for concurrency in ("0", "1000001", "9" * 400):
        assert run("route", *MODEL, "--tokens", "8", "--concurrency", concurrency).exit_code == 2
    assert run("route", *MODEL, "--tokens", "8", "--concurrency", "1000000").exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TABLE", "x" * 5000, "There is no table"),
        ("URL", "garbage", "no http://"),
        ("URL", "http://me:s3cret@[", "is no URL"),
        ("CHANNEL", "Stable", "no channel name"),
    ],
)
def test_bad_settings(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(f"AUTOTUNE_{name}", value)
    error = failure("route", *MODEL, "--tokens", "8")
    assert (error.exit_code, said in str(error), "s3cret" in str(error)) == (2, True, False)


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_a_table_loses_nothing_and_fits_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    winner = FusedTritonCandidate(gate_up=triton(16, 64).tile, down=triton(16).tile, swap_ab=True)
    table = make_table(tokens=(8192, 16384), winner=winner, wins={16384: 1.25})
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(table.to_json_data()))
    monkeypatch.setenv("COLUMNS", columns)
    text = run("table", "show", *MODEL, "--table", str(path)).stdout
    for route in table.routes:
        figures = (route.winner_timing.p50_us, route.baseline_timing.p50_us)
        for expected in (str(route.winner), str(route.baseline), *(f"{us:.1f}" for us in figures)):
            assert expected in words(text), expected
    for expected in ("8193..16384", "1.250", "1.225", "win", "no benefit", "swap_ab"):
        assert expected in words(text), expected
    lines = [line for line in text.splitlines() if str(path) not in line]
    assert max(map(len, lines)) <= int(columns)
    if int(columns) < 79:
        (line,) = (line for line in lines if line.startswith("8193..16384"))
        assert line == "8193..16384: win, 1.250 (at least 1.225)"
    else:
        (row,) = (line.split() for line in lines if line.lstrip().startswith("8193..16384"))
        assert row == ["8193..16384", "19676.8", "24596.0", "625.0", "3%", "1.250", "1.225", "win"]


def test_sweep_and_show_print_the_same_table(file: str) -> None:
    from io import StringIO

    from rich.console import Console

    from autotune.cli.tables import render_table

    out = StringIO()
    Console(file=out, width=80, highlight=False).print(render_table(make_table()))
    assert run("table", "show", *MODEL, "--table", file).stdout.endswith(out.getvalue())


def test_exported_files_follow_the_umask(file: str) -> None:
    before = os.umask(0o022)
    try:
        run("table", "export", *MODEL, "--table", file, "--out", "t.json")
        run("table", "export", *MODEL, "--table", file, "--format", "vllm", "--out", "tiles")
    finally:
        os.umask(before)
    for path in (Path("t.json"), *Path("tiles").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, path


@pytest.mark.parametrize("content", ["[]", "null", '{"1": null}', "{}", '{"1": {"BLOCK_SIZE_M": "16"}}'])
def test_import_refuses_the_vllm_files_that_lint_rejects(content: str) -> None:
    path = Path("E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json")
    path.write_text(content)
    assert run("table", "lint", str(path)).exit_code == 1
    error = failure("table", "import", str(path))
    assert (error.exit_code, error.message.endswith("..")) == (1, False)
    path.write_text('{"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128}}')
    shown = run("table", "import", str(path))
    assert (shown.exit_code, "names no triton_version" in shown.stderr) == (0, True)


def test_a_database_without_sqlalchemy_is_a_missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("autotune.db").touch()
    for name in [n for n in sys.modules if n.startswith("autotune.db")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    error = failure("route", *MODEL, "--tokens", "8")
    assert (error.exit_code, "[tune]" in error.hint) == (1, True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without a name")
@pytest.mark.parametrize("command", ["route", "import", "doctor"])
def test_a_user_without_a_name_or_a_home_is_served(command: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        Path(folder, "t.json").write_text(json.dumps(make_table().to_json_data()))
        arguments = {
            "route": ["route", *MODEL, "--tokens", "8"],
            "import": ["table", "import", "t.json"],
            "doctor": ["vllm", "doctor"],
        }[command]
        code = (
            "import os, sys, autotune.cli; os.setuid(54321); "
            "os.access(autotune.cli.__file__, os.R_OK) and os.access(os.__file__, os.R_OK) or sys.exit(77); "
            f"sys.argv = ['autotune', *{arguments!r}]; autotune.cli.main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("other users cannot read this checkout or this Python")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_show(file: str) -> None:
    text = run("table", "show", *MODEL, "--table", file).stdout
    for expected in ("5..8", "1.250", "1.225", "win", "triton 16x128x128", "deep_gemm"):
        assert (expected in words(text)) is (expected != "deep_gemm"), expected
    data = json.loads(run("table", "show", *MODEL, "--table", file, "--json").stdout)
    assert RoutingTable.from_json_data(data["table"]) == make_table()
    error = failure("table", "show", "--gpu", "h100", "--model", "qwen-moe-fp8", "--table", file)
    assert (error.exit_code, "exist for NVIDIA_H200" in str(error)) == (1, True)


def test_export_and_import_go_round(file: str, tmp_path: Path) -> None:
    printed = run("table", "export", *MODEL, "--table", file)
    assert RoutingTable.from_json_data(json.loads(printed.stdout)) == make_table()
    out = tmp_path / "out" / "t.json"
    assert run("table", "export", *MODEL, "--table", file, "--out", str(out)).stdout == ""
    assert "revision 1 of" in run("table", "import", str(out)).stdout
    assert "already was" in run("table", "import", str(out)).stdout
    assert run("table", "export", *MODEL).stdout == printed.stdout


def test_a_broken_file_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**make_table().to_json_data(), "margin": 0.5}))
    assert "does not match its content" in str(failure("table", "import", str(path)))
    assert not (tmp_path / "autotune.db").exists()
    assert failure("route", *MODEL, "--tokens", "8", "--table", str(path)).exit_code == 1


def test_vllm_files_of_all_tables_and_of_one(tmp_path: Path) -> None:
    bf16 = Problem.parse("E=8,N=14336,K=4096,topk=2,scheme=bf16")
    path = tmp_path / "all.json"
    path.write_text(json.dumps(encode_tables([make_published(), make_published(problem=bf16)])))
    result = run(
        "table", "export", "--gpu", "h200", "--format", "vllm", "--out", "folder", "--table", str(path)
    )
    assert result.exit_code == 0, result.exception
    assert result.stdout == ""
    assert "not in the file: counts without a measured Triton tile: at 65 and above" in result.stderr
    names = sorted(p.name for p in Path("folder").iterdir())
    assert names == [
        "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        "E=8,N=14336,device_name=NVIDIA_H200.json",
    ]
    files = [f"folder/{name}" for name in names]
    assert run("table", "lint", *files).exit_code == 0
    Path("folder/broken.json").write_text("{")
    both = run("table", "lint", "folder/broken.json", *files)
    assert both.exit_code == 1
    assert [line.partition(": ")[0] for line in both.stdout.splitlines()] == ["folder/broken.json"]
    assert both.stderr.count("no findings") == 2
    shown = run("table", "import", f"folder/{names[0]}")
    assert "E=128, N=768, NVIDIA_H200, dtype=fp8_w8a8, block_shape=[128, 128]" in shown.stdout
    assert "tells neither K nor top-k" in shown.stderr


def test_lint_exits_1_with_findings(file: str, tmp_path: Path) -> None:
    assert run("table", "lint", file).exit_code == 0
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    result = run("table", "lint", str(bad))
    assert result.exit_code == 1
    assert "not readable JSON" in result.stdout


def test_show_tells_what_a_tuner_chose_and_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    url = f"sqlite:///{tmp_path}/own.db"
    tuned, untuned = FlashinferCutlassCandidate(), FlashinferCutlassCandidate(tuned=False)
    evidence = [
        make_measurement(tokens=8, candidate=tuned, tactic="gemm1 7, gemm2 31", tuning_s=41.5),
        make_measurement(tokens=8, candidate=untuned, tactic="gemm1 fallback, gemm2 fallback"),
        make_measurement(tokens=8),
        make_measurement(tokens=5, candidate=tuned, tactic="gemm1 1, gemm2 2"),  # the table has no 5
    ]
    with open_database(url) as database, database.write() as session:
        MeasurementRepository(session).add_all(evidence)
    made = tmp_path / "t.json"
    made.write_text(json.dumps(make_table().to_json_data()))
    assert "revision 1 of" in run("table", "import", str(made), "--db", url).stdout
    data = json.loads(run("table", "show", *MODEL, "--db", url, "--json").stdout)
    assert [(t["tokens"], t["tactic"], t["tuning_s"]) for t in data["tuners"]] == [
        (8, "gemm1 7, gemm2 31", 41.5),
        (8, "gemm1 fallback, gemm2 fallback", None),
    ]
    assert [t["candidate"]["tuned"] for t in data["tuners"]] == [True, False]
    assert data["tuners"][0]["evidence"] == evidence[0].digest
    assert data["tuners"][0]["p50_us"] > 0
    shown = run("table", "show", *MODEL, "--db", url, "--tuners").stdout
    assert "gemm1 7, gemm2 31" in shown
    assert "x as long" in shown
    # A table from elsewhere says nothing of that database's evidence.
    assert "tuners" not in json.loads(run("table", "show", *MODEL, "--table", str(made), "--json").stdout)
