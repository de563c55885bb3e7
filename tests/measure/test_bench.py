"""What the GPU process decides without a GPU: graph sizes, what an exception means, poisoned memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from autotune.measure.bench import classify, is_fatal, poisoned_memory  # noqa: E402
from autotune.measure.compile_pool import CompilePool  # noqa: E402
from autotune.measure.timing import MAX_CALLS, calls_per_graph  # noqa: E402
from autotune.vocabulary.candidate import DeepGemmCandidate, FusedDecodeCandidate  # noqa: E402
from autotune.vocabulary.measurement import Status  # noqa: E402
from tests.factories import PROBLEM, triton  # noqa: E402


@pytest.mark.parametrize(
    ("estimate_us", "distinct", "calls"),
    [
        (25.0, 8, 40),  # 1,000 us hold 40 calls
        (100.0, 8, 8),
        (60.0, 8, 16),
        (5.0, 8, MAX_CALLS),
        (0.0, 8, MAX_CALLS),
        (20_000.0, 8, 8),  # at least one round over all inputs
        (20_000.0, 2, 2),
        (25.0, 12, 36),  # whole rounds only
    ],
)
def test_a_graph_holds_whole_rounds_of_the_inputs(estimate_us: float, distinct: int, calls: int) -> None:
    assert calls_per_graph(estimate_us, distinct) == calls
    assert calls % distinct == 0


class OutOfResources(Exception):
    """Named as Triton's."""


class CompilationError(Exception):
    """Named as Triton's."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OutOfResources("shared memory, Required: 262144"), Status.OUT_OF_RESOURCES),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), Status.OUT_OF_RESOURCES),
        (CompilationError("at 12:4"), Status.COMPILE_ERROR),
        (NotImplementedError("no swigluoai"), Status.UNSUPPORTED),
        (ModuleNotFoundError("No module named 'deep_gemm'"), Status.UNSUPPORTED),
        (RuntimeError("something\nover two lines"), Status.CRASHED),
        (AssertionError(), Status.CRASHED),
    ],
)
def test_what_an_exception_means(error: Exception, status: Status) -> None:
    found, reason = classify(error)
    assert found is status
    assert reason.startswith(type(error).__name__)
    assert "\n" not in reason
    assert not is_fatal(error)


def test_triton_has_the_errors_that_are_known_by_name() -> None:
    triton_errors = pytest.importorskip("triton.runtime.errors")
    compiler = pytest.importorskip("triton.compiler.errors")
    assert (
        classify(triton_errors.OutOfResources(300_000, 232_448, "shared memory"))[0]
        is Status.OUT_OF_RESOURCES
    )
    assert classify(triton_errors.PTXASError("ptxas failed"))[0] is Status.COMPILE_ERROR
    assert issubclass(compiler.CompileTimeAssertionFailure, compiler.CompilationError)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "Triton Error [CUDA]: unspecified launch failure",
        "CUDA error: device-side assert triggered",
    ],
)
def test_a_lost_cuda_context_is_fatal(text: str) -> None:
    assert is_fatal(RuntimeError(text))


def deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def fail_with_poison() -> None:
    with poisoned_memory():
        assert torch.isnan(torch.empty(64, dtype=torch.bfloat16)).all()
        assert torch.isnan(torch.empty_like(torch.zeros(64))).all()
        assert (torch.empty(64, dtype=torch.int32) == 2**31 - 1).all()
        raise ZeroDivisionError


def test_new_tensors_are_poisoned_and_everything_is_put_back() -> None:
    before = deterministic()
    with pytest.raises(ZeroDivisionError):
        fail_with_poison()
    assert deterministic() == before


def test_the_compile_pool_hands_every_pair_back_once() -> None:
    """Without a GPU nothing compiles, and that is left to the GPU process to report."""
    decode = FusedDecodeCandidate(
        block_m=16, gate_up_block_n=64, gate_up_block_k=64, down_block_n=64, down_block_k=64
    )
    pairs = [(8, DeepGemmCandidate()), (8, triton(16)), (1, triton(16)), (8, decode), (8, triton(32))]
    pool = CompilePool(2)
    try:
        done = list(pool.compile(PROBLEM, pairs))
        assert sorted(map(str, done)) == sorted(map(str, pairs))
        assert len(pool.pids()) == 2
        assert list(pool.compile(PROBLEM, pairs)) == pairs, "what was compiled is not compiled again"
    finally:
        pool.close()
    assert pool.pids() == frozenset()
