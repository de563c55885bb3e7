"""vLLM's Triton MoE kernel with and without specialization on the token count, on this GPU.

    python benchmarks/recompiles.py [--quick] [--out FOLDER]

For each scheme and token count: whether both give the same bits, and how fast the unspecialized one is
against the original (above 1: faster), with its two-sided 90% interval. Both run in turns on CUDA graphs; the
interval is a bootstrap over captures and blocks of one process. Needs a CUDA GPU and vLLM.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.measure.recompiles import KernelPair

SCHEMES = ("fp8_tensor", "fp8_block128", "bf16")
TOKENS = (1, 8, 64, 512, 4096)
QWEN = "E=128,N=768,K=2048,topk=8,scheme="
"""Qwen3-30B-A3B's layer."""
SLOWER = 0.99
"""The interval's lower end must stay above: a sweep's margin of 1%."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one capture of 6 blocks instead of 3 of 8")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of recompiles.json")
    given = parser.parse_args()
    # transformers looks for a package `kernels`: the file of that name beside this one must not answer.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    captures, blocks = (1, 6) if given.quick else (3, 8)
    from autotune.cli.problems import parse_numbers
    from autotune.measure.detect import detect_environment, driver_version
    from autotune.measure.gpu_state import wait_until_ready
    from autotune.vocabulary.errors import AutotuneError, UsageError
    from autotune.vocabulary.out_folder import out_folder
    from autotune.vocabulary.problem import Problem

    try:
        counts = parse_numbers("--tokens", given.tokens)
        problems = [Problem.parse(f"{QWEN}{scheme}") for scheme in given.schemes.split(",")]
        out_folder(given.out)
        environment = detect_environment()
        wait_until_ready(5.0, tell=lambda line: print(line, file=sys.stderr))
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    from autotune.measure.recompiles import KernelPair, compile_pairs

    print(f"{environment}; driver {driver_version()}")
    print(
        f"{'scheme':<14}{'tokens':>7}{'bits':>7}{'original us':>13}{'unspec. us':>12}{'ratio':>8}  interval"
    )
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    pairs = [KernelPair(problem) for problem in problems]
    compiled = compile_pairs(pairs, counts)
    print(f"original and unspecialized: {compiled}", file=sys.stderr)
    for pair in pairs:
        rows += one_scheme(pair, counts, captures, blocks)
    took = time.perf_counter() - start
    fine = all(row["same_bits"] and row["low"] > SLOWER for row in rows)
    print(f"{'all the same bits, none slower' if fine else 'NOT proven'}; {took:.0f} s")
    result = {
        "environment": environment.model_dump(mode="json"), "driver": driver_version(), "rows": rows,
        "compiles": asdict(compiled), "slower_limit": SLOWER, "proven": fine, "took_s": round(took, 1),
    }  # fmt: skip
    path = given.out / "recompiles.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(path, file=sys.stderr)
    return 0 if fine else 1


def one_scheme(pair: KernelPair, counts: list[int], captures: int, blocks: int) -> list[dict[str, Any]]:
    """Rows of one scheme, printed as they are made."""
    from autotune.choose.statistics import speedup
    from autotune.measure.recompiles import same_bits

    problem = pair.problem
    rows = []
    for tokens in counts:
        original, again, other = pair.outputs(tokens, tokens)
        same = same_bits(original, other)
        times = [pair.times(tokens, seed, blocks) for seed in range(captures)]
        units = [list(t.log_ratios()) for t in times]
        seed = f"{problem} {tokens}"
        ratio = speedup(units, seed)
        # The upper end is the lower one of the inverse.
        high = 1 / speedup([[-r for r in unit] for unit in units], seed).low
        row = {
            "scheme": problem.scheme.value, "tokens": tokens, "same_bits": same,
            "repeatable": same_bits(original, again),
            "original_us": min(t.baseline_p50_us for t in times),
            "unspecialized_us": min(t.p50_us for t in times),
            "ratio": ratio.median, "low": ratio.low, "high": round(high, 5),
            "times": [t.model_dump(mode="json") for t in times],
        }  # fmt: skip
        rows.append(row)
        print(
            f"{problem.scheme.value:<14}{tokens:>7}{'same' if same else 'DIFFER':>7}"
            f"{row['original_us']:>13.1f}{row['unspecialized_us']:>12.1f}"
            f"{ratio.median:>8.3f}  {ratio.low:.3f} to {high:.3f}",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
