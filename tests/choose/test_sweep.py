"""Whole sweeps over a simulated runner: made-up times, real search, choice and bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.choose.routes import build_table
from autotune.choose.sweep import Sweep, SweepPlan
from autotune.measure.task import Machine, Task
from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
)
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.errors import (
    AutotuneError,
    DatabaseError,
    GpuNotReadyError,
    NotFoundError,
    UsageError,
)
from autotune.vocabulary.measurement import Checkpoint, Measurement, Stage, Status
from autotune.vocabulary.problem import Problem, Scheme
from autotune.vocabulary.table import Verdict
from tests.choose.simulated import BASELINE, ENVIRONMENT, ListStore, Quiet, SimulatedRunner
from tests.factories import H200, PROBLEM, make_measurement, triton


def planted(candidate: Candidate, tokens: int) -> float:
    """vLLM's kernel with Swap-AB and 16 rows is 30% faster up to 64 tokens; nothing is above that."""
    if candidate == BASELINE:
        return 1.0
    if isinstance(candidate, TritonCandidate) and tokens <= 64:
        return 0.9 + 0.4 * (candidate.swap_ab and candidate.tile.block_m == 16)
    return 0.8


def plan(tokens: tuple[int, ...] = (1, 8, 64, 1024), **fields: object) -> SweepPlan:
    values = {"problem": PROBLEM, "checkpoint": "fp8", "tokens": tokens, "trials": 24, "budget_s": None}
    return SweepPlan(**{**values, **fields})  # type: ignore[arg-type]


def keys(store: ListStore) -> Counter[tuple[int, str, Stage, int]]:
    return Counter((m.tokens, m.candidate.digest, m.stage, m.process) for m in store.rows.values())


def test_it_finds_the_planted_winner() -> None:
    runner, store = SimulatedRunner(planted), ListStore()
    result = Sweep(plan(), runner, store, Quiet()).execute()
    assert result.table is not None
    assert [r.tokens for r in result.table.routes] == [1, 8, 64, 1024]
    for route in result.table.routes[:3]:
        assert route.verdict is Verdict.WIN
        assert isinstance(route.winner, TritonCandidate)
        assert (route.winner.swap_ab, route.winner.tile.block_m) == (True, 16)
        assert route.speedup is not None
        assert route.speedup.median == pytest.approx(1.3, rel=0.02)
    assert result.table.routes[3].verdict is Verdict.NO_BENEFIT
    assert result.new == len(store.rows)
    assert max(keys(store).values()) == 1
    finals = [t for t in runner.tasks if t.stage is Stage.FINAL]
    assert {t.process for t in finals} == {0, 1, 2}
    assert {t.seed for t in finals} == {101, 102, 103}, "fresh inputs in every process"


class Interrupting(SimulatedRunner):
    """Interrupted, as by Ctrl-C, before its n-th measurement."""

    left = 0

    def measure(self, task: Task) -> Iterator[Measurement]:
        for m in super().measure(task):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield m


@pytest.mark.parametrize("after", [1, 30, 100, 125])
def test_an_interrupted_sweep_resumes_without_measuring_twice(after: int) -> None:
    store = ListStore()
    runner = Interrupting(planted)
    runner.left = after
    first = Sweep(plan(), runner, store, Quiet())
    with pytest.raises(KeyboardInterrupt):
        first.execute()
    assert len(store.rows) == after
    kept = dict(store.rows)
    again = SimulatedRunner(planted)
    result = Sweep(plan(run=first.run), again, store, Quiet()).execute()
    assert result.run == first.run
    assert result.table is not None
    assert kept.items() <= store.rows.items()
    assert max(keys(store).values()) == 1
    asked = {(t.tokens, c.digest, t.stage, t.process) for t in again.tasks for c in t.candidates}
    assert not asked & {(m.tokens, m.candidate.digest, m.stage, m.process) for m in kept.values()}
    assert result.table.routes[0].verdict is Verdict.WIN


def test_failing_candidates_are_statuses() -> None:
    def fail(candidate: Candidate, tokens: int) -> Status | None:
        if candidate.backend == "deep_gemm":
            return Status.UNSUPPORTED
        return Status.CRASHED if candidate.backend.startswith("fused_") else None

    store = ListStore()
    result = Sweep(plan(), SimulatedRunner(planted, fail=fail), store, Quiet()).execute()
    assert result.table is not None
    assert result.table.routes[0].verdict is Verdict.WIN
    shown = {a.candidate.backend for r in result.table.routes for a in r.alternatives}
    assert shown <= {"triton", "flashinfer_cutlass"}
    statuses = {m.candidate.backend: m.status for m in store.rows.values()}
    assert statuses["deep_gemm"] is Status.UNSUPPORTED
    assert statuses["fused_triton"] is Status.CRASHED


