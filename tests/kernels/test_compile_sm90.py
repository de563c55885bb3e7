"""Our kernels compiled for Hopper (sm_90) on the CPU: no GPU is needed to see what Triton makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, make_backend  # noqa: E402
from triton.runtime.jit import create_function_from_signature  # noqa: E402

from autotune.kernels.ahead.target import compiling_for  # noqa: E402
from autotune.kernels.backends.fused import unfilled  # noqa: E402
from autotune.kernels.fused_decode import op as fused_decode  # noqa: E402
from autotune.kernels.fused_triton.op import plan  # noqa: E402
from autotune.kernels.launch import Launch  # noqa: E402
from autotune.kernels.specs import decode_shared_bytes, shared_bytes, uses_wgmma  # noqa: E402
from autotune.vocabulary.candidate import FusedDecodeCandidate, FusedTritonCandidate, Tile  # noqa: E402
from autotune.vocabulary.problem import Problem, Scheme  # noqa: E402
from tests.factories import H200  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
GEMMS = {"gate_up_kernel", "down_kernel"}
SCRATCH_BYTES = 2048
"""What Triton may add to the pipeline's buffers for changing layouts in these kernels."""


def name_of(launch: Launch) -> str:
    return str(launch.kernel.fn.__name__)


def bound(launch: Launch) -> tuple[Any, list[Any], dict[str, Any]]:
    """Arguments, specialization and options exactly as a launch on such a GPU derives them."""
    kernel = launch.kernel
    binder = create_function_from_signature(kernel.signature, kernel.params, make_backend(TARGET))
    arguments, specialization, options = binder(*launch.arguments, **launch.options)
    return arguments, specialization, options


def compiled(launch: Launch) -> Any:
    """Compile what a launch would compile; nothing is loaded or run."""
    arguments, specialization, _ = bound(launch)
    options, signature, constants, attributes = launch.kernel._pack_args(
        make_backend(TARGET), dict(launch.options), arguments, specialization, {}
    )
    source = ASTSource(launch.kernel, signature, constants, attributes)
    return triton.compile(source, target=TARGET, options=options.__dict__)


def launches(
    scheme: Scheme, tokens: int, block_m: int, gate_n: int, down_n: int, block_k: int, swap: bool
) -> tuple[FusedTritonCandidate, list[Launch]]:
    problem = Problem(E=16, N=768, K=2048, topk=4, scheme=scheme)
    candidate = FusedTritonCandidate(
        gate_up=Tile(block_m=block_m, block_n=gate_n, block_k=block_k, group_m=4),
        down=Tile(block_m=block_m, block_n=down_n, block_k=block_k, num_stages=2),
        swap_ab=swap,
    )
    weights, inputs = unfilled(problem, tokens)
    return candidate, plan(weights, inputs, candidate, torch.empty_like(inputs.hidden))


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("block_m", "gate_n", "down_n", "block_k"), [(16, 64, 128, 128), (64, 128, 64, 64)])
def test_gemms_use_wgmma_and_the_estimated_shared_memory(
    scheme: Scheme, swap: bool, block_m: int, gate_n: int, down_n: int, block_k: int
) -> None:
    candidate, planned = launches(scheme, 64, block_m, gate_n, down_n, block_k, swap)
    seen = set()
    for launch in planned:
        if name_of(launch) not in GEMMS:
            continue
        seen.add(name_of(launch))
        kernel = compiled(launch)
        tile = candidate.gate_up if name_of(launch) == "gate_up_kernel" else candidate.down
        expected = uses_wgmma(tile, swap, H200)
        # 16 rows are too few for a warp group's 64, unless the weights' columns take their place.
        assert expected is (swap or block_m == 64)
        assert ("wgmma.mma_async" in kernel.asm["ptx"]) is expected
        estimate = shared_bytes(tile, scheme.weight_bytes, 2 if tile is candidate.gate_up else 1, expected)
        assert 0 <= kernel.metadata.shared - estimate <= SCRATCH_BYTES, name_of(launch)
    assert seen == GEMMS


@pytest.mark.parametrize("scheme", list(Scheme))
def test_every_other_kernel_compiles(scheme: Scheme) -> None:
    """Sorting with and without the counting launch, quantizing and summing."""
    seen = set()
    for tokens in (8, 1024):
        for launch in launches(scheme, tokens, 16, 64, 128, 128, True)[1]:
            if name_of(launch) not in GEMMS:
                assert compiled(launch).metadata.shared <= 232_448
                seen.add(name_of(launch))
    kernels = {"count_kernel", "place_kernel", "sum_kernel"}
    assert seen == (kernels | {"quantize_kernel"} if scheme.is_fp8 else kernels)


