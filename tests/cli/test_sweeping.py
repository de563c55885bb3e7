"""`autotune sweep` as a user runs it, answered from a recording of made-up measurements."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.choose.sweep import Sweep, SweepPlan
from autotune.measure.evidence_file import RecordingHeader, read_evidence, write_evidence
from autotune.vocabulary.candidate import Candidate, TritonCandidate
from autotune.vocabulary.errors import WrongGpuError
from autotune.vocabulary.measurement import Measurement, Stage
from autotune.vocabulary.table import RoutingTable, Verdict
from tests.choose.simulated import BASELINE, ListStore, Quiet, SimulatedRunner
from tests.factories import PROBLEM
from tests.processes import ignores_hangups, takes_interrupts

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from autotune.cli import main; main()"]
MODEL = ("sweep", "--gpu", "h200", "--model", "qwen-moe-fp8", "--replay")


def planted(candidate: Candidate, tokens: int) -> float:
    if candidate == BASELINE:
        return 1.0
    swapped = isinstance(candidate, TritonCandidate) and candidate.swap_ab
    return 1.2 if swapped and tokens <= 64 else 0.9


def record(path: Path, tokens: tuple[int, ...], trials: int = 24) -> Path:
    store = ListStore()
    plan = SweepPlan(
        problem=PROBLEM, checkpoint="fp8", tokens=tokens, trials=trials, budget_s=None, run="recorded"
    )
    Sweep(plan, SimulatedRunner(planted), store, Quiet()).execute()
    write_evidence(path, RecordingHeader(command="a test", machine="a simulation"), store.rows.values())
    return path


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("evidence") / "made-up.jsonl.gz", (1, 8, 64, 1024))


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AUTOTUNE_")}
    return {
        **kept, "AUTOTUNE_DB": f"sqlite:///{folder / 'sweep.db'}", "PYTHONPATH": str(ROOT), "COLUMNS": "200",
    }  # fmt: skip


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )


def stored(folder: Path) -> int:
    from autotune.db.engine import open_database
    from autotune.db.store import DatabaseStore

    return len(DatabaseStore(open_database(f"sqlite:///{folder / 'sweep.db'}")).measurements(PROBLEM))


def test_a_replayed_sweep_prints_its_table_and_says_so(tmp_path: Path, evidence: Path) -> None:
    arguments = (*MODEL, "--tokens", "1,8,64,1024", "--evidence", str(evidence))
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    for part in ("replay", "2026-11-01", "a simulation", "vllm 0.25.1", "triton 3.6.0", "none of them new"):
        assert part in told
    assert "win" in done.stdout
    assert "no benefit" in done.stdout
    assert "replay" not in done.stdout
    first = stored(tmp_path)
    again = run(tmp_path, *arguments, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    assert stored(tmp_path) == first, "the same content again is nothing new"
    table = RoutingTable.from_json_data(json.loads(again.stdout))
    assert table.digest[:12] in done.stdout
    assert [r.verdict for r in table.routes] == [Verdict.WIN] * 3 + [Verdict.NO_BENEFIT]


def test_no_torch_is_imported(tmp_path: Path, evidence: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None; "
        "from autotune.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *MODEL, "--tokens", "8", "--evidence", str(evidence)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_token_counts_that_were_not_recorded_are_named(tmp_path: Path, evidence: Path) -> None:
    done = run(tmp_path, *MODEL, "--tokens", "8,9", "--evidence", str(evidence))
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert "left out, as they cannot be measured: 9 tokens. Recorded: 1, 8, 64, 1024." in told
    none = run(tmp_path, *MODEL, "--tokens", "9", "--evidence", str(evidence))
    assert none.returncode == 2
    assert none.stderr.count("1, 8, 64, 1024") == 1
    assert "left out" not in none.stderr


def test_a_replay_names_the_options_that_it_does_not_read(tmp_path: Path, evidence: Path) -> None:
    quiet = run(tmp_path, *MODEL, "--evidence", str(evidence))
    assert "no effect" not in quiet.stderr
    assert "steps" not in quiet.stderr
    given = ("--budget", "3m", "--trials", "3", "--seed", "1", "--wait", "1")
    done = run(tmp_path, *MODEL, "--evidence", str(evidence), *given, "--db", "sqlite:///other.db")
    assert (
        " ".join(done.stderr.split()).count("replay: --budget, --trials, --seed, --wait have no effect") == 1
    )
    assert done.stdout == quiet.stdout


def test_a_replay_says_why_a_backend_cannot_run_the_model(tmp_path: Path) -> None:
    asked = ("sweep", "--gpu", "h200", "--model", "qwen-moe-fp8-tensor", "--tokens", "8", "--replay")
    done = run(tmp_path, *asked, "--backends", "deep_gemm,fused_triton")
    assert done.returncode == 0, done.stderr
    assert "deep_gemm is left out: DeepGEMM takes FP8 with 128x128 block scales only" in done.stderr


def test_a_sweep_for_another_gpu_than_the_machine_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from autotune.cli import app as program
    from autotune.measure import detect

    program._register()
    monkeypatch.setattr(detect, "visible_gpu", lambda: "NVIDIA_A100_SXM4_80GB")
    asked = ["sweep", "--gpu", "h200", "--model", "qwen-moe-fp8", "--db", f"sqlite:///{tmp_path / 'x.db'}"]
    with pytest.raises(
        WrongGpuError, match="This machine has NVIDIA_A100_SXM4_80GB, not NVIDIA_H200"
    ) as caught:
        CliRunner().invoke(program.app, asked, catch_exceptions=False)
    assert caught.value.exit_code == 2
    assert "--gpu NVIDIA_A100_SXM4_80GB" in caught.value.hint


@pytest.mark.slow
def test_a_replay_of_some_backends_publishes_no_other(tmp_path: Path) -> None:
    options = ("sweep", "--gpu", "h200", "--model", "qwen-moe-fp8", "--replay", "--backends", "triton")
    done = run(tmp_path, *options, "--publish", "--json")
    assert done.returncode == 0, done.stderr
    table = RoutingTable.from_json_data(json.loads(done.stdout))
    standing = {
        c for r in table.routes for c in (r.winner, r.baseline, *(a.candidate for a in r.alternatives))
    }
    assert {c.backend for c in standing} == {"triton"}
    listed = json.loads(run(tmp_path, "revisions", "--json").stdout)["revisions"]
    assert listed[0]["table_digest"] == table.digest
    reason = r"replay of \d+ measurements of \d{4}-\d\d-\d\d, of triton only"
    assert re.fullmatch(reason, listed[0]["reason"])
    none = run(tmp_path, *options[:-1], "vllm_cutlass")
    assert (none.returncode, none.stdout) == (2, "")
    assert "no final measurements of vllm_cutlass" in none.stderr


@pytest.mark.slow
def test_token_counts_of_earlier_runs_are_told(tmp_path: Path, evidence: Path) -> None:
    narrow = (*MODEL, "--evidence", str(evidence), "--tokens", "1,8")
    assert "earlier runs" not in run(tmp_path, *narrow).stderr
    run(tmp_path, *MODEL, "--evidence", str(evidence))
    told = " ".join(run(tmp_path, *narrow).stderr.split())
    assert (
        "the table also has 2 token counts (64, 1024) from what this database holds of earlier runs" in told
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "h20O"), 2, ("Unknown GPU", "h200")),
        (("--model", "qwen-moe-fp9"), 2, ("Unknown model", "'qwen-moe-fp8'")),
        (("--backends", "deepgemm"), 2, ("Unknown backend", "'deep_gemm'")),
        (("--model", "", "--shape", "E=8,N=64,K=64,topk=2,scheme=fp8_blok128"), 2, ("fp8_block128",)),
        (("--model", "", "--shape", "E=8,N=x"), 2, ("position", "Grammar")),
        (("--budget", "soon"), 2, ("--budget", "5m")),
        (("--tokens", "0"), 2, ("--tokens", "'0'")),
        (("--tokens", "-3"), 2, ("--tokens",)),
        (("--tokens", "many"), 2, ("--tokens", "'many'")),
        (("--routing", "zipf"), 2, ("zipf:1.2",)),
        (("--margin", "2"), 2, ("--margin",)),
        (("--gpu", "h100"), 1, ("no recorded evidence", "NVIDIA_H100_80GB_HBM3")),
        (("--model", "mixtral-8x7b-fp8"), 1, ("no recorded evidence", "N=14336")),
    ],
)
def test_bad_input(
    tmp_path: Path, evidence: Path, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    done = run(tmp_path, *MODEL, "--evidence", str(evidence), *arguments)
    assert done.returncode == code, done.stderr
    text = " ".join(done.stderr.split())
    assert "Traceback" not in text
    for word in words:
        assert word in text
    assert done.stdout == ""


def slow(folder: Path, delay: float) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("slow_sweep.py")
    return subprocess.Popen(
        [sys.executable, str(script), f"sqlite:///{folder / 'sweep.db'}", str(delay)],
        cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("after", [5, 30])
def test_a_killed_sweep_loses_and_repeats_nothing(tmp_path: Path, after: int) -> None:
    process = slow(tmp_path, 0.05)
    assert process.stdout is not None
    committed = [process.stdout.readline().split()[0] for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    committed += [line.split()[0] for line in process.stdout.read().splitlines()]
    assert process.wait() == -signal.SIGKILL
    kept = stored(tmp_path)
    assert after <= len(committed) <= kept <= len(committed) + 1
    again = slow(tmp_path, 0)
    output = again.communicate(timeout=120)[0].splitlines()
    assert again.returncode == 0
    assert output[-1].startswith("finished")

    from autotune.db.engine import open_database
    from autotune.db.store import DatabaseStore

    rows = DatabaseStore(open_database(f"sqlite:///{tmp_path / 'sweep.db'}")).measurements(PROBLEM)
    assert set(committed) <= {m.digest for m in rows}
    assert len(rows) == kept + len(output) - 1
    keys = Counter((m.tokens, m.candidate.digest, m.stage, m.process) for m in rows)
    assert max(keys.values()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_sweep_keeps_its_measurements(tmp_path: Path, number: signal.Signals) -> None:
    counts = tuple(range(1, 41))
    recording = record(tmp_path / "long.jsonl.gz", counts, 12)
    arguments = [*MODEL, "--tokens", ",".join(map(str, counts)), "--evidence", str(recording)]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, preexec_fn=takes_interrupts,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("screening"):
            break
    time.sleep(0.5)
    process.send_signal(number)
    told = " ".join(process.communicate(timeout=60)[1].split())
    assert process.returncode == 130, told
    assert "--resume" in told
    assert "Traceback" not in told
    assert stored(tmp_path) > 0
    done = run(tmp_path, *arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert len(RoutingTable.from_json_data(json.loads(done.stdout)).routes) == 40


@pytest.mark.parametrize(
    ("options", "word"),
    [(("--routing", "zipf:1.2"), "zipf:1.2"), (("--checkpoint", "compressed-tensors"), "compressed-tensors")],
)
def test_what_was_not_recorded_is_refused_before_anything_runs(
    tmp_path: Path, evidence: Path, options: tuple[str, str], word: str
) -> None:
    done = run(tmp_path, *MODEL, "--evidence", str(evidence), *options)
    assert done.returncode == 1
    assert word in done.stderr
    assert "uniform" in done.stderr
    assert "--resume" not in done.stderr
    assert not (tmp_path / "sweep.db").exists()


def test_resuming_takes_the_run_of_the_same_routing(tmp_path: Path) -> None:
    store = ListStore()
    for hour, routing in enumerate(("zipf:1.2", "uniform")):
        runner = SimulatedRunner(planted, clock=lambda hour=hour: datetime(2026, 11, 1, hour, tzinfo=UTC))
        plan = SweepPlan(
            problem=PROBLEM, checkpoint="fp8", tokens=(8,), trials=12, budget_s=None, routing=routing,
            run=f"run-{routing[:4]}",
        )  # fmt: skip
        Sweep(plan, runner, store, Quiet()).execute()
    evidence = tmp_path / "both.jsonl.gz"
    write_evidence(evidence, RecordingHeader(command="a test", machine="a simulation"), store.rows.values())
    arguments = (*MODEL, "--tokens", "8", "--evidence", str(evidence))
    skewed = (*arguments, "--routing", "zipf:1.2")
    assert run(tmp_path, *skewed).returncode == 0
    assert "no run of this problem and routing to resume" in run(tmp_path, *arguments, "--resume").stderr
    for command, name in ((skewed, "run-zipf"), (arguments, "run-unif")):
        done = run(tmp_path, *command, "--resume")
        assert done.returncode == 0, done.stderr
        kept = len([m for m in store.rows.values() if m.run == name])
        assert f"resuming run {name}: {kept} measurements on record" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_it_says_what_uses_a_table(tmp_path: Path, evidence: Path) -> None:
    first = " ".join(run(tmp_path, *MODEL, "--evidence", str(evidence)).stderr.split())
    assert (
        "not published: nothing uses this table yet. The same command with --publish publishes it." in first
    )
    published = run(tmp_path, *MODEL, "--evidence", str(evidence), "--publish").stderr
    assert "published as revision 1 on channel stable" in published
    again = run(tmp_path, *MODEL, "--evidence", str(evidence), "--publish").stderr
    assert "nothing to publish" in again
    same = " ".join(run(tmp_path, *MODEL, "--evidence", str(evidence)).stderr.split())
    assert "published already: this very table is what answers (stable at revision 1)" in same
    other = run(tmp_path, *MODEL, "--evidence", str(evidence), "--margin", "0.5").stderr
    assert "not published: another table goes on answering (stable at revision 1)" in " ".join(other.split())


@pytest.mark.slow
def test_a_starter_table_is_said_to_answer(tmp_path: Path) -> None:
    done = run(tmp_path, "sweep", "--gpu", "h200", "--model", "qwen-moe-fp8", "--replay")
    assert "not published: it is the starter table, which answers" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_the_first_publication_is_undone_by_the_command_that_is_printed(
    tmp_path: Path, evidence: Path
) -> None:
    (tmp_path / "sub").mkdir()
    default = {k: v for k, v in environment(tmp_path).items() if k != "AUTOTUNE_DB"}

    def there(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], cwd=tmp_path / "sub", env=default, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip

    look = ("route", *MODEL[1:-1], "--tokens", "8", "--json")
    before = json.loads(there(*look).stdout)
    assert before["source"] == "starter"
    done = there(*MODEL, "--evidence", str(evidence), "--publish")
    assert json.loads(there(*look).stdout)["revision"] == 1
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("autotune rollback")]
    undone = there(*shlex.split(command)[1:])
    assert undone.returncode == 0, undone.stderr
    assert "points at no revision any more" in undone.stdout
    assert json.loads(there(*look).stdout) == before
    # And back again, by the command that a look-up names.
    (named,) = re.findall(r"`(autotune rollback [^`]*)`", there(*look).stderr)
    assert there(*shlex.split(named)[1:]).returncode == 0
    assert json.loads(there(*look).stdout)["revision"] == 1


@pytest.mark.slow
def test_a_sweep_started_by_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    counts = tuple(range(1, 41))
    recording = record(tmp_path / "long.jsonl.gz", counts, 12)
    arguments = [*MODEL, "--tokens", ",".join(map(str, counts)), "--evidence", str(recording), "--json"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, preexec_fn=ignores_hangups,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("screening"):
            break
    process.send_signal(signal.SIGHUP)
    output, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert len(RoutingTable.from_json_data(json.loads(output)).routes) == 40


def test_publishing_takes_any_account_and_any_recording(tmp_path: Path, evidence: Path) -> None:
    header, measurements = read_evidence(evidence)
    odd = tmp_path / "odd.jsonl.gz"
    write_evidence(odd, header.model_copy(update={"command": "one\ntwo \x1b[31m"}), measurements)
    done = subprocess.run(
        [*COMMAND, *MODEL, "--tokens", "8", "--evidence", str(odd), "--publish"],
        cwd=tmp_path, env={**environment(tmp_path), "LOGNAME": "J\udcfcrg"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = json.loads(run(tmp_path, "revisions", "--json").stdout)["revisions"]
    assert [r["author"] for r in listed] == ["J rg"]
    assert listed[0]["reason"].startswith("replay of ")


def test_an_interrupt_while_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    script = """
import sys
import autotune.cli

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "autotune.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
autotune.cli.main()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_stdout_is_an_error_and_no_traceback(tmp_path: Path, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "--version"],
            env={**environment(tmp_path), "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be written" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left_ends_the_command_without_a_word(tmp_path: Path, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "--version"],
            env={**environment(tmp_path), "PYTHONUNBUFFERED": unbuffered},
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "")


