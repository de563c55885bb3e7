"""Launches that are laid out once: later calls pass what a call laid out anew would pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from autotune.vocabulary.candidate import FusedTritonCandidate, Tile
from autotune.vocabulary.problem import Problem, Scheme

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from autotune.kernels.backends.fused import unfilled  # noqa: E402
from autotune.kernels.fused_triton.op import plan  # noqa: E402
from autotune.kernels.launch import Launch  # noqa: E402
from autotune.kernels.prepared import ALIGNMENT, Prepared, prepare  # noqa: E402
from autotune.kernels.weights import LayerInputs, MoeWeights  # noqa: E402

Passed = list[tuple[Any, ...]]


def laid_out(scheme: Scheme, tokens: int) -> tuple[MoeWeights, LayerInputs, Any, list[Launch]]:
    problem = Problem(E=8, N=256, K=512, topk=2, scheme=scheme)
    # Narrower than a scale block: block FP8 then quantizes in a launch of its own.
    tile = Tile(block_m=16, block_n=64, block_k=128)
    weights, inputs = unfilled(problem, tokens)
    output = torch.empty_like(inputs.hidden)
    candidate = FusedTritonCandidate(gate_up=tile, down=tile)
    return weights, inputs, output, list(plan(weights, inputs, candidate, output))


def prepared(scheme: Scheme, tokens: int) -> tuple[Prepared, Passed]:
    """From one call's tensors; what later calls pass, launch by launch, is kept in the list."""
    weights, inputs, output, launches = laid_out(scheme, tokens)
    passed: Passed = []

    def runner(*arguments: Any) -> None:
        passed.append(arguments)

    made = prepare(launches, [runner] * len(launches), weights, inputs, output)
    assert made is not None
    return made, passed


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("tokens", [3, 1200])
def test_another_layer_s_call_passes_its_own_addresses(scheme: Scheme, tokens: int) -> None:
    made, passed = prepared(scheme, tokens)
    weights, inputs, output, launches = laid_out(scheme, tokens)
    assert made.run(weights, inputs, output)
    assert len(passed) == len(launches)
    given = [
        t
        for t in (
            inputs.hidden, inputs.topk_ids, inputs.topk_weights, output, weights.w13, weights.w2,
            weights.w13_scale, weights.w2_scale, weights.a1_scale, weights.a2_scale,
        )
        if t is not None
    ]  # fmt: skip
    own: dict[int, tuple[int, int]] = {}
    for launch, arguments in zip(launches, passed, strict=True):
        assert arguments[len(launch.arguments) :] == launch.constants()
        for wanted, got in zip(launch.arguments, arguments, strict=False):
            if not isinstance(wanted, torch.Tensor):
                assert got == wanted
            elif any(wanted is t for t in given):
                assert got == wanted.data_ptr()
            else:
                # The same intermediate has the same place in every launch.
                size = wanted.numel() * wanted.element_size()
                assert own.setdefault(id(wanted), (got, size)) == (got, size)
    ends = sorted(own.values())
    assert len(ends) >= 5
    assert all(start % 16 == 0 for start, _ in ends)
    assert all(start + size <= following for (start, size), (following, _) in pairwise(ends))
    assert ends[-1][0] + ends[-1][1] - ends[0][0] <= made._nbytes + ALIGNMENT


def test_an_address_that_16_does_not_divide_is_refused_before_anything_is_launched() -> None:
    made, passed = prepared(Scheme.BF16, 3)
    weights, inputs, output, _ = laid_out(Scheme.BF16, 3)
    shifted = torch.empty(output.numel() + 1, dtype=output.dtype)[1:].view(output.shape)
    assert not made.run(weights, inputs, shifted)
    assert passed == []
    assert made.run(weights, inputs, output)


def test_a_pointer_behind_a_number_is_not_filled_in() -> None:
    weights, inputs, output, launches = laid_out(Scheme.BF16, 3)
    odd = Launch(launches[0].kernel, (1,), (inputs.hidden, 3, output), {})
    assert prepare([odd], [print], weights, inputs, output) is None


def test_a_tensor_given_twice_does_not_tell_which_of_the_two_a_later_call_means() -> None:
    weights, inputs, _, _ = laid_out(Scheme.BF16, 3)
    tile = Tile(block_m=16, block_n=64, block_k=128)
    candidate = FusedTritonCandidate(gate_up=tile, down=tile)
    launches = list(plan(weights, inputs, candidate, inputs.hidden))
    assert prepare(launches, [print] * len(launches), weights, inputs, inputs.hidden) is None
