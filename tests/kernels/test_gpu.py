"""Kernels and backends on a real GPU, against the float32 reference."""

from __future__ import annotations

import importlib.util

import pytest

from autotune.vocabulary.candidate import (
    DeepGemmCandidate,
    FlashinferCutlassCandidate,
    FusedDecodeCandidate,
    FusedTritonCandidate,
    Tile,
    TritonCandidate,
    VllmCutlassCandidate,
)
from autotune.vocabulary.problem import Problem, Scheme
from tests.kernels.flashinfer_probe import require_flashinfer

pytestmark = pytest.mark.gpu
HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")

SHAPES = [
    pytest.param(16, 768, 2048, 4, id="aligned"),
    pytest.param(16, 96, 2880, 4, id="n96-k2880"),
    pytest.param(16, 704, 1024, 2, id="n704"),
    pytest.param(8, 1856, 512, 6, id="n1856"),
]


@pytest.fixture(scope="module")
def environment():
    from autotune.measure.detect import detect_environment

    return detect_environment()


def fused(block_m: int, gate_n: int, down_n: int, block_k: int, swap: bool) -> FusedTritonCandidate:
    return FusedTritonCandidate(
        gate_up=Tile(block_m=block_m, block_n=gate_n, block_k=block_k, group_m=4),
        down=Tile(block_m=block_m, block_n=down_n, block_k=block_k, num_stages=2),
        swap_ab=swap,
    )


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize(("experts", "n", "k", "topk"), SHAPES)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("block_m", "gate_n", "down_n", "block_k"), [(16, 64, 128, 128), (64, 128, 64, 64)])
def test_fused_triton_matches_reference(
    environment, scheme, experts, n, k, topk, swap, block_m, gate_n, down_n, block_k
):
    import torch

    from autotune.kernels.fused_triton.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.specs import backend_spec
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=experts, N=n, K=k, topk=topk, scheme=scheme)
    support = backend_spec("fused_triton").supports(problem, environment)
    if not support.ok:
        assert scheme is Scheme.FP8_BLOCK128
        assert "divisible by 128" in support.reason
        return
    weights = make_weights(problem, 1)
    candidate = fused(block_m, gate_n, down_n, block_k, swap)
    for tokens in (1, 7, 64, 515, 2048):
        inputs = make_inputs(problem, tokens, tokens, routing="zipf:1.1" if tokens == 64 else "uniform")
        output = torch.full_like(inputs.hidden, float("nan"))
        run_layer(plan, weights, inputs, candidate, output)
        error = relative_l2(output, reference_moe(weights, inputs))
        assert error < (1e-2 if scheme is Scheme.BF16 else 3e-2), (tokens, error)


@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
@pytest.mark.parametrize(("experts", "n", "k", "topk"), SHAPES)
@pytest.mark.parametrize("form", ["plain", "split", "quantized first", "narrow", "held", "crowded"])
def test_fused_decode_matches_reference(environment, scheme, experts, n, k, topk, form):
    import torch

    from autotune.kernels.fused_decode.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.specs import backend_spec
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=experts, N=n, K=k, topk=topk, scheme=scheme)
    support = backend_spec("fused_decode").supports(problem, environment)
    if not support.ok:
        assert scheme is Scheme.FP8_BLOCK128
        assert "divisible by 128" in support.reason
        return
    weights = make_weights(problem, 1)
    candidate = decode_candidate(form, n)
    for tokens in (1, 2, 8, 31, 128):
        inputs = make_inputs(problem, tokens, tokens, routing="zipf:1.1" if tokens == 31 else "uniform")
        output = torch.full_like(inputs.hidden, float("nan"))
        run_layer(plan, weights, inputs, candidate, output)
        error = relative_l2(output, reference_moe(weights, inputs))
        assert error < (1e-2 if scheme is Scheme.BF16 else 3e-2), (tokens, error)
        for _ in range(20):
            again = run_layer(plan, weights, inputs, candidate)
            assert torch.equal(output.view(torch.int16), again.view(torch.int16)), tokens


@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
@pytest.mark.parametrize("form", ["plain", "narrow", "crowded"])
def test_padding_of_a_captured_batch_changes_no_real_row(environment, scheme, form):
    """vLLM may mark padding by -1 in all slots: then one expert has more rows than there are tokens."""

    from autotune.kernels.fused_decode.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=16, N=256, K=512, topk=8, scheme=scheme)
    weights, candidate = make_weights(problem, 1), decode_candidate(form, 256)
    for real, tokens in ((1, 2), (3, 4), (5, 8), (17, 24), (65, 128)):
        inputs = make_inputs(problem, tokens, tokens)
        truth = reference_moe(weights, inputs)[:real]
        inputs.topk_ids[real:] = -1
        for _ in range(3):  # what is left over would spoil the next call
            output = run_layer(plan, weights, inputs, candidate)
            error = relative_l2(output[:real], truth)
            assert error < (1e-2 if scheme is Scheme.BF16 else 3e-2), (real, tokens, error)


