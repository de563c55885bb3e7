"""Weights, inputs and the float32 reference on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autotune.kernels.reference import activate, reference_moe, relative_l2  # noqa: E402
from autotune.kernels.weights import (  # noqa: E402
    FP8_MAX,
    dequantize_weight,
    fake_quantize,
    make_inputs,
    make_weights,
    quantize_weight,
)
from autotune.vocabulary.problem import Problem, Scheme  # noqa: E402

FP8 = [scheme for scheme in Scheme if scheme.is_fp8]
STEP = 2.0**-4
"""Half of float8_e4m3fn's largest relative spacing (3 mantissa bits)."""


def problem(scheme: Scheme, **changes: object) -> Problem:
    return Problem(**{"E": 4, "N": 128, "K": 256, "topk": 2, "scheme": scheme, **changes})


@pytest.mark.parametrize("scheme", FP8)
@pytest.mark.parametrize(("rows", "columns"), [(256, 256), (128, 384), (384, 128), (128, 128)])
def test_weights_survive_quantization(scheme: Scheme, rows: int, columns: int) -> None:
    raw = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    raw[: rows // 2] *= 20  # scales must differ from place to place
    values, scale = quantize_weight(raw, scheme)
    assert values.dtype is torch.float8_e4m3fn
    back = dequantize_weight(values, scale)
    expected = {
        Scheme.FP8_TENSOR: (),
        Scheme.FP8_CHANNEL: (rows, 1),
        Scheme.FP8_BLOCK128: (rows // 128, columns // 128),
    }
    assert scale.shape == expected[scheme]
    # Subnormals: below 2^-6 of the scaled range the spacing stays absolute.
    floor = 2.0**-10 * 20 * raw.abs().amax() / FP8_MAX
    assert torch.all((back - raw).abs() <= STEP * raw.abs() + floor)
    assert values.float().abs().amax() == FP8_MAX


def test_bf16_weights_have_no_scale() -> None:
    raw = torch.randn(32, 32)
    values, scale = quantize_weight(raw, Scheme.BF16)
    assert scale is None
    assert torch.equal(dequantize_weight(values, None), raw.to(torch.bfloat16).float())


@pytest.mark.parametrize("scheme", list(Scheme))
def test_layers_have_checkpoint_shapes(scheme: Scheme) -> None:
    weights = make_weights(problem(scheme), 3, "cpu")
    assert weights.w13.shape == (4, 256, 256)
    assert weights.w2.shape == (4, 256, 128)
    assert (weights.w13_scale is None) is (scheme is Scheme.BF16)
    assert (weights.a1_scale is None) is (scheme is not Scheme.FP8_TENSOR)
    again = make_weights(problem(scheme), 3, "cpu")
    assert torch.equal(weights.w13.view(torch.uint8), again.w13.view(torch.uint8))
    other = make_weights(problem(scheme), 4, "cpu")
    assert not torch.equal(weights.w13.view(torch.uint8), other.w13.view(torch.uint8))


@pytest.mark.parametrize("scheme", list(Scheme))
def test_activations_survive_quantization(scheme: Scheme) -> None:
    rows = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    rows[3] *= 50 if scheme is not Scheme.FP8_TENSOR else 1
    rows[5] = 0
    back = fake_quantize(rows, scheme, torch.tensor(4.5 / FP8_MAX))
    assert back.dtype is torch.float32
    assert relative_l2(back, rows) < 0.04
    assert torch.all(back[5] == 0)


def test_power_of_two_scales_are_coarser() -> None:
    rows = torch.randn(8, 256, generator=torch.Generator().manual_seed(1))
    fine = fake_quantize(rows, Scheme.FP8_BLOCK128, None)
    coarse = fake_quantize(rows, Scheme.FP8_BLOCK128, None, power_of_two=True)
    assert not torch.equal(fine, coarse)
    assert relative_l2(coarse, rows) < 0.05


def test_a_token_meets_distinct_experts() -> None:
    inputs = make_inputs(problem(Scheme.BF16, E=16, topk=8), 200, 1, "zipf:1.5", "cpu")
    ids = inputs.topk_ids.sort(dim=1).values
    assert torch.all(ids[:, 1:] > ids[:, :-1])
    assert int(ids.min()) >= 0
    assert int(ids.max()) <= 15
    assert torch.allclose(inputs.topk_weights.sum(dim=1), torch.ones(200))
    assert inputs.tokens == 200
    assert (inputs.hidden.dtype, inputs.topk_ids.dtype) == (torch.bfloat16, torch.int32)


def busiest_share(routing: str) -> float:
    inputs = make_inputs(problem(Scheme.BF16, E=16, topk=1), 4000, 1, routing, "cpu")
    counts = torch.bincount(inputs.topk_ids.flatten(), minlength=16)
    return float(counts.max() / counts.sum())


def test_zipf_routing_is_skewed_and_uniform_is_not() -> None:
    assert busiest_share("uniform") < 1.3 / 16
    # 1 / sum of r^-1.5 over 16 ranks is 0.47.
    assert busiest_share("zipf:1.5") == pytest.approx(0.47, abs=0.04)
    assert busiest_share("zipf:0.5") < busiest_share("zipf:1.5")


def test_inputs_follow_their_seed() -> None:
    shape = problem(Scheme.BF16)
    first, again, other = (make_inputs(shape, 5, seed, device="cpu") for seed in (1, 1, 2))
    assert torch.equal(first.hidden, again.hidden)
    assert torch.equal(first.topk_ids, again.topk_ids)
    assert not torch.equal(first.hidden, other.hidden)


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("ep", [1, 2])
def test_the_reference_equals_a_loop_over_pairs(scheme: Scheme, ep: int) -> None:
    shape = problem(scheme, N=128, K=128, ep=ep)
    weights = make_weights(shape, 1, "cpu")
    inputs = make_inputs(shape, 6, 1, device="cpu")
    x = fake_quantize(inputs.hidden, scheme, weights.a1_scale)
    expected = torch.zeros(6, 128)
    skipped = 0
    for token in range(6):
        for slot in range(2):
            expert = int(inputs.topk_ids[token, slot])
            if expert >= shape.E:
                skipped += 1
                continue

            def matrix(values: torch.Tensor, scale: torch.Tensor | None, e: int = expert) -> torch.Tensor:
                return dequantize_weight(values[e], None if scale is None else scale[e])

            gate, up = (matrix(weights.w13, weights.w13_scale) @ x[token]).split(128)
            inner = (gate * torch.sigmoid(gate) * up)[None]
            inner = fake_quantize(inner, scheme, weights.a2_scale)[0]
            down = matrix(weights.w2, weights.w2_scale) @ inner
            expected[token] += float(inputs.topk_weights[token, slot]) * down
    assert (skipped > 0) is (ep > 1)
    # The order of additions may flip a value at a rounding boundary of the intermediate, not more.
    assert relative_l2(reference_moe(weights, inputs), expected) < 2e-3


@pytest.mark.parametrize("nobody", [-1, 4])
def test_a_slot_without_an_expert_here_adds_nothing(nobody: int) -> None:
    from dataclasses import replace

    weights, inputs = (
        make_weights(problem(Scheme.BF16), 1, "cpu"),
        make_inputs(problem(Scheme.BF16), 3, 1, device="cpu"),
    )
    whole = reference_moe(weights, inputs)
    ids = inputs.topk_ids.clone()
    ids[1] = nobody
    found = reference_moe(weights, replace(inputs, topk_ids=ids))
    assert torch.equal(found[1], torch.zeros_like(found[1]))
    assert torch.allclose(found[[0, 2]], whole[[0, 2]], rtol=1e-5, atol=1e-5)


def test_the_second_rounding_can_be_left_out() -> None:
    shape = problem(Scheme.FP8_TENSOR)
    weights, inputs = make_weights(shape, 1, "cpu"), make_inputs(shape, 6, 1, device="cpu")
    exact = reference_moe(weights, inputs, quantize_intermediate=False)
    assert 1e-3 < relative_l2(reference_moe(weights, inputs), exact) < 5e-2


def test_activations_by_name() -> None:
    columns = torch.tensor([[1.0, -2.0, 3.0, 4.0]])
    assert torch.equal(activate(columns, "relu2_no_mul"), torch.tensor([[1.0, 0.0, 9.0, 16.0]]))
    assert torch.allclose(
        activate(columns, "silu"), torch.nn.functional.silu(columns[:, :2]) * columns[:, 2:]
    )
    with pytest.raises(ValueError, match="swigluoai has no reference; known: silu"):
        activate(columns, "swigluoai")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_element_is_an_infinite_error(bad: float) -> None:
    reference = torch.ones(4, 4)
    assert relative_l2(reference * 1.01, reference) == pytest.approx(0.01, rel=1e-4)
    broken = reference.clone()
    broken[2, 1] = bad
    assert relative_l2(broken, reference) == float("inf")


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_weights_and_inputs_of_one_seed_are_independent(seed: int) -> None:
    shape = problem(Scheme.BF16)
    weights, inputs = make_weights(shape, seed, "cpu"), make_inputs(shape, 64, seed, device="cpu")
    rows = torch.nn.functional.normalize(weights.w13.flatten(0, 1).float(), dim=1)
    hidden = torch.nn.functional.normalize(inputs.hidden.float(), dim=1)
    # Of 64 x 1,024 pairs of random directions in 256 dimensions none comes near 0.5 (8 deviations).
    assert (hidden @ rows.T).abs().max() < 0.5