class PerTensor(SimulatedRunner):
    """vLLM would run FlashInfer; its Triton backend would take a tile that no draw finds."""

    OWN = TritonCandidate(tile=Tile(block_m=64, block_n=32, block_k=64, group_m=4, num_warps=2), swap_ab=True)

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        return FlashinferCutlassCandidate()

    def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
        return self.OWN


def test_vllms_tile_starts_the_search_and_its_best_backend_is_retimed_far_behind_ours() -> None:
    """A static choice is among vLLM's backends, however much faster a kernel of ours is."""

    def speed(candidate: Candidate, tokens: int) -> float:
        if candidate.backend == "fused_triton":
            return 3.0
        return 1.2 if candidate == PerTensor.OWN else 0.5

    problem = PROBLEM.model_copy(update={"scheme": Scheme.FP8_TENSOR})
    runner, store = PerTensor(speed), ListStore()
    result = Sweep(plan((8,), problem=problem, trials=12), runner, store, Quiet()).execute()
    finals = {m.candidate for m in store.rows.values() if m.stage is Stage.FINAL}
    assert PerTensor.OWN in finals
    assert result.table is not None
    (route,) = result.table.routes
    assert route.winner.backend == "fused_triton"
    assert PerTensor.OWN in {a.candidate for a in route.alternatives}


class Choosy(SimulatedRunner):
    """Has no 8 tokens, and its baseline fails at 64."""

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        if tokens == 8:
            raise NotFoundError("The recording has no 8 tokens.")
        return super().baseline(problem, checkpoint, tokens)

    def measure(self, task: Task) -> Iterator[Measurement]:
        if task.tokens == 64:
            raise AutotuneError("The baseline cannot be measured at 64 tokens.")
        return super().measure(task)


def test_token_counts_that_cannot_be_had_are_left_out_and_named() -> None:
    progress = Quiet()
    result = Sweep(plan(), Choosy(planted), ListStore(), progress).execute()
    assert result.table is not None
    assert [r.tokens for r in result.table.routes] == [1, 1024]
    assert set(result.skipped) == {8, 64}
    assert [note for note in progress.notes if "left out" in note and "is left" not in note] == [
        "left out, as they cannot be measured: 8 tokens. The recording has no 8 tokens.",
        "64 tokens left out: The baseline cannot be measured at 64 tokens.",
    ]
    with pytest.raises(UsageError, match="None of the token counts"):
        Sweep(plan((8,)), Choosy(planted), ListStore(), Quiet()).execute()


def test_resuming_is_advised_only_where_it_leads_to_finals() -> None:
    class Throttled(SimulatedRunner):
        """Its GPU can no longer be measured once the finals begin."""

        def measure(self, task: Task) -> Iterator[Measurement]:
            if task.stage is Stage.FINAL:
                raise GpuNotReadyError("The GPU is throttled.", "Wait.")
            yield from super().measure(task)

    store = ListStore()
    with pytest.raises(NotFoundError, match="no final evidence") as caught:
        Sweep(plan((1, 8), run="one"), Throttled(planted), store, Quiet()).execute()
    assert "Not measured: 1, 8 tokens" in caught.value.hint
    assert "--resume" in caught.value.hint
    resumed = Sweep(plan((1, 8), run="one"), SimulatedRunner(planted), store, Quiet()).execute()
    assert resumed.table is not None

    failing = SimulatedRunner(planted, fail=lambda candidate, tokens: Status.CRASHED)
    with pytest.raises(NotFoundError, match="no final evidence") as caught:
        Sweep(plan((1, 8)), failing, ListStore(), Quiet()).execute()
    assert "--resume" not in caught.value.hint
    assert "other --backends" in caught.value.hint


def test_only_the_backends_asked_for_are_tried() -> None:
    store = ListStore()
    Sweep(plan((8,), backends=frozenset({"deep_gemm"})), SimulatedRunner(planted), store, Quiet()).execute()
    assert {m.candidate for m in store.rows.values()} == {DeepGemmCandidate()}