def decode_candidate(form: str, n: int) -> FusedDecodeCandidate:
    if form == "narrow":  # the older tensor-core instruction: too few columns and warps for a warp group
        return FusedDecodeCandidate(
            block_m=8,
            gate_up_block_n=32,
            gate_up_block_k=128,
            down_block_n=64,
            down_block_k=128,
            num_warps=2,
            quantize_first=True,
        )
    if form == "held":
        return FusedDecodeCandidate(
            block_m=16,
            gate_up_block_n=32,
            gate_up_block_k=128,
            down_block_n=32,
            down_block_k=128,
            down_stages=0,
            quantize_first=True,
        )
    if form == "crowded":  # experts with more than 8 rows, 32 of them at a time
        return FusedDecodeCandidate(
            block_m=8,
            crowded_block_m=32,
            gate_up_block_n=32,
            gate_up_block_k=128,
            gate_up_stages=4,
            down_block_n=64,
            down_block_k=128,
            down_stages=3,
            down_split_k=2 if n > 128 else 1,
            quantize_first=True,
        )
    return FusedDecodeCandidate(
        block_m=16,
        gate_up_block_n=64 if form == "quantized first" else 32,
        gate_up_block_k=128,
        gate_up_stages=4,
        down_block_n=128 if form == "quantized first" else 64,
        down_block_k=128,
        down_stages=3,
        down_split_k=2 if form == "split" and n > 128 else 1,
        quantize_first=form == "quantized first",
    )


@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_call_laid_out_before_gives_the_bits_of_one_laid_out_anew(environment, scheme):
    """For another layer and other inputs, at once and from a CUDA graph."""
    import torch

    from autotune.kernels.fused_triton.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.prepared import prepare
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=16, N=256, K=512, topk=4, scheme=scheme)
    candidate = fused(16, 64, 64, 128, False)
    layers = [make_weights(problem, seed) for seed in (1, 2)]
    for tokens in (3, 700):
        first = make_inputs(problem, tokens, 1)
        output = torch.empty_like(first.hidden)
        launches = plan(layers[0], first, candidate, output)
        ready = prepare(launches, [launch.run() for launch in launches], layers[0], first, output)
        assert ready is not None
        graph = torch.cuda.CUDAGraph()
        second = make_inputs(problem, tokens, 2)
        for weights, inputs in ((layers[0], first), (layers[1], second)):
            wanted = run_layer(plan, weights, inputs, candidate)
            got = torch.full_like(wanted, float("nan"))
            assert ready.run(weights, inputs, got)
            assert torch.equal(got.view(torch.int16), wanted.view(torch.int16)), tokens
        captured = torch.full_like(wanted, float("nan"))
        with torch.cuda.graph(graph):
            assert ready.run(layers[1], second, captured)
        graph.replay()
        assert torch.equal(captured.view(torch.int16), wanted.view(torch.int16)), tokens


def test_fused_triton_skips_other_ranks(environment):
    from autotune.kernels.fused_triton.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=8, N=256, K=512, topk=4, scheme=Scheme.FP8_TENSOR, ep=4)
    weights = make_weights(problem, 1)
    for tokens in (1, 33, 4096):
        inputs = make_inputs(problem, tokens, tokens)
        assert (inputs.topk_ids >= problem.E).any()
        assert tokens == 1 or (inputs.topk_ids < problem.E).any()
        output = run_layer(plan, weights, inputs, fused(16, 64, 128, 128, True))
        assert relative_l2(output, reference_moe(weights, inputs)) < 3e-2


def test_fused_triton_compiles_nothing_for_new_token_counts():
    from autotune.kernels.fused_triton.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.weights import make_inputs, make_weights
    from autotune.measure.compiles import counting_variants

    problem = Problem(E=16, N=256, K=512, topk=4, scheme=Scheme.FP8_TENSOR)
    weights = make_weights(problem, 1)
    candidate = fused(16, 64, 128, 128, True)
    for tokens in (1, 513):  # without and with the counting launch
        run_layer(plan, weights, make_inputs(problem, tokens, 0), candidate)
    with counting_variants() as seen:
        for tokens in [*range(1, 140), 513, 1000, 1024, 2048, 4097]:
            run_layer(plan, weights, make_inputs(problem, tokens, 0), candidate)
    assert seen.count == 0


@pytest.mark.parametrize("naive", [False, True])
def test_rope_fp8_matches_reference(naive):
    import torch

    from autotune.kernels.reference import relative_l2
    from autotune.kernels.rope_fp8.op import rope_fp8, rope_fp8_reference, rotary_table

    table = rotary_table(4096, 128, device="cuda")
    for tokens in (1, 3, 64, 1000):
        x = torch.randn(tokens, 32, 128, device="cuda").to(torch.bfloat16)
        positions = torch.randint(0, 4096, (tokens,), device="cuda")
        out, scale = rope_fp8(x, positions, table, naive)
        rotated, scales = rope_fp8_reference(x, positions, table)
        assert relative_l2(scale, scales) < 1e-5
        assert relative_l2(out.float() * scale[..., None], rotated) < 3e-2


