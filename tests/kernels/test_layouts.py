"""Which backends share one copy of the weights: the data, without torch."""

from __future__ import annotations

from itertools import combinations

import pytest

from autotune.kernels.layouts import AS_IT_IS, LAYOUTS, common_layouts, layouts, readable, shares_layout
from autotune.kernels.specs import Support, backends_for
from autotune.vocabulary.candidate import BACKENDS
from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.problem import Problem, Scheme
from tests.factories import H200

FULL = H200.model_copy(update={"flashinfer": "0.6.13"})
APART = {
    Scheme.BF16: set(),
    Scheme.FP8_TENSOR: set(),
    Scheme.FP8_CHANNEL: set(),
    Scheme.FP8_BLOCK128: {("flashinfer_cutlass", "deep_gemm")},
}
"""Pairs of backends that take the scheme and yet need a copy each."""


def taking(scheme: Scheme) -> list[str]:
    """Backends that take the scheme on an H200, in registry order."""
    problem = Problem(E=8, N=768, K=2048, topk=2, scheme=scheme)
    return [name for name, support in backends_for(problem, FULL).items() if support.ok]


@pytest.mark.parametrize("scheme", list(Scheme))
def test_the_data_names_exactly_the_backends_that_take_the_scheme(scheme: Scheme) -> None:
    named = {name for backends in layouts(scheme).values() for name in backends}
    assert named == set(taking(scheme))


@pytest.mark.parametrize("scheme", list(Scheme))
def test_pairs_share_a_copy_but_for_the_known_ones(scheme: Scheme) -> None:
    for first, second in combinations(taking(scheme), 2):
        apart = (first, second) in APART[scheme]
        forth, back = shares_layout(scheme, first, second), shares_layout(scheme, second, first)
        assert forth.ok is back.ok is not apart, (first, second, forth.reason)
        if apart:
            assert "w31" in forth.reason
            assert "w13" in forth.reason


def test_flashinfers_order_is_read_by_all_others_through_something() -> None:
    w31 = layouts(Scheme.FP8_TENSOR)["w31"]
    assert set(w31) == {"triton", "vllm_cutlass", "flashinfer_cutlass", "fused_triton", "fused_decode"}
    assert w31["flashinfer_cutlass"] == AS_IT_IS
    assert "mul_and_silu" in w31["triton"]
    assert "apply_moe_activation" in w31["vllm_cutlass"]
    assert all(how == AS_IT_IS for how in layouts(Scheme.FP8_TENSOR)["w13"].values())


def test_deep_gemm_reads_tritons_block_layout_on_hopper_only() -> None:
    block = Scheme.FP8_BLOCK128
    assert shares_layout(block, "deep_gemm", "triton").ok
    assert common_layouts(block, ("deep_gemm", "triton", "fused_triton")) == ("w13",)
    on_blackwell = shares_layout(block, "deep_gemm", "triton", capability="10.0")
    assert not on_blackwell.ok
    assert "10.0" in on_blackwell.reason
    assert "deep_gemm" not in layouts(block, capability="10.0")["w13"]


def test_common_layouts_put_the_checkpoints_order_first() -> None:
    assert common_layouts(Scheme.FP8_TENSOR, ("triton", "vllm_cutlass")) == LAYOUTS
    assert common_layouts(Scheme.FP8_TENSOR, ("triton", "vllm_cutlass", "flashinfer_cutlass")) == ("w31",)
    assert common_layouts(Scheme.FP8_BLOCK128, ("deep_gemm", "flashinfer_cutlass")) == ()
    assert common_layouts(Scheme.BF16, ("triton", "vllm_cutlass")) == ()


def test_a_backend_without_the_scheme_shares_with_nobody() -> None:
    answer = shares_layout(Scheme.BF16, "triton", "vllm_cutlass")
    assert answer == Support(False, "vllm_cutlass does not take bf16")


def test_only_silu_has_an_op_for_the_other_order() -> None:
    apart = shares_layout(Scheme.BF16, "triton", "flashinfer_cutlass", act="gelu_tanh")
    assert not apart.ok
    assert set(readable(Scheme.BF16, "triton", "gelu_tanh")) == {"w13"}  # type: ignore[arg-type]
    # Without a gate there is one order, and all share it.
    assert shares_layout(Scheme.BF16, "triton", "flashinfer_cutlass", act="relu2_no_mul").ok


@pytest.mark.parametrize("name", ["tritn", "w31"])
def test_an_unknown_backend_is_named(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shares_layout(Scheme.BF16, "triton", name)
    assert all(backend in str(caught.value) for backend in BACKENDS) or caught.value.nearest == "triton"
