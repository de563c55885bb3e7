"""The search space and the study of one token count."""

from __future__ import annotations

import optuna
import pytest

from autotune.choose.space import Space
from autotune.choose.study import TokenStudy
from autotune.kernels.specs import fits
from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    TritonCandidate,
)
from autotune.vocabulary.measurement import Measurement, Status
from autotune.vocabulary.problem import Problem
from tests.choose.evidence import screen
from tests.factories import BASELINE, H200, PROBLEM, make_measurement, triton

BF16 = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=bf16")


def space(tokens: int = 64, problem: Problem = PROBLEM, only: frozenset[str] | None = None) -> Space:
    return Space(problem, tokens, H200, only)  # type: ignore[arg-type]


def drawn(made: Space, count: int = 60) -> list[Candidate]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [made.suggest(study.ask()) for _ in range(count)]


@pytest.mark.parametrize("problem", [PROBLEM, BF16])
@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_candidates_and_parameters_are_two_forms_of_one_thing(problem: Problem, tokens: int) -> None:
    made = space(tokens, problem)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(60):
        trial = study.ask()
        candidate = made.suggest(trial)
        placed = made.parameters(candidate)
        assert placed is not None
        assert placed[0] == trial.params
        assert placed[1] == trial.distributions


def test_what_is_proposed_depends_on_the_problem() -> None:
    block, plain = drawn(space(4096)), drawn(space(4096, BF16))
    tiles = [c.tile if isinstance(c, TritonCandidate) else c.gate_up for c in block]  # type: ignore[union-attr]
    assert {tile.block_k for tile in tiles} == {64, 128}
    assert {c.backend for c in plain} == {"triton", "fused_triton"}
    assert not any(c.swap_ab for c in plain if isinstance(c, TritonCandidate)), "vLLM swaps FP8 only"
    assert any(c.swap_ab for c in plain if isinstance(c, FusedTritonCandidate))
    assert any(c.swap_ab for c in block if isinstance(c, TritonCandidate))
    few = drawn(space(1))
    assert all(c.tile.block_m == 16 for c in few if isinstance(c, TritonCandidate))


def test_candidates_outside_the_space_have_no_parameters() -> None:
    made = space()
    assert made.parameters(DeepGemmCandidate()) is None
    assert made.parameters(triton(16, 128, 128, num_stages=7)) is None
    assert space(only=frozenset({"fused_triton"})).parameters(triton(16)) is None


def test_seeds_are_translated_between_the_two_kernels() -> None:
    seeds = space().seeds(BASELINE, [triton(16, 128, swap_ab=True)])
    assert seeds[0] == BASELINE
    fused = [c for c in seeds if isinstance(c, FusedTritonCandidate)]
    assert [(c.gate_up.block_n, c.down.block_n, c.swap_ab) for c in fused] == [
        (64, 128, False),
        (64, 128, True),
    ]
    assert space().fixed() == [DeepGemmCandidate()]
    assert space(only=frozenset({"deep_gemm"})).seeds(BASELINE, []) == []


def study(recorded: list[Candidate] | None = None, only: frozenset[str] | None = None) -> TokenStudy:
    return TokenStudy(space(only=only), H200, 0, recorded)


def test_proposals_are_new_feasible_and_begin_with_the_seeds() -> None:
    made = study()
    first = made.propose(8, [BASELINE, DeepGemmCandidate(), BASELINE])
    rest = made.propose(30)
    assert first[:2] == [BASELINE, DeepGemmCandidate()]
    assert len({c.digest for c in first + rest}) == 38
    assert all(fits(c, PROBLEM, H200).ok for c in first + rest)


def speed(candidate: Candidate) -> float:
    return 1.5 if isinstance(candidate, TritonCandidate) and candidate.swap_ab else 0.8


def answered(made: TokenStudy, rounds: int) -> list[Measurement]:
    told = []
    for _ in range(rounds):
        for candidate in made.propose(8):
            told.append(screen(64, candidate, speed(candidate)))
            made.tell(told[-1])
    return told


def test_a_study_is_rebuilt_from_measurements() -> None:
    first = study()
    told = answered(first, 5)
    rebuilt = study()
    for m in told:
        rebuilt.tell(m)
    assert rebuilt.ranking() == first.ranking()
    assert rebuilt.best is not None
    trials = rebuilt._study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    assert len(trials) == len(told)
    assert not {c.digest for c in rebuilt.propose(16)} & {m.candidate.digest for m in told}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_search_learns_and_goes_on(seed: int) -> None:
    made = TokenStudy(space(), H200, seed)
    rounds = []
    for _ in range(8):
        batch = made.propose(8)
        rounds.append([speed(c) > 1 for c in batch])
        for candidate in batch:
            made.tell(screen(64, candidate, speed(candidate)))
    assert [len(batch) for batch in rounds] == [8] * 8, "it does not end while there are new candidates"
    # A quarter of random candidates is fast.
    assert sum(map(sum, rounds[2:])) >= 20


def test_failures_do_not_break_it() -> None:
    made = study()
    for _ in range(4):
        for candidate in made.propose(8):
            made.tell(make_measurement(tokens=64, candidate=candidate, status=Status.OUT_OF_RESOURCES))
    assert made.ranking() == []
    assert made.best is None
    assert len(made.propose(8)) == 8