BACKENDS = [
    pytest.param(
        "triton", TritonCandidate(tile=Tile(block_m=16, block_n=64, block_k=128), swap_ab=True), id="triton"
    ),
    pytest.param(
        "triton", TritonCandidate(tile=Tile(block_m=64, block_n=128, block_k=128)), id="triton-plain"
    ),
    pytest.param("vllm_cutlass", VllmCutlassCandidate(), id="vllm_cutlass"),
    pytest.param("flashinfer_cutlass", FlashinferCutlassCandidate(), id="flashinfer_cutlass"),
    pytest.param("deep_gemm", DeepGemmCandidate(), id="deep_gemm"),
]


@needs_vllm
@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize(("name", "candidate"), BACKENDS)
def test_vllm_backends_match_reference(environment, scheme, name, candidate):
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=16, N=768, K=2048, topk=4, scheme=scheme)
    backend = get_backend(name)
    support = backend.supports(problem, environment)
    if not support.ok:
        assert support.reason
        pytest.skip(support.reason)
    if name == "flashinfer_cutlass":
        require_flashinfer(scheme.value)
    weights = make_weights(problem, 1)
    prepared = backend.prepare(weights)
    call = backend.bind(prepared, candidate)
    for tokens in (1, 7, 64, 515, 2048):
        inputs = make_inputs(problem, tokens, tokens)
        reference = reference_moe(weights, inputs, power_of_two_scales=backend.power_of_two_scales(problem))
        error = relative_l2(call(inputs), reference)
        assert error < (1e-2 if scheme is Scheme.BF16 else 3e-2), (tokens, error)


@needs_vllm
@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize(("name", "candidate"), BACKENDS)
@pytest.mark.parametrize(("n", "k"), [(96, 2880), (704, 2880), (1856, 2880), (1856, 2048)])
def test_vllm_backends_are_right_at_odd_widths_or_refuse_them(environment, scheme, name, candidate, n, k):
    """No multiples of a tile, and of 128 only in part."""
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights

    problem = Problem(E=16, N=n, K=k, topk=4, scheme=scheme)
    backend = get_backend(name)
    support = backend.supports(problem, environment)
    if not support.ok:
        assert support.reason
        return
    if name == "flashinfer_cutlass":
        require_flashinfer(scheme.value)
    weights = make_weights(problem, 1)
    call = backend.bind(backend.prepare(weights), candidate)
    for tokens in (1, 7, 515):
        inputs = make_inputs(problem, tokens, tokens)
        reference = reference_moe(weights, inputs, power_of_two_scales=backend.power_of_two_scales(problem))
        error = relative_l2(call(inputs), reference)
        assert error < (1e-2 if scheme is Scheme.BF16 else 3e-2), (tokens, error)


@needs_vllm
@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("tokens", [1, 8, 64, 512])
def test_compile_ahead_covers_what_runs(environment, scheme, tokens):
    """After compile_ahead the launch finds every kernel of its own in Triton's cache."""
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.weights import make_inputs, make_weights
    from autotune.measure.compiles import counting_compiles

    problem = Problem(E=16, N=384, K=1024, topk=4, scheme=scheme)
    weights = make_weights(problem, 1)
    small = Tile(block_m=32, block_n=64, block_k=64, num_stages=2)
    # vLLM's layer launches Triton kernels beside its GEMMs, the same for every tile: another tile brings
    # them in first.
    other = small.model_copy(update={"block_n": 128})
    for candidate, before in (
        (TritonCandidate(tile=small, swap_ab=scheme.is_fp8), TritonCandidate(tile=other)),
        (fused(32, 64, 64, 64, False), fused(32, 128, 128, 64, False)),
    ):
        backend = get_backend(candidate.backend)
        prepared = backend.prepare(weights)
        inputs = make_inputs(problem, tokens, 1)
        backend.bind(prepared, before)(inputs)
        backend.compile_ahead(problem, tokens, candidate)
        with counting_compiles() as compiled:
            backend.bind(prepared, candidate)(inputs)
        assert compiled.count == 0, compiled.names


@needs_vllm
def test_baseline_is_what_vllm_selects(environment):
    from autotune.kernels.backends.registry import baseline_candidate

    block = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.FP8_BLOCK128)
    found = baseline_candidate(block, "fp8", 8)
    assert found.backend == "triton"
    tensor = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.FP8_TENSOR)
    expected = "flashinfer_cutlass" if environment.flashinfer else "triton"
    assert baseline_candidate(tensor, "fp8", 8).backend == expected
    plain = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.BF16)
    assert baseline_candidate(plain, "unquantized", 8).backend == "triton"
    channel = Problem(E=128, N=768, K=2048, topk=8, scheme=Scheme.FP8_CHANNEL)
    assert baseline_candidate(channel, "compressed-tensors", 8).backend == "vllm_cutlass"
