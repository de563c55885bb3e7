"""Fills DeepGEMM's cache with what the dense layers of a Qwen3-30B-A3B in block FP8 need at any batch size.

    python benchmarks/deep_gemm_cache.py LAB/cache/stock/deep_gemm LAB/cache/all/deep_gemm

vLLM 0.25.1 has a warm-up of DeepGEMM, but it passes over the dense layers where FlashInfer serves their small
batches (`FlashInferFp8DeepGEMMDynamicBlockScaledKernel`, the default on Hopper with FlashInfer installed): a
kernel of theirs is compiled when a prefill first needs it, seconds each, in the request path. To measure
servers whose caches are warm, fill them first. Several processes launch both projections at every token
count from 32 on, DeepGEMM compiles what is new, and the other folders get a copy. Needs a CUDA GPU and vLLM.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

FIRST = 32
"""The smallest batch that vLLM gives to DeepGEMM there; FlashInfer serves those below."""
BLOCK = 128


def shapes() -> list[tuple[int, int]]:
    """Output and input width of the projections in front of the attention and behind it."""
    from autotune.lab.model import ARCHITECTURE as model

    heads, groups, width = (
        model[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    return [
        ((heads + 2 * groups) * width, model["hidden_size"]),
        (model["hidden_size"], heads * width),
    ]


def fill(first: int, last: int) -> None:
    """Launch both projections at each of these token counts, in this process."""
    import torch
    from vllm.utils.deep_gemm import fp8_gemm_nt

    for n, k in shapes():
        weight = torch.zeros(n, k, device="cuda").to(torch.float8_e4m3fn)
        weight_scale = torch.ones(n // BLOCK, k // BLOCK, device="cuda")
        rows = torch.zeros(last, k, device="cuda").to(torch.float8_e4m3fn)
        scale = torch.ones(last, k // BLOCK, device="cuda")
        out = torch.empty(last, n, device="cuda", dtype=torch.bfloat16)
        for tokens in range(first, last + 1):
            fp8_gemm_nt((rows[:tokens], scale[:tokens]), (weight, weight_scale), out[:tokens])
    torch.cuda.synchronize()


def spans(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """The counts in so many runs of neighbours, which need few kernels each."""
    parts = min(parts, last - first + 1)
    edges = [first + (last + 1 - first) * i // parts for i in range(parts + 1)]
    return [(edges[i], edges[i + 1] - 1) for i in range(parts)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, help="values of DG_JIT_CACHE_DIR, as the servers get them"
    )
    parser.add_argument("--most", type=int, default=8192, help="largest batch, tokens (default: 8192)")
    parser.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("--span", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    # transformers looks for a package `kernels`: the file of that name beside this one must not answer.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    if given.span:
        fill(*map(int, given.span.split(":")))
        return 0
    if given.most < FIRST or given.processes < 1:
        print(f"--most from {FIRST} on, and at least one process.", file=sys.stderr)
        return 2
    try:
        import torch
    except ImportError:
        print("torch is not installed here: run this with the Python of vLLM's environment.", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print(
            "This needs a CUDA GPU, and torch sees none: run it on the machine that will serve, with the "
            "Python of vLLM's environment.",
            file=sys.stderr,
        )
        return 1
    target, *others = [folder.resolve() for folder in given.folders]
    target.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(target), "--span", f"{first}:{last}"],
            env={**os.environ, "DG_JIT_CACHE_DIR": str(target)},
        )
        for first, last in spans(FIRST, given.most, given.processes)
    ]
    failed = sum(process.wait() != 0 for process in running)
    if failed:
        print(f"{failed} of {len(running)} processes failed; what they printed is above.", file=sys.stderr)
        return 1
    from autotune.lab.deep_gemm import kernels

    for folder in others:
        shutil.copytree(target, folder, dirs_exist_ok=True)
    took = time.monotonic() - begun
    print(f"{len(kernels(target))} kernels for {FIRST} to {given.most} tokens in {took:.0f} s, in {target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