class Recorded(SimulatedRunner):
    """Answers as a recording does: every candidate that was screened or re-timed, and no other."""

    def __init__(self, rows: list[Measurement]) -> None:
        super().__init__(planted)
        self.rows = rows
        self.machine = replace(self.machine, recording="a recording", recorded="so many")

    def recorded(self, problem: Problem, tokens: int, stage: Stage = Stage.SCREEN) -> list[Candidate]:
        found = {m.candidate.digest: m.candidate for m in self.rows if (m.tokens, m.stage) == (tokens, stage)}
        return list(found.values())

    def measure(self, task: Task) -> Iterator[Measurement]:
        for m in self.rows:
            if (m.tokens, m.stage, m.process) == (task.tokens, task.stage, task.process) and (
                m.candidate in task.candidates
            ):
                yield m


def deep_at_the_end(candidate: Candidate, tokens: int) -> float:
    return 2.0 if candidate.backend == "deep_gemm" and tokens == 1024 else planted(candidate, tokens)


def test_a_table_of_some_backends_holds_no_other_whatever_is_on_record() -> None:
    """Live and replayed, into a new database and one that holds everything."""
    whole = ListStore()
    full = Sweep(plan(), SimulatedRunner(deep_at_the_end), whole, Quiet()).execute()
    assert full.table is not None
    assert full.table.routes[-1].winner == DeepGemmCandidate()
    some = frozenset({"triton"})
    rows = list(whole.rows.values())
    digests = set()
    for store in (ListStore(), whole):
        table = Sweep(plan(backends=some, trials=1000), Recorded(rows), store, Quiet()).execute().table
        assert table is not None
        digests.add(table.digest)
        standing = {r.winner for r in table.routes} | {r.baseline for r in table.routes}
        standing |= {a.candidate for r in table.routes for a in r.alternatives}
        assert {c.backend for c in standing} == {"triton"}
        assert [(r.tokens, r.verdict) for r in table.routes][:3] == [(n, Verdict.WIN) for n in (1, 8, 64)]
        assert table.routes[0].winner == full.table.routes[0].winner
    assert len(digests) == 1
    live = Sweep(plan(backends=some), SimulatedRunner(deep_at_the_end), whole, Quiet()).execute().table
    assert live is not None
    assert {a.candidate.backend for r in live.routes for a in r.alternatives} <= {"triton"}
    with pytest.raises(UsageError, match="no final measurements of vllm_cutlass"):
        Sweep(plan(backends=frozenset({"vllm_cutlass"})), Recorded(rows), ListStore(), Quiet()).execute()


def test_no_range_reaches_across_a_count_where_its_candidate_was_seen_losing() -> None:
    def evidence(tokens: int, stage: Stage, candidate: Candidate, us: float = 80.0) -> list[Measurement]:
        return [
            make_measurement(
                tokens=tokens, stage=stage, candidate=candidate, process=process, candidate_us=us
            )
            for process in range(3 if stage is Stage.FINAL else 1)
        ]

    winner = DeepGemmCandidate()
    rows = evidence(1, Stage.FINAL, winner) + evidence(64, Stage.FINAL, winner)
    fields = {"problem": PROBLEM, "environment": H200, "checkpoint": "fp8"}
    assert [r.first for r in build_table(rows, **fields).routes] == [1, 2]  # type: ignore[arg-type]
    # What an earlier sweep of other backends screened there says nothing of this one.
    rows += evidence(8, Stage.SCREEN, triton(), 120.0) + evidence(16, Stage.SCREEN, winner)
    assert [r.first for r in build_table(rows, **fields).routes] == [1, 2]  # type: ignore[arg-type]
    rows += evidence(32, Stage.SCREEN, winner, 101.0)
    assert [r.first for r in build_table(rows, **fields).routes] == [1, 64]  # type: ignore[arg-type]


def stepping(candidate: Candidate, tokens: int) -> float:
    """The baseline is half as fast from 513 tokens on, where tall tiles win; below, short ones do."""
    if not isinstance(candidate, TritonCandidate) or candidate == BASELINE:
        return 1.0 if candidate == BASELINE else 0.5
    tall = candidate.tile.block_m >= 64
    if tokens <= 512:
        return 0.8 if tall else 1.2
    return 1.9 if tall else 1.4


