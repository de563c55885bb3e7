"""Candidates: what they hold, and that their digests name their content."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.vocabulary.candidate import (
    BACKENDS,
    BackendName,
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
    VllmCutlassCandidate,
    parse_candidate,
)

SMALL, LARGE = (
    Tile(block_m=16, block_n=64, block_k=128),
    Tile(block_m=16, block_n=256, block_k=64, num_warps=8),
)
ONE_OF_EACH: tuple[Candidate, ...] = (
    TritonCandidate(tile=SMALL),
    VllmCutlassCandidate(),
    FlashinferCutlassCandidate(),
    DeepGemmCandidate(),
    FusedTritonCandidate(gate_up=SMALL, down=LARGE),
    FusedDecodeCandidate(
        block_m=16, gate_up_block_n=64, gate_up_block_k=128, down_block_n=128, down_block_k=64
    ),
)

tiles = st.builds(
    Tile,
    block_m=st.sampled_from([16, 32, 64, 128]),
    block_n=st.sampled_from([32, 64, 128, 256]),
    block_k=st.sampled_from([32, 64, 128, 256]),
    group_m=st.integers(1, 64),
    num_warps=st.sampled_from([1, 2, 4, 8, 16]),
    num_stages=st.integers(1, 6),
)


def test_there_is_one_kind_for_every_backend_name() -> None:
    assert get_args(BackendName) == BACKENDS
    assert tuple(c.backend for c in ONE_OF_EACH) == BACKENDS


@pytest.mark.parametrize("candidate", ONE_OF_EACH, ids=str)
def test_plain_data_comes_back_as_the_same_candidate(candidate: Candidate) -> None:
    back = parse_candidate(candidate.model_dump(mode="json"))
    assert back == candidate
    assert type(back) is type(candidate)
    assert back.digest == candidate.digest
    assert hash(back) == hash(candidate)


def test_digests_and_texts_tell_candidates_apart() -> None:
    options: tuple[Candidate, ...] = (
        *ONE_OF_EACH,
        TritonCandidate(tile=SMALL, swap_ab=True),
        TritonCandidate(tile=LARGE),
        FlashinferCutlassCandidate(tuned=False),
        FusedTritonCandidate(gate_up=SMALL, down=LARGE, swap_ab=True),
        FusedTritonCandidate(gate_up=LARGE, down=SMALL),
        parse_candidate(ONE_OF_EACH[-1].model_dump() | {"crowded_block_m": 32}),
    )
    assert len({c.digest for c in options}) == len(options)
    assert len({str(c) for c in options}) == len(options)


def test_a_digest_is_the_same_in_every_release() -> None:
    # Measurements are cited by it: if this changes, recorded evidence no longer matches.
    assert TritonCandidate(tile=SMALL).digest == (
        "9fc81bff3f875b2051842d9c450531f38310665899b314e25c6cf7b37dae66a4"
    )
    # Of a release that had no `crowded_block_m`.
    assert ONE_OF_EACH[-1].digest == "99716276305b0d7dc2524e3b1d4a8cf688280248739787433b27b87dcde3e670"


@pytest.mark.parametrize("crowded", [7, 8, 16, 24, 33, 256, -1])
def test_crowded_rows_are_a_power_of_two_above_a_blocks(crowded: int) -> None:
    plain = ONE_OF_EACH[-1].model_dump()
    with pytest.raises(ValidationError, match="crowded_block_m"):
        parse_candidate(plain | {"crowded_block_m": crowded})
    assert parse_candidate(plain | {"crowded_block_m": 64}) != ONE_OF_EACH[-1]


def test_asking_for_the_digest_changes_neither_equality_nor_data() -> None:
    asked, fresh = TritonCandidate(tile=SMALL), TritonCandidate(tile=SMALL)
    before = asked.model_dump()
    assert asked.digest
    assert asked == fresh
    assert asked.model_dump() == before


@given(tiles)
def test_tiles_survive_vllms_config_format(tile: Tile) -> None:
    assert Tile.from_vllm_config(tile.vllm_config()) == tile


def test_a_config_file_may_leave_tritons_defaults_out() -> None:
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128}
    assert Tile.from_vllm_config(config) == SMALL


def test_both_gemms_of_fused_triton_share_the_row_block() -> None:
    with pytest.raises(ValidationError, match="one block_m"):
        FusedTritonCandidate(gate_up=SMALL, down=LARGE.model_copy(update={"block_m": 32}))


@pytest.mark.parametrize(
    "data",
    [
        {"backend": "cutlass"},
        {"backend": "triton"},
        {"backend": "deep_gemm", "tile": SMALL.model_dump()},
        {"backend": "triton", "tile": {"block_m": 0, "block_n": 64, "block_k": 64}},
        {"backend": "triton", "tile": {"block_m": 16, "block_n": 64, "block_k": 64, "SPLIT_K": 2}},
        {},
        None,
    ],
)
def test_other_data_is_refused(data: object) -> None:
    with pytest.raises(ValidationError):
        parse_candidate(data)


def test_candidates_are_frozen() -> None:
    with pytest.raises(ValidationError):
        setattr(TritonCandidate(tile=SMALL), "swap_ab", True)  # noqa: B010