def test_replay_proposes_all_that_is_recorded_and_nothing_else() -> None:
    recorded: list[Candidate] = [triton(m, n) for m in (16, 32, 64) for n in (32, 64, 128)]
    recorded.append(DeepGemmCandidate())
    made = study(recorded)
    seen: list[Candidate] = []
    while batch := made.propose(4, [triton(128), triton(16, 64)]):
        for candidate in batch:
            made.tell(screen(64, candidate, 1.1))
        seen += batch
    assert seen[0] == triton(16, 64)
    assert sorted(c.digest for c in seen) == sorted(c.digest for c in recorded)
    assert made.exhausted


def test_only_backends_without_options_exhaust_at_once() -> None:
    made = study(only=frozenset({"deep_gemm"}))
    assert made.propose(8, made.space.fixed()) == [DeepGemmCandidate()]
    assert made.exhausted


def test_a_short_reduction_starts_with_broad_blocks() -> None:
    r1 = Problem.parse("E=256,N=256,K=7168,topk=8,scheme=fp8_block128")
    for problem, broadest in ((r1, 256), (PROBLEM, 128)):
        seeds = [c for c in space(16, problem).seeds(BASELINE, []) if isinstance(c, FusedDecodeCandidate)]
        assert max(c.down_block_n for c in seeds) == broadest
        assert all(fits(c, problem, H200).ok for c in seeds)


def test_seeds_that_cannot_fit_are_not_proposed() -> None:
    """Holding 14,336 steps of an expert's weights in registers: the compiler took minutes, then failed."""
    mixtral = Problem.parse("E=8,N=14336,K=4096,topk=2,scheme=fp8_tensor")
    made = space(256, mixtral)
    seeds = made.seeds(BASELINE, [])
    held = [c for c in seeds if isinstance(c, FusedDecodeCandidate) and c.down_stages == 0]
    assert held
    proposed = TokenStudy(made, H200, 0).propose(40, [*made.fixed(), *seeds])
    assert not set(map(str, held)) & set(map(str, proposed))
    assert all(fits(candidate, mixtral, H200).ok for candidate in proposed)
    assert {c.backend for c in proposed} >= {"fused_decode", "vllm_cutlass"}


@pytest.mark.parametrize(("tokens", "tall"), [(8, 16), (48, 32), (128, 64)])
def test_the_decode_kernel_starts_with_blocks_as_tall_as_an_experts_rows(tokens: int, tall: int) -> None:
    """Mixtral's experts have 2, 12 and 32 rows there: a shorter block would read the weights again."""
    mixtral = Problem.parse("E=8,N=14336,K=4096,topk=2,scheme=fp8_tensor")
    made = space(tokens, mixtral)
    rows = {c.block_m for c in made.seeds(BASELINE, []) if isinstance(c, FusedDecodeCandidate)}
    assert max(rows) == tall
    searched = {c.block_m for c in drawn(made, 200) if isinstance(c, FusedDecodeCandidate)}
    assert {tall, max(8, tall // 2)} <= searched
    assert max(searched) <= 2 * tall


@pytest.mark.parametrize(
    ("tokens", "scheme", "crowded"),
    [
        (16, "fp8_tensor", {0}),
        (17, "fp8_tensor", {32}),
        (128, "fp8_tensor", {32}),
        (64, "bf16", {32}),
        (64, "fp8_block128", {0}),
    ],
)
def test_crowded_experts_are_read_for_more_rows_at_a_time(
    tokens: int, scheme: str, crowded: set[int]
) -> None:
    """No choice of the search's: with the uniform routing of a sweep it would be worth nothing."""
    made = space(tokens, Problem.parse(f"E=128,N=768,K=2048,topk=8,scheme={scheme}"))
    found = [c for c in (*made.seeds(BASELINE, []), *drawn(made, 200)) if isinstance(c, FusedDecodeCandidate)]
    assert {c.crowded_block_m for c in found if c.block_m < 32} == crowded
    assert {c.crowded_block_m for c in found if c.block_m >= 32} <= {0}
    # A neighbour's winner is proposed as it would be here.
    bare = [c.model_copy(update={"crowded_block_m": 0}) for c in found if c.block_m < 32][:3]
    seeds = [c for c in made.seeds(BASELINE, list(bare)) if isinstance(c, FusedDecodeCandidate)]
    assert bare
    assert {c.crowded_block_m for c in seeds if c.block_m < 32} == crowded
    # What was measured without it is learned from all the same.
    for candidate in found:
        assert made.parameters(candidate) is not None
        assert made.parameters(candidate) == made.parameters(
            candidate.model_copy(update={"crowded_block_m": 0})
        )


@pytest.mark.parametrize("scheme", ["fp8_tensor", "fp8_channel", "fp8_block128", "bf16"])
def test_where_experts_have_many_rows_tall_tiles_are_tried_first(scheme: str) -> None:
    problem = Problem.parse(f"E=128,N=768,K=2048,topk=8,scheme={scheme}")

    def tall(tokens: int) -> list[Candidate]:
        seeds = space(tokens, problem).seeds(DeepGemmCandidate(), [])  # which is translated into nothing
        return [c for c in seeds if isinstance(c, FusedTritonCandidate) and c.gate_up.block_m >= 64]

    assert tall(256) == []  # 16 rows for an expert
    made = space(512, problem)
    for candidate in tall(512):
        assert fits(candidate, problem, H200).ok
        assert made.parameters(candidate) is not None
    assert len(tall(512)) == 7
    assert {c.digest for c in tall(8192)} == {c.digest for c in tall(512)}
