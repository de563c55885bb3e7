"""One copy of the weights on a real GPU, read by every backend that autotune.kernels.layouts names for it."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from autotune.kernels.layouts import LAYOUTS, Layout, layouts
from autotune.kernels.specs import DECODE_PAIRS
from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.measurement import Stage, Status
from autotune.vocabulary.problem import Problem, Scheme
from tests.kernels.flashinfer_probe import require_flashinfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

TOKENS = (1, 8, 64, 2048)
SAME = 5e-3
"""Largest relative L2 distance of one kernel's outputs from two layouts: sums may be taken in another order
(FlashInfer's are), which a bfloat16 output rounds to at most 2^-8. Halves taken for each other give over
0.1."""
TILE = Tile(block_m=16, block_n=64, block_k=64)
CANDIDATES: dict[str, Candidate] = {
    "triton": TritonCandidate(tile=TILE),
    "vllm_cutlass": VllmCutlassCandidate(),
    "flashinfer_cutlass": FlashinferCutlassCandidate(),
    "deep_gemm": DeepGemmCandidate(),
    "fused_triton": FusedTritonCandidate(gate_up=TILE, down=TILE),
    "fused_decode": FusedDecodeCandidate(
        block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
    ),
}
OWN: dict[str, Layout] = {"flashinfer_cutlass": "w31"}
"""Each backend's own layout, where it is not the checkpoint's."""


@pytest.fixture(scope="module")
def environment():
    from autotune.measure.detect import detect_environment

    return detect_environment()


def limit(scheme: Scheme) -> float:
    return 1e-2 if scheme is Scheme.BF16 else 3e-2


CLAIMED = [
    pytest.param(scheme, layout, name, id=f"{scheme.value}-{layout}-{name}")
    for scheme in Scheme
    for layout in LAYOUTS
    for name in layouts(scheme)[layout]
]


@pytest.mark.parametrize(("scheme", "layout", "name"), CLAIMED)
def test_a_backend_runs_from_the_shared_copy(environment, scheme: Scheme, layout: Layout, name: str) -> None:
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import in_layout, make_inputs, make_weights

    problem = Problem(E=16, N=768, K=2048, topk=4, scheme=scheme)
    backend = get_backend(name)
    support = backend.supports(problem, environment)
    if not support.ok:
        pytest.skip(support.reason)
    if name == "flashinfer_cutlass":
        require_flashinfer(scheme.value)
    weights = make_weights(problem, 1)
    # The copy that Triton reads too: all backends of a layout run from these very tensors.
    shared = in_layout(weights, layout)
    with_triton = get_backend("triton").prepare(shared)
    prepared = backend.prepare(shared)
    assert prepared.w13.data_ptr() == shared.w13.data_ptr() == with_triton.w13.data_ptr()
    assert prepared.w2.data_ptr() == weights.w2.data_ptr() == with_triton.w2.data_ptr()
    own = backend.prepare(in_layout(weights, OWN.get(name, "w13")))
    from_shared, from_own = (backend.bind(p, CANDIDATES[name]) for p in (prepared, own))
    for tokens in TOKENS:
        if name == "fused_decode" and tokens * problem.topk > DECODE_PAIRS:
            continue
        inputs = make_inputs(problem, tokens, tokens)
        output = from_shared(inputs).clone()
        assert relative_l2(output, from_own(inputs).float()) < SAME, tokens
        reference = reference_moe(weights, inputs, power_of_two_scales=backend.power_of_two_scales(problem))
        assert relative_l2(output, reference) < limit(scheme), tokens


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("name", ["triton", "vllm_cutlass", "fused_triton"])
def test_the_wrong_order_would_show(environment, scheme: Scheme, name: str) -> None:
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import in_layout, make_inputs, make_weights

    problem = Problem(E=16, N=768, K=2048, topk=4, scheme=scheme)
    backend = get_backend(name)
    if not backend.supports(problem, environment).ok:
        pytest.skip(backend.supports(problem, environment).reason)
    weights = make_weights(problem, 1)
    mislabelled = replace(in_layout(weights, "w31"), layout="w13")
    inputs = make_inputs(problem, 64, 1)
    output = backend.bind(backend.prepare(mislabelled), CANDIDATES[name])(inputs)
    assert relative_l2(output, reference_moe(weights, inputs)) > 0.1


@pytest.mark.parametrize("scheme", [Scheme.FP8_TENSOR, Scheme.BF16])
def test_the_shared_copy_runs_in_a_cuda_graph(environment, scheme: Scheme) -> None:
    import torch

    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import in_layout, make_inputs, make_weights

    problem = Problem(E=16, N=768, K=2048, topk=4, scheme=scheme)
    weights = make_weights(problem, 1)
    shared = in_layout(weights, "w31")
    inputs = make_inputs(problem, 64, 1)
    for name in layouts(scheme)["w31"]:
        if name == "flashinfer_cutlass":
            require_flashinfer(scheme.value)
        backend = get_backend(name)
        assert backend.supports(problem, environment).ok
        call = backend.bind(backend.prepare(shared), CANDIDATES[name])
        call(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = call(inputs)
        output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert relative_l2(output, reference_moe(weights, inputs)) < limit(scheme), name


def test_untuned_flashinfer_runs_untuned_after_tuning(environment) -> None:
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights

    # Sizes that nothing else in this process has tuned.
    problem = Problem(E=8, N=320, K=640, topk=2, scheme=Scheme.FP8_TENSOR)
    backend = get_backend("flashinfer_cutlass")
    if not backend.supports(problem, environment).ok:
        pytest.skip(backend.supports(problem, environment).reason)
    require_flashinfer("fp8_tensor")
    tuned, untuned = FlashinferCutlassCandidate(), FlashinferCutlassCandidate(tuned=False)
    weights = make_weights(problem, 1)
    prepared = backend.prepare(weights)
    inputs = make_inputs(problem, 8, 1)
    fallback = "gemm1 fallback, gemm2 fallback"
    assert backend.tactic(prepared, tuned, inputs) == fallback, "before tuning there is nothing else"
    assert backend.tune(prepared, make_inputs(problem, 8192, 1)) > 0
    found = backend.tactic(prepared, tuned, inputs)
    assert found is not None
    assert "fallback" not in found
    assert backend.tactic(prepared, untuned, inputs) == fallback
    assert backend.tactic(prepared, tuned, inputs) == found
    for candidate in (tuned, untuned):
        output = backend.bind(prepared, candidate)(inputs)
        assert relative_l2(output, reference_moe(weights, inputs)) < 3e-2


def test_the_evidence_keeps_the_tactic_and_what_tuning_cost(environment) -> None:
    from autotune.measure.bench import Bench

    problem = Problem(E=8, N=320, K=640, topk=2, scheme=Scheme.FP8_TENSOR)
    if environment.flashinfer is None:
        pytest.skip("FlashInfer is not installed")
    require_flashinfer("fp8_tensor")
    candidates: list[Candidate] = [
        FlashinferCutlassCandidate(), FlashinferCutlassCandidate(tuned=False), TritonCandidate(tile=TILE)
    ]  # fmt: skip
    bench = Bench(problem, environment, 7)
    outcomes = [o for _, o in bench.run(8, "uniform", 1, Stage.SCREEN, candidates[2], candidates)]
    assert [o.status for o in outcomes] == [Status.OK] * 3, [o.reason for o in outcomes]
    tuned, untuned, triton = outcomes
    assert tuned.tactic is not None
    assert "fallback" not in tuned.tactic
    assert untuned.tactic == "gemm1 fallback, gemm2 fallback"
    assert tuned.setup_s is not None
    # The process may have tuned these sizes before: then tuning again costs a look.
    assert tuned.tuning_s is None or tuned.setup_s >= tuned.tuning_s * 0.99
    assert (untuned.tuning_s, triton.tuning_s, triton.tactic) == (None, None, None)
