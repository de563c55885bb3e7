"""Inside a GPU process: check and time the candidates of one task."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from autotune.kernels.backends.base import Backend
from autotune.kernels.backends.registry import all_backends
from autotune.kernels.reference import reference_moe, relative_l2
from autotune.kernels.specs import fits
from autotune.kernels.weights import LayerInputs, MoeWeights, make_inputs, make_weights
from autotune.measure.compiles import counting_compiles
from autotune.measure.outcome import NoResult, Outcome
from autotune.measure.timing import Call, TimedGraph, calls_per_graph, capture, estimate_us, time_pairs
from autotune.vocabulary.candidate import BackendName, Candidate
from autotune.vocabulary.canonical import significant
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.measurement import Stage, Status, error_limit
from autotune.vocabulary.problem import Problem

BLOCKS = {Stage.SCREEN: 4, Stage.FINAL: 10}
REPLAYS = {Stage.SCREEN: 2, Stage.FINAL: 3}
L2_MULTIPLE = 4
"""Weights are copied until they are this many times the L2 cache, as a whole model's are."""
TUNE_TOKENS = 8192
"""FlashInfer's tuner covers its buckets up to this count in one call (its tune_max_num_tokens default)."""


@dataclass
class _Baseline:
    timed: TimedGraph
    error: float
    estimate_us: float


class _Oracle:
    """The reference output of one check, computed once per format of activation scales."""

    def __init__(self, weights: MoeWeights, inputs: LayerInputs) -> None:
        self._weights = weights
        self.inputs = inputs
        self._answers: dict[bool, torch.Tensor] = {}

    def answer(self, power_of_two_scales: bool) -> torch.Tensor:
        if power_of_two_scales not in self._answers:
            self._answers[power_of_two_scales] = reference_moe(
                self._weights, self.inputs, power_of_two_scales=power_of_two_scales
            )
        return self._answers[power_of_two_scales]


