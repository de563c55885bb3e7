"""`fused_decode` with one option changed at a time, on this GPU.

    python benchmarks/decode_forms.py [--shape E=128,N=768,K=2048,topk=8,scheme=fp8_tensor] [--tokens 1,8,64]
                                      [--routing uniform,zipf:1.0] [--out FOLDER]

For each routing and token count: the base form's time, the floor (weights of the experts that these inputs
touch, at the copy bandwidth), and every form with one option changed, in turns with the base on CUDA graphs.
Needs a CUDA GPU, torch and Triton; no vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.vocabulary.candidate import FusedDecodeCandidate
    from autotune.vocabulary.problem import Problem

QWEN = "E=128,N=768,K=2048,topk=8,scheme=fp8_tensor"
BASE = {
    "block_m": 16, "gate_up_block_n": 64, "gate_up_block_k": 128, "gate_up_stages": 4, "down_block_n": 128,
    "down_block_k": 128, "down_stages": 4, "quantize_first": True,
}  # fmt: skip
CHANGES: tuple[dict[str, Any], ...] = (
    {"block_m": 8}, {"block_m": 32}, {"gate_up_block_n": 32}, {"down_block_n": 64},
    {"gate_up_block_n": 32, "down_block_n": 64}, {"gate_up_stages": 3}, {"gate_up_stages": 5},
    {"down_stages": 3}, {"gate_up_stages": 3, "down_stages": 3}, {"num_warps": 2}, {"num_warps": 8},
    {"down_split_k": 2}, {"quantize_first": False}, {"crowded_block_m": 32},
    {"block_m": 8, "crowded_block_m": 32},
    {"gate_up_block_n": 32, "gate_up_block_k": 256, "down_block_n": 64, "down_stages": 3},
    {"gate_up_block_n": 32, "down_block_n": 64, "block_m": 8, "num_warps": 2},
)  # fmt: skip
INPUTS = 8
COPY_BYTES_PER_US = 4.3e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default=QWEN)
    parser.add_argument("--tokens", default="1,8,32,64,128")
    parser.add_argument("--routing", default="uniform", help="uniform, or zipf:S; several by comma")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of decode_forms.json")
    given = parser.parse_args()
    # The file `kernels.py` beside this one must not answer for a package of that name.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    from autotune.cli.problems import parse_numbers, parse_routing
    from autotune.measure.detect import detect_environment, driver_version
    from autotune.measure.gpu_state import wait_until_ready
    from autotune.vocabulary.errors import AutotuneError, UsageError
    from autotune.vocabulary.out_folder import out_folder
    from autotune.vocabulary.problem import Problem

    try:
        problem, counts = Problem.parse(given.shape), parse_numbers("--tokens", given.tokens)
        routings = [parse_routing(text) for text in given.routing.split(",")]
        out_folder(given.out)
        environment = detect_environment()
        wait_until_ready(5.0, tell=lambda line: print(line, file=sys.stderr))
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    import torch

    from autotune.measure.compile_pool import CompilePool

    made = forms(problem)
    print(f"{problem}; {environment}; driver {driver_version()}")
    pool = CompilePool(max(1, (os.cpu_count() or 2) - 2))
    try:
        ready = list(pool.compile(problem, [(tokens, form) for tokens in counts for form in made]))
    finally:
        pool.close()
    print(f"{len(ready)} variants compiled or found", file=sys.stderr)
    rows = [
        row for routing in routings for tokens in counts for row in one_count(problem, tokens, made, routing)
    ]
    result = {
        "problem": str(problem), "environment": environment.model_dump(mode="json"),
        "driver": driver_version(), "gpu": torch.cuda.get_device_name(), "rows": rows,
    }  # fmt: skip
    path = given.out / "decode_forms.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(path, file=sys.stderr)
    return 0


def forms(problem: Problem) -> list[FusedDecodeCandidate]:
    """The base form first, then every change that fits the problem's scheme and the GPU."""
    from autotune.kernels.specs import fits
    from autotune.measure.detect import detect_environment
    from autotune.vocabulary.candidate import FusedDecodeCandidate

    environment = detect_environment()
    base = dict(BASE)
    if not problem.scheme.is_fp8:
        base |= {"gate_up_block_k": 64, "down_block_k": 64, "quantize_first": False}
    found: dict[str, FusedDecodeCandidate] = {}
    for change in ({}, *CHANGES):
        form = FusedDecodeCandidate.model_validate({**base, **change})
        if (form.quantize_first <= problem.scheme.is_fp8) and fits(form, problem, environment).ok:
            found.setdefault(form.digest, form)
    return list(found.values())


def one_count(
    problem: Problem, tokens: int, made: list[FusedDecodeCandidate], routing: str
) -> list[dict[str, Any]]:
    """Rows of one token count, printed fastest first."""
    import torch

    from autotune.kernels.fused_decode.op import plan
    from autotune.kernels.launch import run_layer
    from autotune.kernels.reference import reference_moe, relative_l2
    from autotune.kernels.weights import make_inputs, make_weights
    from autotune.measure.timing import calls_per_graph, capture, estimate_us, time_pairs

    weights = make_weights(problem, 1)
    inputs = [make_inputs(problem, tokens, 100 + n, routing) for n in range(INPUTS)]
    truth = reference_moe(weights, inputs[0])
    expert_bytes = 3 * problem.N * problem.K * problem.scheme.weight_bytes
    touched = statistics.mean(len(torch.unique(i.topk_ids)) for i in inputs)
    floor = touched * expert_bytes / COPY_BYTES_PER_US
    graphs = {}
    rows = []
    for form in made:

        def call(i: Any, form: Any = form) -> Any:
            return run_layer(plan, weights, i, form)

        calls = calls_per_graph(estimate_us(call, inputs[0]), INPUTS)
        graphs[form.digest] = capture([(call, inputs[n % INPUTS]) for n in range(calls)])
        pairs = time_pairs(graphs[made[0].digest], graphs[form.digest], blocks=4, replays=4)
        error = relative_l2(run_layer(plan, weights, inputs[0], form), truth)
        rows.append(
            {
                "tokens": tokens, "routing": routing, "form": str(form),
                "candidate": form.model_dump(mode="json"), "us": pairs.p50_us,
                "base_us": pairs.baseline_p50_us, "floor_us": round(floor, 2),
                "relative_error": round(error, 5),
            }
        )  # fmt: skip
    print(
        f"\n{tokens} tokens, {routing}, floor {floor:.1f} us, base {rows[0]['us']:.1f} us: {rows[0]['form']}"
    )
    for row in sorted(rows[1:], key=lambda row: row["us"] / row["base_us"]):
        print(f"{row['us']:9.1f} us {row['base_us'] / row['us']:6.3f}x  {row['form']}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