def test_a_winner_is_tried_from_just_above_the_count_where_it_loses() -> None:
    for refine, expected in (
        (False, [(256, 512), (1024, 1024)]),
        (True, [(256, 512), (513, 513), (514, 1024)]),
    ):
        store, runner = ListStore(), SimulatedRunner(stepping)
        made = plan((255, 512, 1024), refine=refine)
        table = Sweep(made, runner, store, Quiet()).execute().table
        assert table is not None
        assert [(r.first, r.last) for r in table.routes[1:]] == expected
        assert max(keys(store).values()) == 1
        # The recording answers the same: with the count between, and, where it has none, without.
        rows = list(store.rows.values())
        replayed = Sweep(
            replace(made, trials=1000, refine=True), Recorded(rows), ListStore(), Quiet()
        ).execute()
        assert replayed.table is not None
        assert replayed.table.digest == table.digest


def crossing(candidate: Candidate, tokens: int) -> float:
    """Short tiles win below 700 tokens, tall ones from there on: no step of the baseline."""
    if not isinstance(candidate, TritonCandidate) or candidate == BASELINE:
        return 1.0 if candidate == BASELINE else 0.7
    tall = candidate.tile.block_m >= 64
    return 1.2 if tall == (tokens >= 700) else 0.8


def test_a_count_that_was_added_is_no_reason_to_add_the_next() -> None:
    store, made = ListStore(), plan((256, 512, 1024), refine=True)
    first = Sweep(made, SimulatedRunner(crossing), store, Quiet())
    table = first.execute().table
    assert table is not None
    assert {m.tokens for m in store.rows.values()} == {256, 512, 513, 1024}
    again = Sweep(replace(made, run=first.run), SimulatedRunner(crossing), store, Quiet()).execute()
    assert again.new == 0
    assert again.table is not None
    assert again.table.digest == table.digest


def test_a_sweep_interrupted_between_the_plan_s_counts_is_completed() -> None:
    whole, made = ListStore(), plan((256, 512, 1024), refine=True, run="20261130T000000Z-aaaaaa")
    table = Sweep(made, SimulatedRunner(stepping), whole, Quiet()).execute().table
    assert table is not None
    order = [m.tokens for m in whole.rows.values()]
    for after in range(order.index(513), len(order)):
        store, runner = ListStore(), Interrupting(stepping)
        runner.left = after
        with pytest.raises(KeyboardInterrupt):
            Sweep(made, runner, store, Quiet()).execute()
        resumed = Sweep(made, SimulatedRunner(stepping), store, Quiet()).execute()
        assert resumed.new == len(order) - after
        assert keys(store) == keys(whole)
        assert resumed.table is not None
        assert resumed.table.digest == table.digest


def test_a_recording_s_counts_between_do_not_depend_on_the_margin_or_the_database() -> None:
    store, made = ListStore(), plan((256, 512, 1024), refine=True)
    Sweep(made, SimulatedRunner(stepping), store, Quiet()).execute()
    recorded = Recorded(list(store.rows.values()))
    used = ListStore()
    Sweep(replace(made, trials=1000), recorded, used, Quiet()).execute()
    for margin in (0.05, 0.95):
        asked = replace(made, trials=1000, margin=margin)
        digests = set()
        for kept in (ListStore(), used):
            table = Sweep(asked, recorded, kept, Quiet()).execute().table
            assert table is not None
            digests.add(table.digest)
        assert len(digests) == 1, margin


def test_what_wins_at_a_range_s_end_gets_the_count_before_that_measured_too() -> None:
    best = triton(16, 64, swap_ab=True)

    def speed(candidate: Candidate, tokens: int) -> float:
        return 1.0 if candidate == FlashinferCutlassCandidate() else 1.5 if candidate == best else 0.9

    class Late(SimulatedRunner):
        """The search begins with the best at 24 tokens, and no screening below finds it."""

        def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
            return FlashinferCutlassCandidate()

        def vllm_triton(self, problem: Problem, tokens: int) -> Candidate | None:
            return best if tokens == 24 else None

        def measure(self, task: Task) -> Iterator[Measurement]:
            screens = task.stage is Stage.SCREEN and task.tokens < 24
            left = tuple(c for c in task.candidates if not (screens and c == best))
            yield from super().measure(replace(task, candidates=left))

    table = Sweep(plan((8, 16, 24), trials=20), Late(speed), ListStore(), Quiet()).execute().table
    assert table is not None
    assert [(r.first, r.last, r.winner) for r in table.routes] == [
        (8, 8, best), (9, 16, best), (17, 24, best),
    ]  # fmt: skip