@pytest.mark.parametrize("scheme", list(Scheme))
@pytest.mark.parametrize("group", [(1, 2, 16, 17, 33, 511), (512, 513, 1000, 2048, 4097)])
def test_token_counts_do_not_specialize(scheme: Scheme, group: tuple[int, ...]) -> None:
    """Triton compiles anew for an integer that is 1 or divisible by 16, unless told not to.

    The groups lie on either side of the count from which sorting counts in a launch of its own.
    """
    keys: dict[str, set[str]] = {}
    for tokens in group:
        for position, launch in enumerate(launches(scheme, tokens, 16, 64, 128, 128, True)[1]):
            _, specialization, options = bound(launch)
            keys.setdefault(f"{position} {name_of(launch)}", set()).add(f"{specialization} {options}")
    assert {name for name, found in keys.items() if len(found) > 1} == set()


def test_an_ordinary_integer_would_specialize() -> None:
    """The check above can fail: without `do_not_specialize` 1, 16 and 17 differ."""
    from autotune.kernels.fused_triton import _sort

    plain = triton.jit(_sort.count_kernel.fn)
    binder = create_function_from_signature(plain.signature, plain.params, make_backend(TARGET))
    ids = torch.empty(64, dtype=torch.int32)
    keys = {str(binder(ids, ids, pairs, EXPERTS=4, BINS=8, CHUNK=128)[1]) for pairs in (1, 16, 17)}
    assert len(keys) == 3


DECODE = [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128]


def decode_launches(
    scheme: Scheme, tokens: int, **options: object
) -> tuple[FusedDecodeCandidate, list[Launch]]:
    problem = Problem(E=128, N=768, K=2048, topk=8, scheme=scheme)
    shape = {"block_m": 16, "gate_up_block_n": 32, "gate_up_block_k": 128, "gate_up_stages": 4}
    shape |= {"down_block_n": 64, "down_block_k": 128, "down_stages": 4}
    candidate = FusedDecodeCandidate.model_validate(shape | options)
    weights, inputs = unfilled(problem, tokens)
    return candidate, list(fused_decode.plan(weights, inputs, candidate, torch.empty_like(inputs.hidden)))


@pytest.mark.parametrize(
    "scheme", [pytest.param(s, marks=[pytest.mark.slow] if s is Scheme.BF16 else []) for s in DECODE]
)
@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        (1, {}),
        (64, {}),
        (1, {"block_m": 8, "quantize_first": True}),
        (64, {"quantize_first": True, "down_stages": 6}),
        (64, {"num_warps": 2, "down_split_k": 2}),
        (1, {"down_stages": 0, "down_split_k": 2, "quantize_first": True}),
        (64, {"crowded_block_m": 32, "quantize_first": True}),
        (64, {"crowded_block_m": 32, "gate_up_stages": 2, "down_stages": 2}),
    ],
    ids=str,
)
def test_the_decode_kernel_fits_as_estimated(scheme: Scheme, tokens: int, options: dict[str, object]) -> None:
    candidate, (launch,) = decode_launches(scheme, tokens, **options)
    problem = Problem(E=128, N=768, K=2048, topk=8, scheme=scheme)
    kernel = compiled(launch)
    # Warp-group MMA needs a warp group and 16 columns; the small forms use the older instruction.
    assert ("wgmma" in kernel.asm["ptx"]) == (candidate.block_m >= 16 and candidate.num_warps >= 4)
    assert "cp.async" in kernel.asm["ptx"]
    assert "ld.acquire.gpu" in kernel.asm["ptx"]
    estimate = decode_shared_bytes(candidate, problem)
    assert 0 <= kernel.metadata.shared - estimate <= SCRATCH_BYTES + 2048


@pytest.mark.parametrize("scheme", DECODE)
def test_the_decode_kernel_has_few_variants_over_all_token_counts(scheme: Scheme) -> None:
    variants: dict[str, set[str]] = {}
    for tokens in range(1, 129):
        for launch in decode_launches(scheme, tokens)[1]:
            _, specialization, _ = bound(launch)
            constants = {k: v for k, v in launch.options.items() if k.isupper()}
            variants.setdefault(name_of(launch), set()).add(str((specialization, sorted(constants.items()))))
    # Scans of 16 pairs, each block for itself, and of 128 and 1,024, listed ahead.
    assert {name: len(found) for name, found in variants.items()} == {"layer_kernel": 3}


