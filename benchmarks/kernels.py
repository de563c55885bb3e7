"""Every backend against token counts, side by side in one process, with the floor.

    python benchmarks/kernels.py --model qwen-moe-fp8-tensor --tokens 1,8,64 [--backends triton,fused_decode]
                                 [--routing uniform,zipf:1.0] [--each 3]
                                 [--seconds 120] [--evidence FILE] [--out FOLDER] [--replay]

A row is a token count. A cell is a backend's median in microseconds, and in brackets the interval of the
baseline's time over its own (two-sided 90%, bootstrap over blocks and processes: above 1 is faster than
what vLLM runs unaided). For each backend the best candidate that the recorded evidence knows at that count
is timed, or at the nearest count, and where there is none the search's starting points; with --each N the N
best, and the fastest of them is shown. --routing draws experts otherwise than uniformly; what is known best
was found with uniform routing. `*` marks the fastest of those whose whole interval is above 1; without one
nothing is faster than what vLLM runs unaided.

Needs a CUDA GPU and vLLM; --replay reads the recorded figures instead, of all three processes, and measures
nothing. An `s` marks those that come from the screening only: the fastest of many, not timed again on other
inputs. `baseline` is the median of what ran beside any candidate; a ratio is of the baseline beside its
own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.choose.floor import CEILINGS, floor
from autotune.choose.space import Space
from autotune.choose.statistics import speedup
from autotune.cli.problems import parse_backends, parse_numbers, parse_routing, resolve
from autotune.measure.evidence_file import find_evidence
from autotune.measure.task import Runner, Task
from autotune.vocabulary.candidate import BACKENDS, BackendName, Candidate
from autotune.vocabulary.errors import AutotuneError, UsageError
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage, Status
from autotune.vocabulary.out_folder import out_folder
from autotune.vocabulary.problem import Problem

TOKENS = "1,2,4,8,16,32,64,128,256,512,1024,4096,16384"
MODELS = "qwen-moe-fp8-tensor,qwen-moe-fp8,qwen-moe-bf16,mixtral-8x7b-fp8"
RECORDED_PROCESSES = 3
"""In which finals were taken again (docs/measuring.md); all of them are shown in a replay."""
CELL = 24
GPU = "NVIDIA_H200"
"""Whose recording --replay shows."""


@dataclass
class Bench:
    """One model's table in the making."""

    runner: Runner
    problem: Problem
    checkpoint: Checkpoint
    only: frozenset[BackendName] | None
    known: Sequence[Measurement]
    routing: str = "uniform"
    each: int = 1

    def candidates(self, tokens: int, baseline: Candidate) -> list[Candidate]:
        """What to time at one count: the baseline first, then each backend's best known candidate."""
        recorded = self.runner.recorded(self.problem, tokens)
        if recorded is not None:
            # A neighbour's winner is timed here only in finals, to find where its range ends.
            recorded = [*recorded, *(m.candidate for m in self.known if m.tokens == tokens)]
        found: dict[str, Candidate] = {baseline.digest: baseline}
        space = Space(self.problem, tokens, self.runner.machine.environment, self.only)
        starts = space.seeds(baseline, [])
        for name in space.backends:
            best = best_known(self.known, name, tokens, self.each)
            mine = best or [c for c in (*space.fixed(), *starts) if c.backend == name]
            for candidate in mine:
                if recorded is None or candidate in recorded:
                    found.setdefault(candidate.digest, candidate)
        return list(found.values())

    def row(self, tokens: int, baseline: Candidate, candidates: Iterable[Candidate]) -> dict[str, Any]:
        """Time one count."""
        task = Task(
            self.problem, self.checkpoint, tokens, baseline, tuple(candidates), Stage.FINAL, "bench-kernels",
            self.routing,
        )  # fmt: skip
        measured = list(self.runner.measure(task))
        if self.runner.machine.recording:
            # Only finalists have finals on record, and the baseline against itself is not among them.
            for process in range(1, RECORDED_PROCESSES):
                measured += self.runner.measure(replace(task, process=process))
            final = {m.candidate.digest for m in measured}
            rest = tuple(c for c in task.candidates if c.digest not in final)
            measured += self.runner.measure(replace(task, candidates=rest, stage=Stage.SCREEN))
        ceilings = CEILINGS.get(self.runner.machine.environment.gpu)
        # The floor counts the experts that uniform routing touches.
        uniform = self.routing == "uniform"
        least = floor(self.problem, tokens, ceilings) if ceilings and uniform else None
        row: dict[str, Any] = {
            "tokens": tokens, "routing": self.routing,
            "baseline": baseline.model_dump(mode="json"), "baseline_us": None,
            "floor_us": round(least.us, 2) if least else None, "bound": least.bound if least else None,
            "backends": {}, "failed": [],
        }  # fmt: skip
        beside: list[float] = []
        timed: dict[str, list[Measurement]] = {}
        for m in measured:
            if m.status is not Status.OK or m.times is None:
                row["failed"].append(
                    {"candidate": str(m.candidate), "status": m.status.value, "reason": m.reason}
                )
                continue
            beside.append(m.times.baseline_p50_us)
            timed.setdefault(m.candidate.digest, []).append(m)
        for same in timed.values():
            cell, backend = _cell(same), same[0].candidate.backend
            if least:
                cell["reached"] = round(least.reached(cell["us"]), 3)
            before = row["backends"].get(backend)
            if before is None or cell["us"] < before["us"]:
                row["backends"][backend] = cell
        row["baseline_us"] = statistics.median(beside) if beside else None
        return row


