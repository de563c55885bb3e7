"""`fused_decode` from the gate on, on a real GPU: the gate's sums, the choice, and launches that overlap."""

from __future__ import annotations

import pytest

from autotune.client.sources import starter
from autotune.vocabulary.candidate import FusedDecodeCandidate
from autotune.vocabulary.catalogue import resolve_problem
from autotune.vocabulary.problem import Problem, Scheme
from tests.kernels.test_gpu import decode_candidate

pytestmark = pytest.mark.gpu

MODELS = ("qwen-moe-fp8-tensor", "qwen-moe-fp8", "qwen-moe-bf16")
"""Qwen3-30B-A3B in the three schemes."""
FORMS = ("plain", "split", "quantized first", "narrow", "held", "crowded")
SAME = 1e-3
"""Largest relative L2 distance where only the routing weights' last float32 place may differ."""


def limit(scheme: Scheme) -> float:
    return 1e-2 if scheme is Scheme.BF16 else 3e-2


class Layer:
    """A layer's weights with the gate in front of it."""

    def __init__(self, problem: Problem, seed: int) -> None:
        import torch

        from autotune.kernels.weights import make_weights

        self.problem = problem
        self.weights = make_weights(problem, seed)
        generator = torch.Generator(device="cuda").manual_seed(seed + 77)
        rows = torch.randn(problem.E, problem.K, generator=generator, device="cuda")
        self.rows = (rows * problem.K**-0.5).to(torch.bfloat16)

    def hidden(self, seed: int):
        from autotune.kernels.weights import make_inputs

        return make_inputs(self.problem, 1, seed).hidden

    def plan(self, hidden, candidate, output, renormalize=True):
        from autotune.kernels.fused_decode.op import Gate, plan_from_gate

        return plan_from_gate(self.weights, Gate(self.rows, renormalize), hidden, candidate, output)

    def run(self, hidden, candidate, renormalize=True):
        """Output `[1, K]` and the kernel's logits `[E]`; the counters must be zero afterwards."""
        import torch

        output = torch.full_like(hidden, float("nan"))
        launches = self.plan(hidden, candidate, output, renormalize)
        for launch in launches:
            launch.run()
        assert not launches[1].arguments[15].any()
        return output, launches[0].arguments[2]

    def given(self, hidden, ids, weights, candidate):
        """The layer alone, with experts that somebody else chose."""
        from autotune.kernels.fused_decode.op import plan
        from autotune.kernels.launch import run_layer

        return run_layer(plan, self.weights, self.inputs(hidden, ids, weights), candidate)

    @staticmethod
    def inputs(hidden, ids, weights):
        import torch

        from autotune.kernels.weights import LayerInputs

        return LayerInputs(hidden, ids.view(1, -1).to(torch.int32), weights.view(1, -1).float())


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    """Two layers of one model."""
    problem, _ = resolve_problem(request.param)
    return Layer(problem, 1), Layer(problem, 2)


def best(problem: Problem) -> FusedDecodeCandidate:
    """What the starter table runs for one token."""
    (table,) = (found.table for found in starter().tables if found.problem == problem)
    winner = table.routes[0].winner
    assert isinstance(winner, FusedDecodeCandidate)
    return winner


def same_bits(one, other) -> bool:
    import torch

    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def ordered(values):
    """bfloat16 as integers of which neighbours differ by one."""
    import torch

    bits = values.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("form", ["best", *FORMS])
def test_the_layer_matches_the_reference_on_torch_s_choice(pair, form):
    from autotune.kernels.reference import reference_moe, relative_l2
    from tests.kernels.interpreted import softmax_topk

    layer, problem = pair[0], pair[0].problem
    candidate = best(problem) if form == "best" else decode_candidate(form, problem.N)
    for seed in range(6):
        renormalize = seed % 2 == 0
        hidden = layer.hidden(seed)
        output, logits = layer.run(hidden, candidate, renormalize)
        ids, weights = softmax_topk(logits, problem.topk, renormalize)
        truth = reference_moe(layer.weights, layer.inputs(hidden, ids, weights))
        assert relative_l2(output, truth) < limit(problem.scheme), seed
        alone = layer.given(hidden, ids, weights, candidate)
        assert relative_l2(output, alone.float()) < SAME, seed
        for _ in range(20):
            again, logits_again = layer.run(hidden, candidate, renormalize)
            assert same_bits(output, again), seed
            assert same_bits(logits, logits_again), seed


