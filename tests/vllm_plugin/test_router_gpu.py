"""The router on a GPU: vLLM's real kernels, FlashInfer, DeepGEMM and ours over one copy of the weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from autotune.client import RoutingClient
from autotune.client.snapshot import Snapshot
from autotune.measure.compiles import counting_variants
from autotune.vocabulary.candidate import (
    Candidate,
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    VllmCutlassCandidate,
)
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import RoutingTable
from tests.factories import make_published, make_table, triton

pytestmark = pytest.mark.gpu

TILE = triton(16, 128, 128, swap_ab=True, num_warps=4, num_stages=3)
DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
)
FUSED = FusedTritonCandidate(
    gate_up=Tile(block_m=64, block_n=64, block_k=128), down=Tile(block_m=64, block_n=128, block_k=128)
)
COUNTS = (8, 32, 64, 128, 256)
WINNERS: dict[str, tuple[Candidate | None, ...]] = {
    "fp8_tensor": (DECODE, TILE, VllmCutlassCandidate(), FUSED, None),
    "fp8_block128": (DECODE, TILE, FUSED, DeepGemmCandidate(), None),
    "bf16": (DECODE, TILE, FUSED, None, None),
}
LARGEST = 512


def table(problem: Problem, environment: Any) -> RoutingTable:
    winners = WINNERS[problem.scheme.value]
    baseline = FlashinferCutlassCandidate() if problem.scheme.value == "fp8_tensor" else triton(64)
    wins = {count: 1.3 for count, winner in zip(COUNTS, winners, strict=True) if winner}
    made = make_table(
        problem=problem, environment=environment, tokens=COUNTS, wins=wins, baseline=baseline, firsts={8: 1},
        checkpoint="unquantized" if problem.scheme.value == "bf16" else "fp8",
    )  # fmt: skip
    routes = tuple(
        route.model_copy(update={"winner": winner} if winner else {})
        for route, winner in zip(made.routes, winners, strict=True)
    )
    return RoutingTable.model_validate({**dict(made), "routes": routes})


class Routed:
    """A layer with a router in it, and what it needs to be called."""

    def __init__(self, scheme: str) -> None:
        import torch

        from autotune.kernels.backends.vllm_modular import VllmBackend
        from autotune.kernels.weights import make_weights
        from autotune.vllm_plugin.deployment import Deployment
        from autotune.vllm_plugin.environment import resolve_environment
        from autotune.vllm_plugin.features import Context
        from autotune.vllm_plugin.start import make_features

        self.problem = Problem.parse(f"E=128,N=768,K=2048,topk=8,scheme={scheme}")
        environment = resolve_environment()
        snapshot = Snapshot(tables=(make_published(table(self.problem, environment)),), source="test")
        context = Context(RoutingClient(Settings(), environment, snapshot=snapshot), Deployment())
        self.features = make_features(context)
        for feature in self.features:
            importlib.import_module(feature.module)
            feature.install()
            assert feature.state == "applied", (feature.name, feature.reason)
        self.weights = make_weights(self.problem, 1)
        self.prepared = VllmBackend("flashinfer_cutlass" if scheme == "fp8_tensor" else "triton").prepare(
            self.weights
        )
        self.router = self.prepared.kernel.fused_experts
        assert type(self.router).__name__ == "RouterExperts", "the log says why"
        self.plan = self.router.plan
        torch.cuda.synchronize()

    def inputs(self, tokens: int) -> Any:
        from autotune.kernels.weights import make_inputs

        return make_inputs(self.problem, tokens, tokens)

    def call(self, inputs: Any) -> Any:
        activation = importlib.import_module("vllm.model_executor.layers.fused_moe.activation").MoEActivation
        return self.prepared.kernel.apply(
            hidden_states=inputs.hidden, w1=self.prepared.w13, w2=self.prepared.w2,
            topk_weights=inputs.topk_weights, topk_ids=inputs.topk_ids, activation=activation.SILU,
            global_num_experts=self.problem.E, expert_map=None, apply_router_weight_on_input=False,
        )  # fmt: skip

    def backend(self, tokens: int) -> str:
        served = self.plan.chosen(tokens)
        return self.plan.entries[served - 1].backend if served else self.plan.base

    def error(self, output: Any, inputs: Any, ours: bool) -> float:
        from autotune.kernels.backends.vllm_modular import VllmBackend
        from autotune.kernels.reference import reference_moe, relative_l2

        rounded = not ours and VllmBackend("triton").power_of_two_scales(self.problem)
        return relative_l2(output, reference_moe(self.weights, inputs, power_of_two_scales=rounded))

    def close(self) -> None:
        for feature in reversed(self.features):
            feature.unapply()
        workspace = importlib.import_module("vllm.v1.worker.workspace")
        workspace.current_workspace_manager().unlock()


@pytest.fixture(params=list(WINNERS))
def layer(request: pytest.FixtureRequest) -> Iterator[Routed]:
    pytest.importorskip("vllm")
    made = Routed(request.param)
    yield made
    made.close()


def test_every_backend_serves_its_counts_and_is_right(layer: Routed) -> None:
    """The profiling batch proves all routes; nothing may fail its probe on the layer's real weights."""
    layer.call(layer.inputs(LARGEST))
    assert layer.plan.removed == {}, layer.plan.removed
    assert not layer.plan.pending
    missing = {str(declined) for declined in layer.plan.declined}
    assert all("does not read up rows before gate rows" in reason for reason in missing), missing
    importlib.import_module("vllm.v1.worker.workspace").current_workspace_manager().lock()
    for tokens in (1, 8, 9, 32, 33, 64, 65, 128, 129, 256, LARGEST):
        inputs = layer.inputs(tokens)
        name = layer.backend(tokens)
        error = layer.error(layer.call(inputs), inputs, name.startswith("fused_"))
        assert error <= (1e-2 if layer.problem.scheme.value == "bf16" else 3e-2), (tokens, name, error)
    assert layer.plan.removed == {}, layer.plan.removed