def _cell(measured: Sequence[Measurement]) -> dict[str, Any]:
    """One candidate, of which each process made one measurement."""
    first = measured[0]
    times = [m.times for m in measured if m.times is not None]
    ratios = [list(t.log_ratios()) for t in times]
    seed = first.candidate.digest
    ratio = speedup(ratios, seed)
    # The upper end is the lower one of the inverse.
    high = 1 / speedup([[-r for r in process] for process in ratios], seed).low
    return {
        "candidate": first.candidate.model_dump(mode="json"),
        "us": statistics.median(t.p50_us for t in times),
        "p95_us": statistics.median(t.p95_us for t in times),
        "ratio": ratio.median, "low": ratio.low, "high": round(high, 5), "processes": len(times),
        "relative_error": first.relative_error, "stage": first.stage.value,
    }  # fmt: skip


def best_known(known: Sequence[Measurement], backend: str, tokens: int, each: int = 1) -> list[Candidate]:
    """The backend's fastest candidates against the baseline, at that count or the nearest measured one."""
    mine = [m for m in known if m.candidate.backend == backend and m.times is not None]
    if not mine:
        return []
    nearest = min({m.tokens for m in mine}, key=lambda count: (abs(math.log(count / tokens)), count))
    here = [m for m in mine if m.tokens == nearest]
    # Finals first: they were timed again on other inputs.
    ranked = sorted(here, key=lambda m: (m.stage is not Stage.FINAL, _relative(m)))
    return list({m.candidate.digest: m.candidate for m in ranked}.values())[:each]


def _relative(m: Measurement) -> float:
    assert m.times is not None
    return m.times.p50_us / m.times.baseline_p50_us


def run_model(bench: Bench, counts: Sequence[int], deadline: float) -> list[dict[str, Any]]:
    """Rows for one model, each printed as it is made; stops at the deadline."""
    names = [name for name in BACKENDS if bench.only is None or name in bench.only]
    print(f"\n{bench.problem} ({bench.checkpoint} checkpoint), {bench.routing} routing")
    print(f"{'tokens':>7}{'floor':>8}{'baseline':>10}  " + "".join(f"{name:<{CELL}}" for name in names))
    planned = []
    for tokens in counts:
        baseline = bench.runner.baseline(bench.problem, bench.checkpoint, tokens)
        planned.append((tokens, baseline, bench.candidates(tokens, baseline)))
    pairs = [(tokens, candidate) for tokens, _, found in planned for candidate in found]
    for _ in bench.runner.compile(bench.problem, pairs):
        pass
    rows = []
    for tokens, baseline, found in planned:
        if time.monotonic() > deadline:
            left = ", ".join(str(t) for t, _, _ in planned if t >= tokens)
            print(f"the time is up; not measured: {left}", file=sys.stderr)
            break
        try:
            row = bench.row(tokens, baseline, found)
        except AutotuneError as error:  # the baseline itself cannot run: other counts may
            print(f"{tokens} tokens: {error}", file=sys.stderr)
            continue
        rows.append(row)
        print(line(row, names), flush=True)
        for failed in row["failed"]:
            print(f"{failed['candidate']}: {failed['status']}: {failed['reason']}", file=sys.stderr)
    return rows


def line(row: dict[str, Any], names: Sequence[str]) -> str:
    """A row as text."""
    # By the ratios, which were taken in turns: the baseline's own time differs from task to task.
    others = [cell for cell in row["backends"].values() if cell["candidate"] != row["baseline"]]
    best = max((cell["ratio"] for cell in others if cell["low"] > 1), default=math.inf)

    def cell(name: str) -> str:
        found = row["backends"].get(name)
        if found is None:
            return f"{'-':<{CELL}}"
        mark = "*" if found["ratio"] == best else ""
        mark += "s" if found["stage"] == Stage.SCREEN.value else ""
        return f"{found['us']:.1f}{mark} ({found['low']:.3f}-{found['high']:.3f})".ljust(CELL)

    least = f"{row['floor_us']:.1f}" if row["floor_us"] is not None else ""
    base = f"{row['baseline_us']:.1f}" if row["baseline_us"] is not None else ""
    return f"{row['tokens']:>7}{least:>8}{base:>10}  " + "".join(map(cell, names)).rstrip()