class Bench:
    """Holds one problem's weights on the GPU, prepared for the backends used so far."""

    def __init__(self, problem: Problem, environment: Environment, seed: int, device: str = "cuda") -> None:
        self.device = device
        self.problem = problem
        self.environment = environment
        self.seed = seed
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        layer = problem.E * problem.weight_bytes_per_expert
        copies = max(1, math.ceil(L2_MULTIPLE * l2 / layer))
        self.weights: list[MoeWeights] = [make_weights(problem, seed + i, device) for i in range(copies)]
        self.backends = all_backends()
        self._prepared: dict[BackendName, list[Any]] = {}
        self.setup_s: dict[BackendName, float] = {}
        self.tuning_s: dict[BackendName, float] = {}

    def _draw(self, tokens: int, seed: int, routing: str = "uniform") -> LayerInputs:
        return make_inputs(self.problem, tokens, seed, routing, self.device)

    def prepared(self, name: BackendName) -> tuple[Backend, list[Any]]:
        """The backend with its weights, prepared and tuned on first use."""
        backend = self.backends.get(name)
        if backend is None:
            raise NoResult(Status.UNSUPPORTED, f"{name} is not part of this release")
        support = backend.supports(self.problem, self.environment)
        if not support.ok:
            raise NoResult(Status.UNSUPPORTED, support.reason)
        if name not in self._prepared:
            prepared = [backend.prepare(weights) for weights in self.weights]
            start = time.perf_counter()
            self.tuning_s[name] = backend.tune(prepared[0], self._draw(TUNE_TOKENS, self.seed))
            self.setup_s[name] = time.perf_counter() - start if self.tuning_s[name] else 0.0
            self._prepared[name] = prepared
        return backend, self._prepared[name]

    def calls(self, candidate: Candidate) -> tuple[Backend, list[Call]]:
        """One callable per weight copy."""
        backend, prepared = self.prepared(candidate.backend)
        return backend, [backend.bind(p, candidate) for p in prepared]

    def run(
        self,
        tokens: int,
        routing: str,
        seed: int,
        stage: Stage,
        baseline: Candidate,
        candidates: list[Candidate],
        begin: Callable[[int], None] = lambda index: None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each candidate's index and outcome. The baseline itself may be among them.

        Args:
            begin: called with the index just before a candidate is touched, -1 for the baseline.
        """
        distinct = 8 if tokens <= 512 else 4 if tokens <= 4096 else 2
        # Whole rounds over the weight copies, so that every graph runs the same calls.
        distinct = math.ceil(distinct / len(self.weights)) * len(self.weights)
        inputs = [self._draw(tokens, seed * 1000 + i, routing) for i in range(distinct)]
        check = self._draw(tokens, seed * 1000 + 999, routing)
        oracle = _Oracle(self.weights[0], check)
        begin(-1)
        base = self._baseline(baseline, inputs, oracle)
        limit = error_limit(self.problem.scheme, base.error)
        for index, candidate in enumerate(candidates):
            begin(index)
            try:
                yield index, self._one(candidate, base, inputs, oracle, limit, stage)
            except NoResult as ended:
                yield index, Outcome(ended.status, ended.reason, baseline_relative_error=_finite(base.error))
            except Exception as error:
                if is_fatal(error):
                    raise
                status, reason = classify(error)
                yield index, Outcome(status, reason, baseline_relative_error=_finite(base.error))

    def _baseline(self, baseline: Candidate, inputs: list[LayerInputs], oracle: _Oracle) -> _Baseline:
        backend, calls = self.calls(baseline)
        error, _ = self._check(backend, calls[0], oracle)
        estimate = estimate_us(calls[0], inputs[0])
        return _Baseline(self._capture(backend, calls, inputs, estimate), error, estimate)

    def _one(
        self,
        candidate: Candidate,
        base: _Baseline,
        inputs: list[LayerInputs],
        oracle: _Oracle,
        limit: float,
        stage: Stage,
    ) -> Outcome:
        fit = fits(candidate, self.problem, self.environment)
        if not fit.ok:
            raise NoResult(Status.OUT_OF_RESOURCES, fit.reason)
        backend, calls = self.calls(candidate)
        start = time.perf_counter()
        with counting_compiles() as compiled:
            error, peak = self._check(backend, calls[0], oracle)
        compile_s = significant(time.perf_counter() - start, 3) if compiled.count else None
        tactic = backend.tactic(self._prepared[candidate.backend][0], candidate, oracle.inputs)
        tuning_s, setup_s = self.tuning_s[candidate.backend], self.setup_s[candidate.backend]
        if not candidate.servable:  # a state before tuning, which costs none
            tuning_s, setup_s = 0.0, setup_s - tuning_s
        common = {
            "relative_error": _finite(error),
            "baseline_relative_error": _finite(base.error),
            "compile_s": compile_s,
            "setup_s": significant(setup_s, 3) or None,
            "tactic": tactic,
            "tuning_s": significant(tuning_s, 3) or None,
            "peak_bytes": peak + backend.scratch_bytes(self._prepared[candidate.backend][0], oracle.inputs),
        }
        if not error <= limit:
            reason = (
                "the output has NaN, infinity or unwritten elements"
                if math.isinf(error)
                else f"relative L2 error {error:.3g} exceeds {limit:.3g}"
            )
            return Outcome(Status.WRONG, reason, **common)  # type: ignore[arg-type]
        # A graph of its own even for the baseline: what it then shows against itself is the noise.
        timed = self._capture(backend, calls, inputs, base.estimate_us)
        times = time_pairs(base.timed, timed, BLOCKS[stage], REPLAYS[stage])
        return Outcome(Status.OK, times=times.model_dump(mode="json"), **common)  # type: ignore[arg-type]

    def _capture(
        self, backend: Backend, calls: list[Call], inputs: list[LayerInputs], estimate: float
    ) -> TimedGraph:
        total = calls_per_graph(estimate, len(inputs))
        rounds = [(calls[i % len(calls)], inputs[i % len(inputs)]) for i in range(total)]
        return capture(rounds, backend.scratch)

    def _check(self, backend: Backend, call: Call, oracle: _Oracle) -> tuple[float, int]:
        """Relative error on fresh inputs with all memory poisoned, and peak memory in bytes."""
        check = oracle.inputs
        call(check)  # compiles and allocates what stays
        for buffer in backend.scratch():
            buffer.view(torch.uint8).fill_(0xFF)  # NaN in bfloat16 and in float8_e4m3fn
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with poisoned_memory():
            output = call(check)
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        return relative_l2(output, oracle.answer(backend.power_of_two_scales(self.problem))), peak


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Have torch fill every new tensor with NaN (integers: the maximum), so that unwritten outputs show."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic)
            memory.fill_uninitialized_memory = filled


def is_fatal(error: BaseException) -> bool:
    """Whether the CUDA context is lost, so that the process must be replaced."""
    text = str(error).lower()
    return isinstance(error, getattr(torch, "AcceleratorError", ())) or any(
        sign in text
        for sign in (
            "cuda error",
            "illegal memory access",
            "unspecified launch failure",
            "device-side assert",
        )
    )


def classify(error: BaseException) -> tuple[Status, str]:
    """The status that an exception from a candidate means, with its reason."""
    reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
        :500
    ]
    name = type(error).__name__
    if name in ("OutOfResources", "OutOfMemoryError"):
        return Status.OUT_OF_RESOURCES, reason
    if name in (
        "CompilationError",
        "PTXASError",
        "CompileTimeAssertionFailure",
        "UnsupportedLanguageConstruct",
    ):
        return Status.COMPILE_ERROR, reason
    if isinstance(error, (NotImplementedError, ImportError)):
        return Status.UNSUPPORTED, reason
    return Status.CRASHED, reason


def _finite(value: float) -> float | None:
    return significant(value, 4) if math.isfinite(value) else None