def take_away(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").rename(f"{path}{end}.away")


def put_back(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        if (file := Path(f"{path}{end}.away")).exists():
            file.rename(f"{path}{end}")


def replace(path: Path) -> None:
    take_away(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")


def damage(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=0)) as other:
        other.execute("DROP TABLE measurements")


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        pytest.param(
            take_away,
            r"is no longer at its path \(.*\)\. next: Put the file back, .* With the first file back",
            id="moved",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace,
            r"was replaced by another file .* next: Start this again .* With the first file back",
            id="replaced",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            damage,
            r"no such table: measurements\. next: .*restore it from a copy, or name another with --db\.$",
            id="damaged",
        ),
    ],
)
def test_the_way_on_after_a_database_went_away_during_a_sweep(
    tmp_path: Path, fault: Callable[[Path], None], advice: str
) -> None:
    counts = tuple(range(1, 13))
    recording = record(tmp_path / "long.jsonl.gz", counts, 12)
    arguments = [*MODEL, "--tokens", ",".join(map(str, counts)), "--evidence", str(recording)]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("screening"):
            break
    while stored(tmp_path) < 5:
        time.sleep(0.01)
    while True:
        # It must not be done before its database is gone.
        process.send_signal(signal.SIGSTOP)
        try:
            fault(tmp_path / "sweep.db")
            break
        except sqlite3.OperationalError:  # it was stopped in the middle of a write
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
    process.send_signal(signal.SIGCONT)
    told = " ".join(process.communicate(timeout=60)[1].split())
    assert process.returncode == 1, told
    assert "Traceback" not in told
    assert re.search(advice, told), told
    assert "kept" not in told
    if fault is damage:
        assert "--resume" not in told
        return
    assert "the same command and --resume continue from there." in told
    if fault is replace:
        (tmp_path / "sweep.db").unlink()
    put_back(tmp_path / "sweep.db")
    done = run(tmp_path, *arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert "resuming run recorded: " in done.stderr
    assert len(RoutingTable.from_json_data(json.loads(done.stdout)).routes) == 12


def cut(source: Path, target: Path, keep: Callable[[Measurement], bool]) -> Path:
    header, measurements = read_evidence(source)
    write_evidence(target, header, [m for m in measurements if keep(m)])
    return target


def test_a_recording_that_was_cut_short_is_to_be_fetched_again(tmp_path: Path, evidence: Path) -> None:
    half = tmp_path / "half.jsonl.gz"
    half.write_bytes(evidence.read_bytes()[:2000])
    without_finals = cut(evidence, tmp_path / "screened.jsonl.gz", lambda m: m.stage is Stage.SCREEN)
    header_only = cut(evidence, tmp_path / "header.jsonl.gz", lambda m: False)
    for file, words in (
        (half, ("half.jsonl.gz is no readable evidence file", "Fetch or copy the file again")),
        (without_finals, ("There is no final evidence for E=128", "fetch it again")),
        (header_only, ("no recorded evidence for E=128", "no measurement at all", "fetch or copy it again")),
    ):
        done = run(tmp_path, *MODEL, "--evidence", str(file))
        told = " ".join(done.stderr.split())
        assert (done.returncode, done.stdout) == (1, ""), told
        assert all(word in told for word in words), told
        assert "--resume" not in told
        assert "Reinstall" not in told