def gate_launches(
    scheme: Scheme, renormalize: bool = True, capability: tuple[int, int] = (9, 0)
) -> tuple[FusedDecodeCandidate, list[Launch]]:
    """The token's two launches as such a GPU gets them."""
    candidate, _ = decode_launches(scheme, 1, quantize_first=scheme.is_fp8)
    weights, inputs = unfilled(Problem(E=128, N=768, K=2048, topk=8, scheme=scheme), 1)
    gate = fused_decode.Gate(torch.empty(128, 2048, dtype=torch.bfloat16), renormalize)
    with compiling_for(capability):
        made = fused_decode.plan_from_gate(
            weights, gate, inputs.hidden, candidate, torch.empty_like(inputs.hidden)
        )
    return candidate, made


@pytest.mark.parametrize("scheme", DECODE)
def test_a_token_s_two_launches_compile_and_depend_on_each_other(scheme: Scheme) -> None:
    """The layer's may begin before the gate's is done: it waits for that itself, or reads old logits."""
    candidate, (gate, layer) = gate_launches(scheme)
    first, second = compiled(gate), compiled(layer)
    assert first.metadata.launch_pdl is False, "the gate's waits for all that came before it"
    assert second.metadata.launch_pdl is True
    assert "griddepcontrol.launch_dependents" in first.asm["ptx"]
    assert "griddepcontrol.wait" in second.asm["ptx"]
    before, _, after = second.asm["ptx"].partition("griddepcontrol.wait")
    assert "ld.global" not in before
    assert "cp.async" in after
    problem = Problem(E=128, N=768, K=2048, topk=8, scheme=scheme)
    estimate = decode_shared_bytes(candidate, problem)
    assert 0 <= second.metadata.shared - estimate <= SCRATCH_BYTES + 2048


def test_launches_depend_on_each_other_from_hopper_on() -> None:
    for capability, dependent in (((8, 9), False), ((9, 0), True), ((10, 0), True)):
        _, made = gate_launches(Scheme.FP8_TENSOR, capability=capability)
        assert [launch.options["PDL"] for launch in made] == [dependent] * 2, capability
        assert [launch.options.get("launch_pdl", False) for launch in made] == [False, dependent], capability


@pytest.mark.parametrize("scheme", DECODE)
def test_the_gate_adds_one_variant_of_each_kernel(scheme: Scheme) -> None:
    """Whether weights are renormalized is told at run time."""
    ours: dict[str, set[object]] = {}
    theirs: dict[str, set[str]] = {}
    plain = decode_launches(scheme, 1, quantize_first=scheme.is_fp8)[1]
    for launch in [*plain, *(one for r in (True, False) for one in gate_launches(scheme, r)[1])]:
        _, specialization, _ = bound(launch)
        ours.setdefault(name_of(launch), set()).add(launch._key())
        constants = sorted(launch.options.items())
        theirs.setdefault(name_of(launch), set()).add(f"{specialization} {constants}")
    assert {name: len(found) for name, found in theirs.items()} == {"gate_kernel": 1, "layer_kernel": 2}
    assert {name: len(found) for name, found in ours.items()} == {"gate_kernel": 1, "layer_kernel": 2}
    assert None not in ours["gate_kernel"] | ours["layer_kernel"]


def rope_launch(tokens: int, naive: bool) -> Launch:
    from autotune.kernels.rope_fp8.op import plan

    x = torch.empty(tokens, 4, 64, dtype=torch.bfloat16)
    out, scale = x.to(torch.float8_e4m3fn), torch.empty(tokens, 4)
    return plan(x, torch.zeros(tokens, dtype=torch.int64), torch.empty(8, 64), out, scale, naive)


def every_launch(tokens: int) -> list[Launch]:
    made = [launch for scheme in Scheme for launch in launches(scheme, tokens, 16, 64, 128, 128, True)[1]]
    made += [launch for scheme in DECODE for launch in decode_launches(scheme, tokens)[1]]
    made += [launch for scheme in DECODE for launch in gate_launches(scheme)[1]]
    return [*made, rope_launch(tokens, naive=False)]


