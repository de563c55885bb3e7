"""A single token from the router's gate to the layer's output: vLLM's gate and choice against ours.

    python benchmarks/gate.py [--shape E=128,N=768,K=2048,topk=8,scheme=fp8_tensor] [--layers 12] [--quick]
                              [--out FOLDER]

The baseline is three steps: the gate's GEMM (torch), vLLM's `topk_softmax`, and the layer with
`fused_decode`. Against it `fused_decode` from the gate on, which is two launches, and the parts by
themselves, which need not add up to the whole. Each runs in turns with the baseline on CUDA graphs, over the
weights of --layers layers in turn, as a model reads them. A ratio is the baseline's time over the row's
(above 1: faster), with its two-sided 90% interval, a bootstrap over captures and blocks of one process; the
baseline against itself shows what is noise.

Outputs are compared, too, as relative L2 distances: with the baseline, whose GEMM may round a logit otherwise
and so choose another expert (those tokens are counted, and left out), and with the baseline's steps after our
logits. Needs a CUDA GPU with room for --layers layers (0.6 GB each), and vLLM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from autotune.kernels.launch import Launch
    from autotune.kernels.weights import MoeWeights
    from autotune.vocabulary.candidate import FusedDecodeCandidate
    from autotune.vocabulary.environment import Environment
    from autotune.vocabulary.measurement import PairedTimes
    from autotune.vocabulary.problem import Problem

QWEN = "E=128,N=768,K=2048,topk=8,scheme=fp8_tensor"
FORM = {
    "block_m": 16, "gate_up_block_n": 32, "gate_up_block_k": 128, "gate_up_stages": 4, "down_block_n": 64,
    "down_block_k": 128, "down_stages": 3,
}  # fmt: skip
"""For a layer whose starter table has no form of `fused_decode` at 1 token."""
MOST_BITS = 110
"""FP8 below this are 104 at most; random ones, without NaN, have a root mean square of RMS."""
RMS = 24.67
SAME = 1e-3
"""Largest distance from the baseline's steps after our logits: routing weights may differ in a last place."""
MOST_CHOSEN = 16
"""As `plan_from_gate` takes them."""
BASELINE = "gate GEMM, topk_softmax, layer"


def form(problem: Problem) -> FusedDecodeCandidate:
    """What the starter table runs for a single token, if it is `fused_decode`, else a common form."""
    from autotune.client.sources import starter
    from autotune.vocabulary.candidate import FusedDecodeCandidate

    for found in starter().tables:
        if found.problem == problem and found.table is not None:
            for route in found.table.routes:
                if route.first <= 1 <= route.last and isinstance(route.winner, FusedDecodeCandidate):
                    return route.winner
    return FusedDecodeCandidate.model_validate({**FORM, "quantize_first": problem.scheme.is_fp8})


