"""One layer in both orders, on the CPU: the same result, from the same memory where nothing has to move."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from autotune.kernels.backends.base import require_layout  # noqa: E402
from autotune.kernels.reference import activate, reference_moe, relative_l2  # noqa: E402
from autotune.kernels.weights import in_layout, make_inputs, make_weights, swap_halves  # noqa: E402
from autotune.vocabulary.errors import AutotuneError  # noqa: E402
from autotune.vocabulary.problem import Problem, Scheme  # noqa: E402


def problem(scheme: Scheme, **changes: object) -> Problem:
    return Problem.model_validate({"E": 4, "N": 128, "K": 256, "topk": 2, "scheme": scheme, **changes})


@pytest.mark.parametrize("scheme", list(Scheme))
def test_the_other_order_is_the_same_layer(scheme: Scheme) -> None:
    weights = make_weights(problem(scheme), 1, "cpu")
    if weights.w13_scale is not None and weights.w13_scale.dim() == 3:
        weights.w13_scale[:, : weights.w13_scale.shape[1] // 2] *= 4  # the halves' scales must differ
    other = in_layout(weights, "w31")
    inputs = make_inputs(weights.problem, 9, 2, device="cpu")
    expected = reference_moe(weights, inputs)
    assert relative_l2(reference_moe(other, inputs), expected) < 1e-6
    # Read the wrong way round it is another layer.
    wrong = reference_moe(replace(other, layout="w13"), inputs)
    assert relative_l2(wrong, expected) > 0.1
    back = in_layout(other, "w13")
    assert torch.equal(back.w13.view(torch.uint8), weights.w13.view(torch.uint8))
    if weights.w13_scale is not None:
        assert torch.equal(back.w13_scale, weights.w13_scale)


def test_what_does_not_move_is_not_copied() -> None:
    weights = make_weights(problem(Scheme.FP8_TENSOR), 1, "cpu")
    assert in_layout(weights, "w13") is weights
    other = in_layout(weights, "w31")
    assert other.w2 is weights.w2
    assert other.w13_scale is weights.w13_scale
    assert other.w13.data_ptr() != weights.w13.data_ptr()
    assert in_layout(other, "w31") is other
    plain = make_weights(problem(Scheme.BF16, act="relu2_no_mul"), 1, "cpu")
    relabelled = in_layout(plain, "w31")
    assert relabelled.w13 is plain.w13
    assert not relabelled.up_first


def test_the_activation_takes_its_halves_in_the_other_order() -> None:
    columns = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    swapped = swap_halves(columns[None].transpose(1, 2)).transpose(1, 2)[0]
    for act in ("silu", "gelu", "gelu_tanh"):
        assert torch.equal(activate(swapped, act, up_first=True), activate(columns, act))
        assert not torch.allclose(activate(swapped, act), activate(columns, act))
    assert torch.equal(activate(columns, "relu2_no_mul", up_first=True), activate(columns, "relu2_no_mul"))


@pytest.mark.parametrize(
    ("backend", "scheme", "layout"),
    [
        ("deep_gemm", Scheme.FP8_BLOCK128, "w31"),
        ("flashinfer_cutlass", Scheme.BF16, "w13"),
    ],
)
def test_weights_in_the_wrong_order_are_refused(backend, scheme, layout) -> None:
    weights = in_layout(make_weights(problem(scheme), 1, "cpu"), layout)
    with pytest.raises(AutotuneError, match=f"{backend} .*{layout}.*in_layout"):
        require_layout(backend, weights)
    require_layout("triton", weights)


def test_our_kernels_take_either_order_as_it_is() -> None:
    pytest.importorskip("triton")
    from autotune.kernels.backends.registry import get_backend

    weights = in_layout(make_weights(problem(Scheme.BF16), 1, "cpu"), "w31")
    for name in ("fused_triton", "fused_decode"):
        assert get_backend(name).prepare(weights) is weights