def make_runner(replay: bool, problem: Problem, gpu: str, evidence: Path | None) -> Runner:
    """The GPU of this machine, or the recording.

    Raises:
        AutotuneError: if there is neither.
    """
    if not replay:
        from autotune.measure.gpu_runner import GpuRunner

        return GpuRunner(wait_s=5.0, tell=lambda text: print(text, file=sys.stderr))
    from autotune.measure.replay import ReplayRunner

    found = find_evidence(problem, gpu, evidence)
    if found is None:
        raise AutotuneError(f"No recorded evidence holds {problem}.", "Measure it on a GPU.")
    return ReplayRunner(*found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help=f"models, by comma (default {MODELS}; with --replay those of them on record)"
    )
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks that share each expert")
    parser.add_argument("--ep", type=int, default=1, help="expert-parallel ranks that share the experts")
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--backends", default="", help="default: all that take the problem")
    parser.add_argument("--routing", default="uniform", help="uniform, or zipf:S; several by comma")
    parser.add_argument("--each", type=int, default=1, help="best known candidates of each backend to time")
    parser.add_argument("--seconds", type=float, default=420.0, help="time for all models")
    parser.add_argument("--evidence", type=Path, help="a recording (.jsonl.gz) instead of the shipped ones")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench-results"),
        help="folder of kernels.json, or with --replay of recorded.json",
    )
    parser.add_argument("--replay", action="store_true", help="show the recorded figures; no GPU is needed")
    given = parser.parse_args(arguments)
    # transformers looks for a package `kernels`: the file of that name beside this one must not answer.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    start = time.monotonic()
    runner: Runner | None = None
    models: dict[str, Any] = {}
    on_record = 0
    result: dict[str, Any] = {"replay": given.replay, "models": models}
    try:
        counts, only = parse_numbers("--tokens", given.tokens), parse_backends(given.backends)
        routings = [parse_routing(text) for text in given.routing.split(",")]
        if given.replay and routings != ["uniform"]:
            raise UsageError("The recordings are of uniform routing.", "Leave --routing or --replay out.")
        if given.each < 1:
            raise UsageError(f"--each {given.each}: at least 1 candidate is timed.", "Leave --each out.")
        if not given.seconds >= 0:  # nan, too, after which no deadline ever passes
            raise UsageError(f"--seconds {given.seconds:g} is no time.", "Give 0 or more, such as 120.")
        asked = [
            (model, *resolve(model, "", given.tp, given.ep)) for model in (given.model or MODELS).split(",")
        ]
        out_folder(given.out)
        for model, problem, checkpoint in asked:
            if given.replay and not given.model and not find_evidence(problem, GPU, given.evidence):
                print(f"{model}: not on record", file=sys.stderr)
                continue
            if runner is None or given.replay:
                runner = make_runner(given.replay, problem, GPU, given.evidence)
                environment = runner.machine.environment
                print(
                    f"{environment}; driver {runner.machine.driver}; {runner.machine.recording}".rstrip("; ")
                )
                result |= {
                    "environment": environment.model_dump(mode="json"), "driver": runner.machine.driver
                }  # fmt: skip
            known = find_evidence(problem, runner.machine.environment.gpu, given.evidence)
            bench = Bench(runner, problem, checkpoint, only, known[1] if known else (), each=given.each)
            here = [c for c in counts if not given.replay or runner.recorded(problem, c)]
            on_record += len(here)
            if len(here) < len(counts):
                left = ", ".join(str(c) for c in counts if c not in here)
                print(f"{model}: not on record at {left} tokens", file=sys.stderr)
            rows: list[dict[str, Any]] = []
            models[model] = {"problem": str(problem), "rows": rows}
            for bench.routing in routings:
                rows += run_model(bench, here, start + given.seconds)
        if not on_record:
            raise AutotuneError(
                "Nothing that was asked for is on record.",
                "Leave --tokens out to see what is, or measure on a GPU without --replay.",
            )
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    finally:
        if runner is not None:
            runner.close()
        if any(found["rows"] for found in models.values()):  # also what was measured before an end
            result["took_s"] = round(time.monotonic() - start, 1)
            path = given.out / ("recorded.json" if given.replay else "kernels.json")
            path.write_text(json.dumps(result, indent=2) + "\n")
            print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read the table has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