def layer_weights(problem: Problem, seed: int, device: str = "cuda") -> tuple[MoeWeights, torch.Tensor]:
    """A layer's weights, FP8 from random bits, and its gate `[E, K]`: quicker to make than quantized ones.

    Of zero mean and 1/sqrt(fan-in), as those of `make_weights`.
    """
    import torch

    from autotune.kernels.weights import FP8_MAX, MoeWeights
    from autotune.vocabulary.problem import Scheme

    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = (problem.E, rows, columns)
        if not problem.scheme.is_fp8:
            values = torch.empty(shape, dtype=torch.bfloat16, device=device)
            return values.normal_(0, columns**-0.5, generator=generator), None
        bits, sign = (
            torch.randint(most, shape, dtype=torch.uint8, device=device, generator=generator)
            for most in (MOST_BITS, 2)
        )
        bits |= sign << 7
        blocks = problem.scheme is Scheme.FP8_BLOCK128
        scales = (problem.E, rows // 128, columns // 128) if blocks else (problem.E,)
        return bits.view(torch.float8_e4m3fn), torch.full(scales, columns**-0.5 / RMS, device=device)

    w13, w13_scale = draw(problem.gate_up_rows, problem.K)
    w2, w2_scale = draw(problem.K, problem.N)
    a1_scale = a2_scale = None
    if problem.scheme is Scheme.FP8_TENSOR:  # as `make_weights` has them
        a1_scale, a2_scale = (torch.tensor(most / FP8_MAX, device=device) for most in (4.5, 6.0))
    rows = torch.randn(problem.E, problem.K, generator=generator, device=device) * problem.K**-0.5
    return MoeWeights(problem, w13, w2, w13_scale, w2_scale, a1_scale, a2_scale), rows.to(torch.bfloat16)


class Token:
    """The steps of a single token in each layer; steps take the layer's number.

    Args:
        topk_softmax: vLLM's (`vllm._custom_ops.topk_softmax`).
    """

    def __init__(
        self,
        problem: Problem,
        candidate: FusedDecodeCandidate,
        layers: int,
        topk_softmax: Callable[..., None],
        device: str = "cuda",
    ) -> None:
        self.problem, self.candidate, self.topk_softmax = problem, candidate, topk_softmax
        self.layers = [layer_weights(problem, 1 + n, device) for n in range(layers)]
        self.draw(0)

    def draw(self, seed: int) -> None:
        """Another token for each layer."""
        import torch

        device = self.layers[0][1].device
        generator = torch.Generator(device=device).manual_seed(seed + (1 << 30))
        tokens = torch.randn(len(self.layers), 1, self.problem.K, generator=generator, device=device)
        self.hidden = list(tokens.to(torch.bfloat16))
        self.fixed = [self.gate_and_choice(n) for n in range(len(self.layers))]

    def choice(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and experts `[1, topk]` by vLLM from logits `[1, E]`."""
        import torch

        shape, device = (1, self.problem.topk), logits.device
        weights = torch.empty(shape, dtype=torch.float32, device=device)
        ids = torch.empty(shape, dtype=torch.int32, device=device)
        self.topk_softmax(weights, ids, torch.empty_like(ids), logits, True)
        return weights, ids

    def gate_and_choice(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        return self.choice(torch.nn.functional.linear(self.hidden[n], self.layers[n][1]))

    def layer(self, n: int, chosen: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        from autotune.kernels.fused_decode.op import plan
        from autotune.kernels.launch import run_layer
        from autotune.kernels.weights import LayerInputs

        inputs = LayerInputs(self.hidden[n], chosen[1], chosen[0])
        return run_layer(plan, self.layers[n][0], inputs, self.candidate)

    def launches(self, n: int) -> tuple[list[Launch], torch.Tensor]:
        """From the gate on; with the output, which is not written yet."""
        import torch

        from autotune.kernels.fused_decode.op import Gate, plan_from_gate

        weights, rows = self.layers[n]
        output = torch.empty_like(self.hidden[n])
        return plan_from_gate(weights, Gate(rows, True), self.hidden[n], self.candidate, output), output

    def whole(self, n: int) -> torch.Tensor:
        planned, output = self.launches(n)
        for launch in planned:
            launch.run()
        return output

    def gate(self, n: int) -> torch.Tensor:
        """Our gate's launch alone; its logits `[E]`."""
        first = self.launches(n)[0][0]
        first.run()
        logits: torch.Tensor = first.arguments[2]
        return logits

    def steps(self) -> dict[str, Callable[[int], torch.Tensor]]:
        """What is timed, the baseline first."""
        return {
            BASELINE: lambda n: self.layer(n, self.gate_and_choice(n)),
            "from the gate on": self.whole,
            "gate GEMM, topk_softmax": lambda n: self.gate_and_choice(n)[0],
            "layer alone": lambda n: self.layer(n, self.fixed[n]),
            "our gate's launch": self.gate,
        }

    def differences(self) -> dict[str, Any]:
        """How far the output from the gate on is from the baseline's, and how often experts differ."""
        from autotune.kernels.reference import relative_l2

        after_ours, same_choice, others = [], [], 0
        for n in range(len(self.layers)):
            output = self.whole(n)
            chosen = self.choice(self.gate(n).view(1, -1))
            after_ours.append(relative_l2(output, self.layer(n, chosen).float()))
            if set(chosen[1][0].tolist()) == set(self.fixed[n][1][0].tolist()):
                same_choice.append(relative_l2(output, self.layer(n, self.fixed[n]).float()))
            else:
                others += 1
        return {
            "after_our_logits": max(after_ours), "against_baseline": max(same_choice, default=None),
            "other_experts": others, "layers": len(self.layers),
        }  # fmt: skip


def timed(token: Token, captures: int, blocks: int) -> list[dict[str, Any]]:
    """Rows, printed as they are made."""
    from autotune.measure.timing import calls_per_graph, capture, estimate_us, time_pairs

    print(f"{'step':<32}{'us':>8}{'baseline us':>13}{'ratio':>8}  interval")
    steps: dict[str, Any] = token.steps()
    layers = len(token.layers)
    first: Any = 0  # a step takes a number in place of inputs
    calls = calls_per_graph(estimate_us(steps[BASELINE], first), layers)
    order: list[Any] = [n % layers for n in range(calls)]
    rows = []
    for name, step in steps.items():
        times = []
        for seed in range(captures):
            token.draw(seed)
            base, this = (capture([(s, n) for n in order]) for s in (steps[BASELINE], step))
            times.append(time_pairs(base, this, blocks, replays=4))
        rows.append(row(name, times))
        print(line(rows[-1]), flush=True)
    return rows


def row(name: str, times: Sequence[PairedTimes]) -> dict[str, Any]:
    """One line of the table; each capture made one `PairedTimes`."""
    from autotune.choose.statistics import speedup

    units = [list(t.log_ratios()) for t in times]
    ratio = speedup(units, name)
    # The upper end is the lower one of the inverse.
    high = 1 / speedup([[-r for r in unit] for unit in units], name).low
    return {
        "step": name, "us": statistics.median(t.p50_us for t in times),
        "baseline_us": statistics.median(t.baseline_p50_us for t in times),
        "ratio": ratio.median, "low": ratio.low, "high": round(high, 5),
        "times": [t.model_dump(mode="json") for t in times],
    }  # fmt: skip


def line(found: dict[str, Any]) -> str:
    """A row as text."""
    return (
        f"{found['step']:<32}{found['us']:>8.2f}{found['baseline_us']:>13.2f}{found['ratio']:>8.3f}"
        f"  {found['low']:.3f} to {found['high']:.3f}"
    )


def verdict(found: dict[str, Any]) -> str:
    """What `Token.differences` found, as text."""
    nearest = found["against_baseline"]
    against = "no layer to compare" if nearest is None else f"{nearest:.1e}"
    return (
        f"relative L2: {against} from the baseline, {found['after_our_logits']:.1e} from its steps after our "
        f"logits; other experts in {found['other_experts']} of {found['layers']} layers"
    )


def check(problem: Problem, environment: Environment, candidate: FusedDecodeCandidate) -> None:
    """Refuse what cannot be measured here.

    Raises:
        UsageError: if `fused_decode` does not take the shape.
        AutotuneError: without vLLM.
    """
    from autotune.kernels.specs import backend_spec, fits
    from autotune.vocabulary.errors import AutotuneError, UsageError

    if environment.vllm is None:
        raise AutotuneError(
            "The baseline chooses experts by vLLM's topk_softmax, and vLLM is not installed here.",
            "Run this in an environment with vLLM: make bench-gate PYTHON=/path/to/its/python.",
        )
    for support in (
        backend_spec("fused_decode").supports(problem, environment), fits(candidate, problem, environment)
    ):  # fmt: skip
        if not support.ok:
            raise UsageError(f"{problem}: {support.reason}.", "Name another --shape.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default=QWEN)
    parser.add_argument("--layers", type=int, default=12, help="layers whose weights are read in turn")
    parser.add_argument("--quick", action="store_true", help="one capture of 6 blocks instead of 3 of 8")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of gate.json")
    given = parser.parse_args(arguments)
    # The file `kernels.py` beside this one must not answer for a package of that name.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    captures, blocks = (1, 6) if given.quick else (3, 8)
    from autotune.measure.detect import detect_environment, driver_version
    from autotune.measure.gpu_state import wait_until_ready
    from autotune.vocabulary.errors import AutotuneError, UsageError
    from autotune.vocabulary.out_folder import out_folder
    from autotune.vocabulary.problem import Problem

    try:
        problem = Problem.parse(given.shape)
        if not 1 <= given.layers <= 96:
            raise UsageError(f"--layers {given.layers}: 1 to 96 are possible.", "Leave --layers out.")
        if problem.topk > MOST_CHOSEN:
            raise UsageError(f"A block chooses up to {MOST_CHOSEN} experts.", "Name another --shape.")
        out_folder(given.out)
        environment, candidate = detect_environment(), form(problem)
        check(problem, environment, candidate)
        wait_until_ready(5.0, tell=lambda text: print(text, file=sys.stderr))
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    import torch
    from vllm import _custom_ops

    print(f"{problem}; {environment}; driver {driver_version()}; {given.layers} layers in turn")
    print(candidate)
    try:
        token = Token(problem, candidate, given.layers, _custom_ops.topk_softmax)
        differences = token.differences()
        rows = timed(token, captures, blocks)
    except torch.OutOfMemoryError:
        print(f"{given.layers} layers do not fit this GPU: fewer with --layers.", file=sys.stderr)
        return 1
    fine = differences["after_our_logits"] <= SAME
    print(f"{verdict(differences)}{'' if fine else ': NOT the same'}")
    result = {
        "problem": str(problem), "environment": environment.model_dump(mode="json"),
        "driver": driver_version(), "candidate": candidate.model_dump(mode="json"), "rows": rows,
        "differences": differences, "limit": SAME, "same": fine,
    }  # fmt: skip
    path = given.out / "gate.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path, file=sys.stderr)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