@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
@pytest.mark.parametrize(
    ("experts", "n", "k", "topk"), [(60, 1408, 2048, 4), (16, 96, 2880, 16), (12, 256, 7168, 3)]
)
@pytest.mark.parametrize("form", ["plain", "narrow"])
def test_sizes_that_are_no_powers_of_two(scheme, experts, n, k, topk, form):
    from autotune.kernels.reference import reference_moe, relative_l2
    from tests.kernels.interpreted import softmax_topk

    if scheme is Scheme.FP8_BLOCK128 and (n % 128 or k % 128):
        pytest.skip("block scales need multiples of 128")
    layer, candidate = (
        Layer(Problem(E=experts, N=n, K=k, topk=topk, scheme=scheme), 1),
        decode_candidate(form, n),
    )
    for seed in range(4):
        hidden = layer.hidden(seed)
        output, logits = layer.run(hidden, candidate)
        ids, weights = softmax_topk(logits, topk, True)
        alone = layer.given(hidden, ids, weights, candidate)
        assert relative_l2(output, alone.float()) < SAME, seed
        # The limit is a batch's; of three experts, one token's FP8 rounding comes to 0.0301.
        truth = reference_moe(layer.weights, layer.inputs(hidden, ids, weights))
        assert relative_l2(output, truth) < 1.25 * limit(scheme), seed


def test_logits_are_the_rounded_sums(pair):
    """Half a unit in the last place from the exact sum, and where torch's GEMM comes out but for ties."""
    import torch

    layer = pair[0]
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    try:
        beyond = places = 0
        for seed in range(20):
            hidden = layer.hidden(seed)
            _, logits = layer.run(hidden, best(layer.problem))
            exact = (hidden.double() @ layer.rows.double().T)[0]
            ulp = 2 ** (exact.abs().log2().floor() - 7)
            # float32 sums of 2,048 products of about 1/45 are some 1e-6 off.
            assert ((logits - exact).abs() <= 0.5 * ulp + 1e-5).all(), seed
            theirs = torch.nn.functional.linear(hidden, layer.rows)[0]
            beyond += int(((ordered(logits) - ordered(theirs)).abs() > 1).sum())
            places += logits.numel()
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before
    assert beyond <= places // 100


