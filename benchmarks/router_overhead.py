"""What the router adds to one MoE layer call on the host, measured on a CPU with experts that do nothing.

    python tools/fetch_vllm_sources.py 0.25.1 0.33.0
    python benchmarks/router_overhead.py 0.25.1 0.33.0

Builds vLLM's real FusedMoEKernel twice, with vLLM's own TritonExperts and with a router over them, where
every expert's `apply` returns at once, and times `kernel.apply` of both in turns: the difference is the
router's. A call that goes to vLLM's own experts and one that goes to an added backend are timed apart. No GPU
is needed, and none is used: only the Python runs that runs in front of the launches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "vllm"
FM = "vllm.model_executor.layers.fused_moe"
LIMIT_US = 2.0
"""What the router may add to one layer call."""
BASE_TOKENS, ADDED_TOKENS = 40, 8


def nothing(*_: Any, **__: Any) -> None:
    """Experts that do nothing."""


def kernels(scheme: str, own: bool) -> tuple[Any, Any, Any]:
    """vLLM's kernel without and with a router, and the arguments of a call by token count.

    Args:
        own: the added backend reads its input unquantized, as our kernels do: the router then quantizes for
            vLLM's experts what vLLM's prepare step left alone.
    """
    import torch

    from autotune.kernels.backends.vllm_modular import moe_config
    from autotune.vllm_plugin.inner_experts import Inner
    from autotune.vllm_plugin.route_plan import RoutePlan
    from autotune.vllm_plugin.route_reach import Entry, Outlook
    from autotune.vllm_plugin.routed_experts import router_class
    from autotune.vocabulary.candidate import DeepGemmCandidate
    from autotune.vocabulary.problem import Problem

    problem = Problem.parse(f"E=8,N=64,K=128,topk=2,scheme={scheme}")
    modular, prepare = (
        importlib.import_module(f"{FM}.{n}") for n in ("modular_kernel", "prepare_finalize.no_dp_ep")
    )
    experts_class = importlib.import_module(f"{FM}.experts.triton_moe").TritonExperts
    config = importlib.import_module(f"{FM}.config")
    workspace = importlib.import_module("vllm.v1.worker.workspace")
    torch.accelerator.empty_cache = lambda: None  # type: ignore[assignment]
    workspace.init_workspace_manager(torch.device("cpu"))
    quant_config = config.FUSED_MOE_UNQUANTIZED_CONFIG
    plain, base = (experts_class(moe_config(problem, "cpu"), quant_config) for _ in range(2))
    plain.apply = base.apply = nothing
    plan = RoutePlan(problem, Outlook("triton", (Entry(1, 16, DeepGemmCandidate()),), ()))
    plan.prove([1], lambda index, tokens: "")
    plan.calls = {}  # as in a worker that serves, which counts each call
    inners = [
        Inner(base.apply, False, base.workspace_shapes, base),
        Inner(nothing, True) if own else Inner(nothing, False, base.workspace_shapes, base),
    ]
    router = router_class(modular)(plan, inners, prepare._quantize_input, None)
    stock, routed = (
        modular.FusedMoEKernel(prepare.MoEPrepareAndFinalizeNoDPEPModular(), experts)
        for experts in (plain, router)
    )
    activation = importlib.import_module(f"{FM}.activation").MoEActivation.SILU
    w1 = torch.empty(problem.E, 2 * problem.N, problem.K, dtype=torch.bfloat16)
    w2 = torch.empty(problem.E, problem.K, problem.N, dtype=torch.bfloat16)

    def arguments(tokens: int) -> tuple[Any, ...]:
        hidden = torch.zeros(tokens, problem.K, dtype=torch.bfloat16)
        ids = torch.zeros(tokens, problem.topk, dtype=torch.int32)
        return (hidden, w1, w2, torch.ones(tokens, problem.topk), ids, activation, problem.E, None, False)

    return stock, routed, arguments


def per_call_us(kernel: Any, arguments: tuple[Any, ...], calls: int) -> float:
    """Mean time of one call, microseconds of this thread alone: other processes do not count."""
    apply = kernel.apply
    started = time.thread_time()
    for _ in range(calls):
        apply(*arguments)
    return (time.thread_time() - started) / calls * 1e6


def measure(blocks: int, calls: int) -> dict[str, Any]:
    """Both kernels in turns, at a token count of vLLM's own experts and at one of the added backend."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for own, beside in ((False, "beside a backend of vLLM"), (True, "beside a kernel of ours")):
        stock, routed, arguments = kernels("bf16", own)
        for name, tokens in (("vLLM's own experts", BASE_TOKENS), ("the added backend", ADDED_TOKENS)):
            given = arguments(tokens)
            for kernel in (stock, routed):
                per_call_us(kernel, given, calls)
            pairs = [
                (per_call_us(stock, given, calls), per_call_us(routed, given, calls)) for _ in range(blocks)
            ]
            differences = sorted(after - before for before, after in pairs)
            middle = len(differences) // 4
            found[f"{name} {beside}" if tokens == BASE_TOKENS else f"{name}, {beside[7:]}"] = {
                "stock_us": round(statistics.median(before for before, _ in pairs), 3),
                "added_us": round(statistics.median(differences), 3),
                "quartiles_us": [round(differences[middle], 3), round(differences[-1 - middle], 3)],
            }
    return found


def positive(text: str) -> int:
    """A count from 1 on.

    Raises:
        ArgumentTypeError: for anything else.
    """
    if not re.fullmatch("[0-9]{1,9}", text.strip(), re.ASCII) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "versions", nargs="*", default=["0.25.1"], help="vLLM versions whose source was fetched"
    )
    parser.add_argument("--blocks", type=positive, default=301, help="pairs of timings")
    parser.add_argument("--calls", type=positive, default=200, help="calls of a timing")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.blocks, options.calls)))
        return 0
    worst = 0.0
    missing = [version for version in options.versions if not (CACHE / version).is_dir()]
    if missing:
        print(
            f"The sources of vLLM {', '.join(missing)} are not here: `make sources` fetches 0.25.1, "
            "`make other-sources` the others.",
            file=sys.stderr,
        )
        return 2
    for version in options.versions:
        deps = CACHE / f"deps-cp{sys.version_info.major}{sys.version_info.minor}"
        path = os.pathsep.join(map(str, (CACHE / version, deps, ROOT)))
        done = subprocess.run(
            [
                sys.executable, __file__, "--inside",
                "--blocks", str(options.blocks), "--calls", str(options.calls),
            ],
            env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            print(
                f"vLLM {version} did not run here; what its process said is above. Run this with the Python "
                "of `make test` (.venv/bin/python), which has torch.",
                file=sys.stderr,
            )
            return 1
        for name, figures in json.loads(done.stdout.splitlines()[-1]).items():
            worst = max(worst, figures["added_us"])
            low, high = figures["quartiles_us"]
            print(
                f"vLLM {version}, {name}: {figures['added_us']:.2f} us added to {figures['stock_us']:.2f} us "
                f"(median of {options.blocks} pairs, half of them from {low:.2f} to {high:.2f})"
            )
    print(f"at most {LIMIT_US:g} us: {'yes' if worst <= LIMIT_US else 'NO'}")
    return 0 if worst <= LIMIT_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