class Clock(SimulatedRunner):
    """A clock of its own: every measurement takes a second."""

    now = 0.0

    def measure(self, task: Task) -> Iterator[Measurement]:
        for m in super().measure(task):
            self.now += 1.0
            yield m


@pytest.mark.parametrize(("budget", "rounds"), [(10.0, 1), (1e6, 8)])
def test_screening_stops_at_half_the_budget(budget: float, rounds: int) -> None:
    runner, store = Clock(planted), ListStore()
    made = plan((8, 64), budget_s=budget, trials=60)
    result = Sweep(made, runner, store, Quiet(), clock=lambda: runner.now).execute()
    screened = [t for t in runner.tasks if t.stage is Stage.SCREEN]
    assert (len(screened) == 2) is (rounds == 1), "the first round always runs"
    assert len(screened) <= 2 * rounds
    assert result.table is not None, "and the finals make the evidence"
    assert any(t.stage is Stage.FINAL for t in runner.tasks)
    if rounds > 1:  # what a single round holds is up to the draw
        assert result.table.routes[0].verdict is Verdict.WIN


def test_the_number_of_trials_is_a_limit() -> None:
    store = ListStore()
    Sweep(plan((8, 64), trials=10), SimulatedRunner(planted), store, Quiet()).execute()
    screened = Counter(m.tokens for m in store.rows.values() if m.stage is Stage.SCREEN)
    assert screened == {8: 10, 64: 10}


class FullStore(ListStore):
    """A store whose disk is full after some measurements."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def append(self, measurement: Measurement) -> bool:
        if len(self.rows) >= self.room:
            raise DatabaseError("The database is full.", "Make room.")
        return super().append(measurement)


def test_a_store_that_refuses_ends_the_sweep() -> None:
    """Measuring on would waste the GPU's time, and leave out token counts without a word."""
    runner, store = SimulatedRunner(planted), FullStore(5)
    with pytest.raises(DatabaseError, match="full"):
        Sweep(plan(), runner, store, Quiet()).execute()
    assert len(store.rows) == 5
    assert len(runner.tasks) == 1


def test_a_narrower_sweep_keeps_what_is_on_record() -> None:
    store = ListStore()
    whole = Sweep(plan(), SimulatedRunner(planted), store, Quiet()).execute()
    narrow = Sweep(plan(tokens=(8,)), SimulatedRunner(planted), store, Quiet()).execute()
    assert whole.table is not None
    assert narrow.table is not None
    assert [r.tokens for r in narrow.table.routes] == [r.tokens for r in whole.table.routes]


def test_a_run_is_resumed_with_fewer_token_counts() -> None:
    store = ListStore()
    first = Sweep(plan(), SimulatedRunner(planted), store, Quiet()).execute()
    again = Sweep(plan(tokens=(8,), run=first.run), SimulatedRunner(planted), store, Quiet()).execute()
    assert first.table is not None
    assert again.table is not None
    assert [r.tokens for r in again.table.routes] == [r.tokens for r in first.table.routes]
    assert max(keys(store).values()) == 1


class Elsewhere(SimulatedRunner):
    """Measures in another environment."""

    def __init__(self, environment: Environment, absent: tuple[str, ...] = ()) -> None:
        super().__init__(
            planted, fail=lambda c, tokens: Status.UNSUPPORTED if c.backend == "deep_gemm" else None
        )
        self.machine = Machine(environment, "580", 2, absent=absent)

    def baseline(self, problem: Problem, checkpoint: Checkpoint, tokens: int) -> Candidate:
        return super().baseline(problem, checkpoint, tokens) if self.machine.environment.vllm else STAND_IN

    def measure(self, task: Task) -> Iterator[Measurement]:
        for m in super().measure(task):
            yield m.model_copy(update={"environment": self.machine.environment})


TILE = Tile(block_m=16, block_n=64, block_k=128)
STAND_IN = FusedTritonCandidate(gate_up=TILE, down=TILE)