@pytest.mark.parametrize("tokens", [1, 100])
def test_a_launch_without_triton_s_look_up_passes_what_triton_would(tokens: int) -> None:
    for launch in every_launch(tokens):
        arguments, _, _ = bound(launch)
        passed = (*launch.arguments, *launch.constants())
        assert len(passed) == len(arguments) == len(launch.kernel.params)
        for ours, (name, theirs) in zip(passed, arguments.items(), strict=True):
            assert ours is theirs, (name_of(launch), name)


def test_launches_share_a_compiled_kernel_exactly_where_triton_does() -> None:
    """By Triton's own binder: the token count makes no difference, a tensor's type and a tile do."""
    ours: dict[str, set[object]] = {}
    theirs: dict[str, set[str]] = {}
    kinds = [launch for tokens in (1, 2, 16, 17, 100, 128) for launch in every_launch(tokens)]
    kinds += launches(Scheme.BF16, 100, 64, 64, 64, 64, False)[1]
    _, other = launches(Scheme.BF16, 100, 16, 64, 128, 128, True)
    kinds += [replace(o, arguments=(o.arguments[0].to(torch.float64), *o.arguments[1:])) for o in other]
    for launch in kinds:
        key = launch._key()
        assert key is not None
        _, specialization, _ = bound(launch)
        ours.setdefault(name_of(launch), set()).add(key)
        constants = sorted(launch.options.items())
        theirs.setdefault(name_of(launch), set()).add(f"{specialization} {constants}")
    assert {name: len(keys) for name, keys in ours.items()} == {n: len(k) for n, k in theirs.items()}
    assert len(ours["gate_up_kernel"]) == 4 + 2


def test_an_address_that_few_calls_have_goes_through_triton() -> None:
    (launch,) = decode_launches(Scheme.BF16, 1)[1]
    shifted = torch.empty(launch.arguments[0].numel() + 1, dtype=torch.bfloat16)[1:]
    assert replace(launch, arguments=(shifted, *launch.arguments[1:]))._key() is None
    for other in (1 << 31, -1, True, None, 0.5):
        assert replace(launch, arguments=(*launch.arguments[:-1], other))._key() is None


def test_a_kernel_that_is_specialized_on_a_number_goes_through_triton() -> None:
    """For another number Triton may launch another variant, so the first one's must not be used again."""
    made = [rope_launch(tokens, naive=True) for tokens in (1, 16, 17)]
    assert len({str(bound(launch)[1]) for launch in made}) == 3
    assert [launch._key() for launch in made] == [None] * 3


def test_more_pairs_than_a_block_scans_are_refused() -> None:
    with pytest.raises(ValueError, match="1024"):
        decode_launches(Scheme.BF16, 129)


GATE = Problem(E=8, N=128, K=256, topk=2, scheme=Scheme.FP8_TENSOR)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ep": 2}, "experts of other ranks"),
        ({"scheme": Scheme.FP8_CHANNEL}, "no scales by channel"),
        ({"topk": 17, "E": 32}, "up to 16 experts a token, not 17"),
        ({"tokens": 2}, r"hidden: \(2, 256\) in torch.bfloat16, not \(1, 256\) in bfloat16"),
        ({"hidden": torch.float8_e4m3fn}, r"hidden: \(1, 256\) in torch.float8_e4m3fn, not"),
        ({"gate": torch.float32}, r"the gate: \(8, 256\) in torch.float32, not \(8, 256\) in bfloat16"),
        ({"output": torch.float16}, r"output: \(1, 256\) in torch.float16, not"),
        ({"experts": 9}, r"the gate: \(9, 256\) in torch.bfloat16, not \(8, 256\)"),
        ({"strided": True}, r"the gate: \(8, 256\) in torch.bfloat16, .* row after row"),
    ],
    ids=str,
)
def test_what_the_gate_s_kernels_do_not_take_is_refused(change: dict[str, Any], said: str) -> None:
    problem = GATE.model_copy(update={k: v for k, v in change.items() if k in ("ep", "topk", "E", "scheme")})
    weights, inputs = unfilled(problem, change.get("tokens", 1))
    hidden = inputs.hidden.to(change.get("hidden", torch.bfloat16))
    output = torch.empty_like(inputs.hidden[:1], dtype=change.get("output", torch.bfloat16))
    rows = torch.zeros(change.get("experts", problem.E), problem.K, dtype=change.get("gate", torch.bfloat16))
    if "strided" in change:
        rows = rows.T.contiguous().T
    candidate = FusedDecodeCandidate(
        block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
    )
    with pytest.raises(ValueError, match=said):
        fused_decode.plan_from_gate(weights, fused_decode.Gate(rows, True), hidden, candidate, output)
