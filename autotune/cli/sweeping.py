"""`autotune sweep`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.models import EP_HELP
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.text import counted
from autotune.vocabulary.traffic import DEFAULT_TOKENS

if TYPE_CHECKING:
    from autotune.choose.sweep import Sweep, SweepPlan, SweepResult
    from autotune.measure.task import Runner
    from autotune.vocabulary.measurement import Checkpoint
    from autotune.vocabulary.problem import Problem
    from autotune.vocabulary.table import RoutingTable

INTERRUPTED = 130
NO_EFFECT = ("budget", "trials", "seed", "wait")
"""Options that a replay does not read: every recorded candidate has its turn, and nothing runs."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep")(sweep)


def sweep(
    context: typer.Context,
    gpu: Annotated[str, typer.Option(help="GPU to sweep: h200, h100, ... or a full device name.")],
    model: Annotated[
        str, typer.Option(help="A model of `autotune models`, or the path of a Hugging Face config.json.")
    ] = "",
    shape: Annotated[
        str, typer.Option(help="A problem instead of a model: E=128,N=768,K=2048,topk=8,scheme=fp8_block128.")
    ] = "",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size: divides the intermediate size.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help=EP_HELP)] = 1,
    tokens: Annotated[
        str,
        typer.Option(help=f"Token counts, comma-separated. Default: {','.join(map(str, DEFAULT_TOKENS))}."),
    ] = "",
    concurrency: Annotated[
        str, typer.Option(help="Concurrencies to state the best single backend for, comma-separated.")
    ] = "1,8,32,128",
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint format, if it is not the model's own: fp8, compressed-tensors.")
    ] = "",
    routing: Annotated[
        str, typer.Option(help="How tokens spread over experts: uniform, or zipf:S with an exponent S.")
    ] = "uniform",
    backends: Annotated[
        str,
        typer.Option(
            help="Only these backends are tried and stand in the table, comma-separated. Default: all."
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="Time for the sweep: 90s, 5m, 1h, or `none`. "
            "Half screens; then the finalists are timed again, to the end even where that takes longer. "
            "Not in a replay."
        ),
    ] = "5m",
    trials: Annotated[
        int, typer.Option(min=1, help="Candidates screened per token count, at most. Not in a replay.")
    ] = 60,
    margin: Annotated[
        float, typer.Option(help="How far a speed-up's lower bound must clear 1 to win.")
    ] = 0.01,
    seed: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="Seeds the search and the inputs. Not in a replay.")
    ] = 0,
    db: Annotated[
        str, typer.Option(help="SQLAlchemy URL. Default: AUTOTUNE_DB, or sqlite:///autotune.db.")
    ] = "",
    replay: Annotated[
        bool, typer.Option("--replay", help="Answer from recorded evidence, without a GPU.")
    ] = False,
    evidence: Annotated[
        Path | None, typer.Option(help="A recording to replay instead of the one shipped.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest run of this problem and routing.")
    ] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="Publish the table to the channel `stable`.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a busy GPU before refusing. Not in a replay.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the routing table as JSON.")] = False,
) -> None:
    """Measure every backend on this GPU, choose per token count, and keep the evidence.

    On a machine without a GPU the same sweep is answered from recorded evidence, and says so. Interrupted
    with Ctrl-C or killed, it continues with --resume; nothing that was measured is lost.

    Example: autotune sweep --gpu h200 --model qwen-moe-fp8 --budget 5m --publish
    """

    from rich.console import Console

    from autotune.cli.problems import parse_backends, parse_duration, parse_numbers, parse_routing, resolve
    from autotune.vocabulary.environment import gpu_name
    from autotune.vocabulary.errors import UsageError

    console = Console(stderr=True, highlight=False)
    device = gpu_name(gpu)
    problem, kind = resolve(model, shape, tp, ep, checkpoint)
    counts = parse_numbers("--tokens", tokens, most=1 << 17) if tokens else DEFAULT_TOKENS
    profiles = parse_numbers("--concurrency", concurrency)
    only = parse_backends(backends)
    seconds = parse_duration(budget)
    routing = parse_routing(routing)
    if not 0 < margin < 1:
        raise UsageError(f"--margin must lie between 0 and 1, not {margin}.", "0.01 is the default.")
    _require_packages()

    from autotune.choose.sweep import SweepPlan
    from autotune.db.engine import open_database
    from autotune.db.store import DatabaseStore

    runner = _runner(device, problem, kind, routing, replay, evidence, wait, console)
    if runner.machine.recording:
        _tell_without_effect(context, console)
    try:
        database = open_database(db or Settings.from_env().db)
        store = DatabaseStore(database)
        run = None
        if resume:
            runs = list(store.runs(problem, runner.machine.environment, kind, routing))
            run = runs[-1] if runs else None
            if run is None:
                console.print("no run of this problem and routing to resume here: starting a new one")
        plan = SweepPlan(
            problem=problem,
            checkpoint=kind,
            tokens=tuple(counts),
            routing=routing,
            budget_s=seconds,
            # Recorded candidates cost nothing: all of them have their turn.
            trials=trials if not runner.machine.recording else 1 << 20,
            margin=margin,
            backends=only,
            seed=seed,
            run=run,
            refine=not tokens,
        )
        result = _execute(plan, runner, store, console)
    finally:
        runner.close()
    _report(plan, result, profiles, runner, console, as_json)
    if result.table is None:
        return
    if publish:
        _publish(database, result.table, plan, runner, db or None, console)
    else:
        _tell_unpublished(database, result.table, runner, console)