def test_a_missing_library_leaves_its_backend_out_and_the_sweep_goes_on() -> None:
    quiet, store = Quiet(), ListStore()
    runner = Elsewhere(
        ENVIRONMENT.model_copy(update={"flashinfer": None}),
        ("FlashInfer 0.6.13 is installed but vLLM would not use it",),
    )
    result = Sweep(plan(), runner, store, quiet).execute()
    assert result.table is not None
    assert result.table.routes[0].verdict is Verdict.WIN
    assert "flashinfer_cutlass" not in {m.candidate.backend for m in store.rows.values()}
    assert any("FlashInfer 0.6.13 is installed" in note for note in quiet.notes)
    [flashinfer] = [note for note in quiet.notes if note.startswith("flashinfer_cutlass is left out")]
    assert "pip install flashinfer-python" in flashinfer
    # What only a GPU process can see is told once, not once a token count.
    assert quiet.notes.count("deep_gemm is left out: made to fail") == 1


def test_without_vllm_our_kernels_are_swept_against_a_stand_in() -> None:
    quiet, store = Quiet(), ListStore()
    runner = Elsewhere(ENVIRONMENT.model_copy(update={"vllm": None, "flashinfer": None}))
    result = Sweep(plan(), runner, store, quiet).execute()
    assert {m.candidate.backend for m in store.rows.values()} == {"fused_triton", "fused_decode"}
    assert result.table is not None
    assert result.table.environment.vllm is None
    assert {r.baseline for r in result.table.routes} == {STAND_IN}
    left_out = {note.split()[0] for note in quiet.notes if "is left out" in note}
    assert left_out == {"triton", "vllm_cutlass", "flashinfer_cutlass", "deep_gemm"}
    assert any("stands in" in note for note in quiet.notes)


def test_untuned_flashinfer_is_screened_and_never_final() -> None:
    store = ListStore()

    def planted_untuned(candidate: Candidate, tokens: int) -> float:
        return 9.0 if candidate == UNTUNED else planted(candidate, tokens)

    tensor = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_tensor")
    result = Sweep(
        replace(plan(), problem=tensor), SimulatedRunner(planted_untuned), store, Quiet()
    ).execute()
    measured = [m for m in store.rows.values() if m.candidate == UNTUNED]
    assert {m.stage for m in measured} == {Stage.SCREEN}
    assert {m.tokens for m in measured} == set(plan().tokens)
    assert result.table is not None
    for route in result.table.routes:
        assert route.winner != UNTUNED, "however fast it looks"
        [shown] = [a for a in route.alternatives if a.candidate == UNTUNED]
        assert shown.speedup.median == pytest.approx(9.0, rel=0.05)
        assert not shown.final
    # With block scales FlashInfer has one tactic: there is no untuned state to show.
    block = ListStore()
    Sweep(plan(), SimulatedRunner(planted), block, Quiet()).execute()
    assert UNTUNED not in {m.candidate for m in block.rows.values()}
    assert FlashinferCutlassCandidate() in {m.candidate for m in block.rows.values()}


UNTUNED = FlashinferCutlassCandidate(tuned=False)


class Trapping(SimulatedRunner):
    """FlashInfer's module ends every process that calls it; deep_gemm raises, at up to 64 tokens."""

    def __init__(self) -> None:
        super().__init__(planted, fail=self._fail)

    @staticmethod
    def _fail(candidate: Candidate, tokens: int) -> Status | None:
        raises = candidate.backend == "deep_gemm" and tokens <= 64
        return Status.CRASHED if raises or candidate.backend == "flashinfer_cutlass" else None

    def measure(self, task: Task) -> Iterator[Measurement]:
        for m in super().measure(task):
            trapped = m.candidate.backend == "flashinfer_cutlass"
            yield m.model_copy(update={"reason": "the process ended with signal SIGILL"}) if trapped else m


def test_what_ends_its_process_everywhere_is_left_out_from_the_third_count_on() -> None:
    quiet, store = Quiet(), ListStore()
    result = Sweep(plan(), Trapping(), store, quiet).execute()
    assert result.table is not None
    tried = {
        backend: {m.tokens for m in store.rows.values() if m.candidate.backend == backend}
        for backend in ("flashinfer_cutlass", "deep_gemm")
    }
    assert len(tried["flashinfer_cutlass"]) == 2
    # One that only raises costs no process, and may run at larger counts.
    assert tried["deep_gemm"] == {1, 8, 64, 1024}
    [note] = [n for n in quiet.notes if "from here on" in n]
    assert note.startswith("flashinfer_cutlass is left out")
    assert "SIGILL" in note
