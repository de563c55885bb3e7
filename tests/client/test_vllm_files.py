"""Exported files, read with vLLM's rule: the nearest key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.client.vllm_files import export_vllm
from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    TritonCandidate,
)
from autotune.vocabulary.errors import TableError
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import Alternative, Miss, RoutingTable, Speedup, Timing, Verdict
from tests.factories import BASELINE, PROBLEM, make_table, triton

WIN = triton(16, swap_ab=True)


def nearest(table: RoutingTable, tokens: int) -> dict[str, int]:
    """As vLLM reads it."""
    (file,) = export_vllm([table])
    configs = {int(k): v for k, v in json.loads(file.text).items() if k != "triton_version"}
    found: dict[str, int] = configs[min(configs.keys(), key=lambda x: abs(x - tokens))]
    return found


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True).map(sorted),
    st.data(),
)
def test_every_covered_count_gets_what_the_table_says(counts: list[int], data: st.DataObject) -> None:
    wins = {c: 1.2 for c in counts if data.draw(st.booleans())}
    firsts = {c: c for c in counts if data.draw(st.booleans())}
    table = make_table(tokens=counts, wins=wins, firsts=firsts)
    for tokens in range(1, counts[-1] + 50):
        found = table.lookup(tokens)
        keeps = isinstance(found, Miss) or found.verdict is Verdict.NO_BENEFIT
        expected = BASELINE if keeps else WIN
        assert isinstance(expected, TritonCandidate)
        if isinstance(found, Miss) and found is Miss.UNMEASURED:
            continue  # between routes: checked below
        assert nearest(table, tokens) == expected.tile.vllm_config(), tokens


def test_a_gap_gets_the_baselines_tile() -> None:
    table = make_table(tokens=(8, 64), firsts={8: 8, 64: 60})
    assert isinstance(BASELINE, TritonCandidate)
    for tokens in (9, 30, 59, 7, 1, 65, 10_000):
        assert nearest(table, tokens) == BASELINE.tile.vllm_config()


def test_the_file_names_triton_and_has_vllms_keys() -> None:
    (file,) = export_vllm([make_table()])
    data = json.loads(file.text)
    assert file.name == "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert data.pop("triton_version") == "3.6.0"
    assert set(data["1"]) == {
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"
    }  # fmt: skip


def test_what_a_file_cannot_say_is_said() -> None:
    def lost(**table: object) -> str:
        return " ".join(export_vllm([make_table(**table)])[0].lost)  # type: ignore[arg-type]

    assert "swap_ab" not in lost()
    assert "swap_ab" in lost(winner=triton(16, swap_ab=False))
    assert "deep_gemm wins at 1, 2, 4, 5..8" in lost(winner=DeepGemmCandidate(), firsts={4: 4})
    assert "unaided vLLM runs flashinfer_cutlass" in lost(baseline=FlashinferCutlassCandidate())
    assert "at 65 and above the plugin leaves vLLM's own tile; the file gives the baseline's" in lost()


def test_each_sentence_begins_with_what_the_file_does_not_hold() -> None:
    """The command line prints them after `not in the file:`."""
    found = [
        sentence.split(":")[0]
        for table in (
            make_table(baseline=FlashinferCutlassCandidate(), winner=triton(16, swap_ab=False)),
            make_table(tokens=(8, 64), wins={8: 1.2}, winner=DeepGemmCandidate(), firsts={64: 60}),
        )
        for file in export_vllm([table])
        for sentence in file.lost
    ]
    allowed = {
        "swap_ab", "other backends", "the choice of Triton", "counts without a measured Triton tile",
        "top-k, K, and library versions",
    }  # fmt: skip
    assert set(found) == allowed


def test_every_unmeasured_count_is_named() -> None:
    firsts = {8: 8, 16: 16, 64: 64}
    tokens = (2, 8, 16, 64)

    def unmeasured(baseline: Candidate) -> str:
        (file,) = export_vllm([make_table(tokens=tokens, firsts=firsts, baseline=baseline)])
        (line,) = (
            sentence
            for sentence in file.lost
            if sentence.startswith("counts without a measured Triton tile: ")
        )
        return line

    counts = "at 1, 3..7, 9..15, 17..63, 65 and above "
    assert counts in unmeasured(BASELINE)
    assert "baseline's tile of the nearest measured count" in unmeasured(BASELINE)
    assert counts in unmeasured(FlashinferCutlassCandidate())
    assert "without evidence" in unmeasured(FlashinferCutlassCandidate())


def test_counts_below_an_alternatives_own_are_named_too() -> None:
    made = make_table(tokens=(8,), firsts={8: 5}, winner=DeepGemmCandidate())
    other = Alternative(
        candidate=triton(32), first=7, timing=Timing(p50_us=30, p95_us=31),
        speedup=Speedup(median=1.11, low=1.1), final=True, evidence=("e" * 64,),
    )  # fmt: skip
    route = made.routes[0].model_copy(update={"alternatives": (other,)})
    (file,) = export_vllm([made.model_copy(update={"routes": (route,)})])
    assert "counts without a measured Triton tile: at 1..4, 5..6, 9 and above" in " ".join(file.lost)


def test_two_tables_of_one_name_are_refused() -> None:
    other = make_table(problem=Problem.parse("E=128,N=768,K=4096,topk=8,scheme=fp8_block128"))
    with pytest.raises(TableError, match="share the file name"):
        export_vllm([make_table(problem=PROBLEM), other])


def test_a_table_without_triton_tiles_is_refused() -> None:
    with pytest.raises(TableError, match="no Triton tile"):
        export_vllm([make_table(winner=DeepGemmCandidate(), baseline=FlashinferCutlassCandidate())])