def test_equal_logits_go_to_the_lower_expert(pair):
    from autotune.kernels.reference import relative_l2
    from tests.kernels.interpreted import softmax_topk

    layer, problem = pair[0], pair[0].problem
    rows, candidate = layer.rows, best(problem)
    try:
        layer.rows = rows[: problem.topk // 2 + 1].repeat(problem.E, 1)[: problem.E].contiguous()
        for seed in range(4):
            hidden = layer.hidden(seed)
            output, logits = layer.run(hidden, candidate)
            assert len(logits.unique()) <= problem.topk // 2 + 1
            ids, weights = softmax_topk(logits, problem.topk, True)
            alone = layer.given(hidden, ids, weights, candidate)
            assert relative_l2(output, alone.float()) < SAME, seed
    finally:
        layer.rows = rows


def test_nan_ends_and_spoils_no_later_token(pair):
    import torch

    layer, candidate = pair[0], best(pair[0].problem)
    hidden = layer.hidden(1)
    wanted, _ = layer.run(hidden, candidate)
    for where in (slice(0, 1), slice(None)):
        broken = hidden.clone()
        broken[0, where] = float("nan")
        output, logits = layer.run(broken, candidate)
        assert logits.isnan().all()
        assert output.isnan().all()
        again, _ = layer.run(hidden, candidate)
        assert same_bits(wanted, again)
    layer.run(torch.zeros_like(hidden), candidate)
    assert same_bits(wanted, layer.run(hidden, candidate)[0])


def test_a_captured_token_gives_the_bits_of_a_plain_call(pair):
    import torch

    layer, candidate = pair[0], best(pair[0].problem)
    hidden = layer.hidden(0)
    layer.run(hidden, candidate)
    output = torch.full_like(hidden, float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in layer.plan(hidden, candidate, output):
            launch.run()
    for seed in range(1, 21):
        wanted, _ = layer.run(layer.hidden(seed), candidate)
        output.fill_(float("nan"))
        hidden.copy_(layer.hidden(seed))
        graph.replay()
        assert same_bits(output, wanted), seed


@pytest.mark.parametrize("captured", [False, True])
def test_two_layers_in_a_row_do_not_run_ahead_of_each_other(pair, captured):
    """The second layer's token is the first one's output; the truth has a pause after every launch."""
    import torch

    candidate = best(pair[0].problem)
    hidden = pair[0].hidden(0)
    between, output = torch.empty_like(hidden), torch.empty_like(hidden)

    def launches():
        return [*pair[0].plan(hidden, candidate, between), *pair[1].plan(between, candidate, output)]

    def one_by_one(seed):
        hidden.copy_(pair[0].hidden(seed))
        torch.cuda.synchronize()
        for launch in launches():
            launch.run()
            torch.cuda.synchronize()
        return between.clone(), output.clone()

    wanted = [one_by_one(seed) for seed in range(50)]
    assert len({tuple(o.flatten().tolist()) for _, o in wanted}) == 50
    tokens = [pair[0].hidden(seed) for seed in range(50)]
    graph = torch.cuda.CUDAGraph()
    if captured:
        with torch.cuda.graph(graph):
            for launch in launches():
                launch.run()
    made = []
    for token in tokens:
        hidden.copy_(token)
        if captured:
            graph.replay()
        else:
            for launch in launches():
                launch.run()
        made.append((between.clone(), output.clone()))
    for seed, (got, true) in enumerate(zip(made, wanted, strict=True)):
        assert same_bits(got[0], true[0]), seed
        assert same_bits(got[1], true[1]), seed


def test_the_choice_is_that_of_vllm_s_kernel(pair):
    ops = pytest.importorskip("vllm._custom_ops")
    import torch

    from autotune.kernels.reference import relative_l2
    from tests.kernels.interpreted import softmax_topk

    layer, problem = pair[0], pair[0].problem
    candidate = best(problem)
    for seed in range(20):
        for renormalize in (True, False):
            hidden = layer.hidden(seed)
            output, logits = layer.run(hidden, candidate, renormalize)
            weights = torch.empty(1, problem.topk, device="cuda")
            ids, rows = torch.empty(2, 1, problem.topk, dtype=torch.int32, device="cuda").unbind()
            ops.topk_softmax(weights, ids, rows, logits.view(1, -1), renormalize)
            mine, mine_weights = softmax_topk(logits, problem.topk, renormalize)
            assert ids[0].tolist() == mine.tolist(), seed
            assert torch.allclose(weights[0], mine_weights, rtol=1e-5, atol=1e-7), seed
            alone = layer.given(hidden, ids, weights, candidate)
            assert relative_l2(output, alone.float()) <= SAME, (seed, renormalize)


def test_nothing_is_compiled_for_another_layer_or_another_rule(pair):
    from autotune.measure.compiles import counting_variants

    candidate = best(pair[0].problem)
    for layer in pair:
        layer.run(layer.hidden(1), candidate)
    with counting_variants() as seen:
        for layer in pair:
            for renormalize in (True, False):
                layer.run(layer.hidden(2), candidate, renormalize)
    assert seen.count == 0