def _listed(names: set[str], most: int = 3) -> str:
    some = sorted(names)[:most]
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return "; ".join([*some, *more]) or "no measurement at all"


def _tell_without_effect(context: typer.Context, console: Any) -> None:
    given = [
        f"--{name}"
        for name in NO_EFFECT
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    ]
    if given:
        verb = "has" if len(given) == 1 else "have"
        console.print(
            f"replay: {', '.join(given)} {verb} no effect: every recorded candidate has its turn, and "
            "nothing runs on a GPU"
        )


def _require_packages() -> None:
    import importlib.util

    from autotune.vocabulary.errors import MissingDependencyError
    from autotune.vocabulary.installing import install_extra

    missing = [
        name
        for name in ("numpy", "optuna", "sqlalchemy", "alembic")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise MissingDependencyError(f"Sweeping needs {', '.join(missing)}.", install_extra("tune"))


def _runner(
    device: str,
    problem: Problem,
    checkpoint: Checkpoint,
    routing: str,
    replay: bool,
    evidence: Path | None,
    wait: float,
    console: Any,
) -> Runner:
    from rich.markup import escape

    from autotune.measure.detect import visible_gpu
    from autotune.vocabulary.errors import NotFoundError, WrongGpuError

    found = None if replay else visible_gpu()
    if found is not None:
        if found != device:
            raise WrongGpuError(
                f"This machine has {found}, not {device}.",
                f"Sweep it with --gpu {found}, or answer from recorded evidence with --replay.",
            )
        from autotune.measure.gpu_runner import GpuRunner

        return GpuRunner(wait_s=wait, tell=lambda text: console.print(f"[yellow]{text}[/]"))

    from autotune.measure.evidence_file import find_evidence, read_evidence
    from autotune.measure.replay import ReplayRunner

    found_evidence = find_evidence(problem, device, evidence)
    why = "as asked" if replay else "this machine has no GPU"
    if found_evidence is None and evidence is not None:
        there = _listed({f"{m.problem} on {m.environment.gpu}" for m in read_evidence(evidence)[1]})
        raise NotFoundError(
            f"There is no recorded evidence for {problem} on {device} in {evidence}: it has {there}.",
            "If it should have more, it was cut short: fetch or copy it again. Or give another recording.",
        )
    if found_evidence is None:
        raise NotFoundError(
            f"Nothing can be measured ({why}), and there is no recorded evidence for {problem} on {device}.",
            "Run the sweep on that GPU, or see `autotune models` for what is recorded.",
        )
    header, measurements = found_evidence
    fitting = [m for m in measurements if m.checkpoint == checkpoint and m.routing == routing]
    environments = {m.environment for m in fitting}
    if len(environments) != 1:
        kinds = sorted({f"{m.checkpoint} with routing {m.routing}, {m.environment}" for m in measurements})
        raise NotFoundError(
            f"There is no one recording for checkpoint {checkpoint} and routing {routing}: "
            f"{'none' if not environments else 'several environments'}.",
            f"Recorded for {problem}: {'; '.join(kinds)}.",
        )
    runner = ReplayRunner(header, fitting)
    console.print(f"[bold yellow]replay[/] ({why}): {escape(runner.machine.recording)}")
    return runner


def _execute(plan: SweepPlan, runner: Runner, store: Any, console: Any) -> SweepResult:
    from autotune.choose.sweep import Sweep
    from autotune.cli.interrupts import Interrupts
    from autotune.cli.sweep_display import SweepDisplay
    from autotune.vocabulary.errors import (
        DamagedDatabaseError,
        DatabaseError,
        MovedDatabaseError,
        is_interrupt,
    )

    # A plain kill and a closed terminal end like Ctrl-C: workers stopped, the run named.
    interrupts = Interrupts()
    # A replay takes no GPU time: a budget would mean nothing.
    budget_s = None if runner.machine.recording else plan.budget_s
    with SweepDisplay(console, budget_s, interrupts.check) as display:
        job = Sweep(plan, runner, store, display)
        try:
            try:
                return job.execute()
            except Exception as error:
                if is_interrupt(error):
                    raise KeyboardInterrupt from error
                raise
        except KeyboardInterrupt:
            display.stop()
            console.print(f"interrupted: {_kept(job, runner)} Continue with the same command and --resume.")
            runner.close()
            sys.exit(INTERRUPTED)
        except DamagedDatabaseError:
            raise  # there is nothing to continue from
        except MovedDatabaseError as error:
            back = "With the first file back, the same command and --resume continue from there."
            stored = job.result.new + job.result.known
            raise MovedDatabaseError(error.message, f"{error.hint} {back if stored else ''}") from error
        except DatabaseError as error:
            display.stop()
            raise DatabaseError(
                error.message,
                f"{error.hint} {_kept(job, runner)} Continue with the same command and --resume.".lstrip(),
            ) from error


def _kept(job: Sweep, runner: Runner) -> str:
    if runner.machine.recording:
        return f"{counted(job.result.new + job.result.known, 'recorded measurement')} kept."
    return f"{counted(job.result.new, 'measurement')} of run {job.run} kept."


def _report(
    plan: SweepPlan, result: SweepResult, profiles: list[int], runner: Runner, console: Any, as_json: bool
) -> None:
    import json

    from rich.console import Console

    from autotune.cli.tables import render_static, render_table

    if result.table is None:
        return
    kept = f"run {result.run}: {counted(result.new, 'new measurement')}"
    if runner.machine.recording:
        answered = counted(result.new + result.known, "recorded measurement")
        kept = f"replayed: {answered}, none of them new evidence"
    console.print(f"{kept}; table {result.table.digest[:12]}")
    for sentence in _other_counts(plan, result.table, result.unproven):
        console.print(sentence)
    if as_json:
        print(json.dumps(result.table.to_json_data(), indent=2))
        return
    out = Console(highlight=False)
    out.print(render_table(result.table))
    out.print(render_static(result.table, profiles))


def _other_counts(plan: SweepPlan, table: RoutingTable, unproven: list[int]) -> list[str]:
    """Where the table's token counts are not those that were asked for, and why."""
    sentences = []
    more = [route.tokens for route in table.routes if route.tokens not in plan.tokens]
    if more:
        listing = ", ".join(map(str, more))
        sentences.append(
            f"the table also has {counted(len(more), 'token count')} ({listing}) from what this database "
            "holds of earlier runs: a table is made of all evidence on record"
        )
    if unproven:
        of = f" of {', '.join(sorted(plan.backends))}" if plan.backends else ""
        listing = ", ".join(map(str, unproven))
        sentences.append(f"no route at {listing} tokens: there is no final measurement{of}")
    return sentences


def _tell_unpublished(database: Any, table: RoutingTable, runner: Runner, console: Any) -> None:
    """Say what uses the table although it was not published now, and how to publish it."""
    from autotune.client.sources import starter
    from autotune.db.revisions import RevisionRepository

    with database.read() as session:
        published = RevisionRepository(session).newest(
            gpu=table.environment.gpu, problem=table.problem, checkpoint=table.checkpoint
        )
    alike = [r for r in published if r.environment == table.environment and r.channels]
    same = [r for r in alike if r.table_digest == table.digest]
    if same:
        points = "; ".join(f"{' and '.join(r.channels)} at revision {r.number}" for r in same)
        console.print(f"published already: this very table is what answers ({points})")
        return
    again = "--publish" if runner.machine.recording else "--resume --publish"
    how = f"The same command with {again} publishes it."
    if alike:
        points = "; ".join(f"{' and '.join(r.channels)} at revision {r.number}" for r in alike)
        console.print(f"not published: another table goes on answering ({points}). {how}")
        return
    if any(t.table is not None and t.table.digest == table.digest for t in starter().tables):
        console.print(
            f"not published: it is the starter table, which answers where no other source does. {how}"
        )
        return
    console.print(f"not published: nothing uses this table yet. {how}")


def _publish(
    database: Any, table: RoutingTable, plan: SweepPlan, runner: Runner, db: str | None, console: Any
) -> None:
    import getpass

    from autotune.cli.publishing_lookup import undo_command
    from autotune.publish import publish as publish_table
    from autotune.vocabulary.text import printable

    # Neither is the user's to say here, so whatever an account or a recording calls itself must do.
    reason = f"replay of {runner.machine.recorded}" if runner.machine.recording else "sweep"
    if plan.backends is not None:
        reason += f", of {', '.join(sorted(plan.backends))} only"
    try:
        author = getpass.getuser()
    except (KeyError, OSError):
        author = "unknown"
    with database.write() as session:
        made = publish_table(
            session,
            table,
            problem=table.problem,
            environment=table.environment,
            checkpoint=table.checkpoint,
            author=printable(author).strip() or "unknown",
            reason=printable(reason),
        )
    number, channel = made.revision.number, made.channel
    if made.changed:
        console.print(f"published as revision {number} on channel {channel}; undo with:")
        # One line, to be copied.
        console.print(undo_command(database, made, db), soft_wrap=True, markup=False)
    else:
        console.print(
            f"channel {channel} points at this table already (revision {number}): nothing to publish"
        )


__all__ = ["Checkpoint", "add_to"]