def test_no_token_count_of_our_kernels_compiles_anything_after_the_profiling_run(layer: Routed) -> None:
    """Also those that no CUDA graph holds. The routes of `fused_decode` need two of its variants."""
    layer.call(layer.inputs(LARGEST))
    with counting_variants() as loaded:
        for tokens in range(1, COUNTS[-1] + 1):
            if layer.backend(tokens).startswith("fused_"):
                layer.call(layer.inputs(tokens))
    assert loaded.names == []
    assert {layer.backend(tokens) for tokens in (1, 8)} == {"fused_decode"}


def test_a_captured_size_keeps_what_it_was_captured_with(layer: Routed) -> None:
    import torch

    layer.call(layer.inputs(LARGEST))
    graphs = {}
    for tokens in (8, 32, 64, 128, 256):
        inputs = layer.inputs(tokens)
        layer.call(inputs)  # compiles what is missing
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer.call(inputs)
        graphs[tokens] = (graph, inputs, output, layer.backend(tokens).startswith("fused_"))
    for backend in layer.plan.backends:
        layer.plan.remove(backend, "a test took it away")
    for tokens, (graph, inputs, output, ours) in graphs.items():
        output.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        limit = 1e-2 if layer.problem.scheme.value == "bf16" else 3e-2
        assert layer.error(output, inputs, ours) <= limit, tokens
    inputs = layer.inputs(8)
    assert layer.error(layer.call(inputs), inputs, False) <= 3e-2, (
        "vLLM's own choice serves after all have left"
    )


def test_flashinfer_is_tuned_although_the_table_routes_its_batch_elsewhere() -> None:
    pytest.importorskip("vllm")
    autotuner = pytest.importorskip("flashinfer.autotuner")
    layer = Routed("fp8_tensor")
    try:
        layer.call(layer.inputs(LARGEST))
        batch = layer.inputs(64)
        assert layer.plan.chosen(64) != 0, "the table gives this batch to another backend"
        tuner = autotuner.AutoTuner.get()
        before = len(tuner.profiling_cache)
        with autotuner.autotune(True):
            layer.call(batch)
        assert len(tuner.profiling_cache) > before, "FlashInfer's tuner saw no call"
    finally:
        layer.close()
