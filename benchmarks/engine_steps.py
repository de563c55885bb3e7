"""What a step of vLLM's engine takes on the GPU, stock against the plugin, without a client.

    python benchmarks/engine_steps.py [--scheme fp8_tensor] [--layers 12] [--batches 1,8,32,128]
                                      [--prompt 128] [--prefills 128,2048,8192] [--steps 16] [--later 100]
                                      [--routing] [--host]
                                      [--out FOLDER]

A served token also costs its way from the engine to the client; here nothing but the engine runs. Each arm
is an engine in a process of its own, one after the other, with random weights and the plugin's starter
table. For each batch of decoding requests, and for each prefill of so many tokens: the median wall time of a
step, the time in which kernels ran on the GPU (torch.profiler, CUDA graphs included), the time of the
kernels that differ between the arms, per layer, and the kernels that took longest. Wall time far above the
GPU's is the host's: launches from Python. The arms are minutes apart, so the figures are for finding causes;
`autotune lab` measures in turns.

With --later a batch is measured a second time, that many tokens on: requests that generate alike choose the
same experts. With --routing a third engine, stock and without CUDA graphs, counts how many of a step's rows
each expert gets: random weights need not route as uniformly as a sweep's inputs do. With --host the functions
in which the host's time goes are listed, too, by cProfile: a long wait for the GPU says that the GPU sets the
pace, long launches that the host does. Each is run after it was timed, and slower for being watched.

Needs a CUDA GPU and vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import inspect
import json
import os
import pstats
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ARMS = ("stock", "plugin")
COUNTING = "routing"
"""The engine that counts rows."""
MAX_LEN = 4352
PROMPT = 4096
"""Tokens of a prefilled prompt at most; a larger prefill is of several prompts in one step."""
PREFILLS = 4
"""Prefills timed, and again profiled."""
STEP_TOKENS = 8192
"""`max_num_batched_tokens`: what `vllm serve` takes on an H200 (vllm/engine/arg_utils.py of 0.25.1)."""
LONGEST = 12
"""Kernels that are listed."""
LONGEST_FUNCTIONS = 40
"""Functions of the host that are kept; as many as `LONGEST` are listed."""


def engine(given: argparse.Namespace) -> None:
    """One arm, in a process of its own: measure and write JSON to `--answer`."""
    import vllm

    counted: list[Any] = []
    if given.counting:
        _count_rows(counted)
    model: Any = vllm.LLM(
        str(given.model),
        load_format="dummy",
        enable_prefix_caching=False,
        kv_cache_memory_bytes=16 << 30,
        max_model_len=MAX_LEN,
        max_num_seqs=max(given.batches),
        max_num_batched_tokens=STEP_TOKENS,
        enforce_eager=given.counting,
    )
    draw = random.Random(1)
    found = {}
    for batch in given.batches:
        _fill(model, draw, batch, given.prompt, given.steps, given.later)
        for later in (0, given.later) if given.later else (0,):
            for _ in range(later):
                model.llm_engine.step()
            name = f"decode {batch}" + (f" +{later}" if later else "")
            if given.counting:
                counted.clear()
                for _ in range(given.steps):
                    model.llm_engine.step()
                found[name] = spread([rows.tolist() for rows in counted], batch)
            else:
                found[name] = _measured(model.llm_engine.step, given.steps, given.host)
        while model.llm_engine.has_unfinished_requests():
            model.llm_engine.step()
    for tokens in given.prefills:

        def prefill(tokens: int = tokens) -> None:
            _prefill(model, draw, tokens)

        prefill()  # what the first one compiles or tunes is no part of it
        if given.counting:
            counted.clear()
            prefill()
            found[f"prefill {tokens}"] = spread([rows.tolist() for rows in counted], tokens)
        else:
            found[f"prefill {tokens}"] = _measured(prefill, PREFILLS, given.host)
    given.answer.write_text(json.dumps(found))


def _count_rows(counted: list[Any]) -> None:
    """Have every call of a MoE layer add the rows that each expert gets."""
    import torch
    from vllm.model_executor.layers.fused_moe import modular_kernel

    kernel: Any = modular_kernel.FusedMoEKernelModularImpl
    original = kernel._fused_experts
    signature = inspect.signature(original)

    def counting(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).arguments
        ids, experts = given["topk_ids"], given["global_num_experts"]
        counted.append(torch.bincount(ids.flatten().to(torch.int64), minlength=experts).cpu())
        return original(*args, **named)

    kernel._fused_experts = counting


def spread(calls: Sequence[Sequence[int]], tokens: int) -> dict[str, Any]:
    """How evenly calls of a layer spread their rows over the experts.

    Args:
        calls: rows of each expert, by call.
        tokens: of each call; every one takes different experts.

    Returns:
        means over the calls: experts that got rows (`touched`, and what uniform draws would touch), the most
        rows of one, the shares of experts with more than 8 and 16; and the rows of the busiest expert, the
        second, and so on (`rows`).
    """
    if not calls:
        raise SystemExit("no call of a MoE layer was seen: this vLLM calls its experts in another way")
    experts, each = len(calls[0]), sum(calls[0]) / tokens
    ordered = [sorted(rows, reverse=True) for rows in calls]
    return {
        "touched": round(statistics.mean(sum(r > 0 for r in rows) for rows in calls), 2),
        "uniform_touches": round(experts * (1 - (1 - each / experts) ** tokens), 2),
        "most": round(statistics.mean(rows[0] for rows in ordered), 2),
        "above_8": round(statistics.mean(sum(r > 8 for r in rows) / experts for rows in calls), 5),
        "above_16": round(statistics.mean(sum(r > 16 for r in rows) / experts for rows in calls), 5),
        "rows": [round(statistics.mean(column), 2) for column in zip(*ordered, strict=True)],
    }


def _measured(step: Callable[[], Any], times: int, host: bool) -> dict[str, Any]:
    """Time a step so often, then profile it as often, and with `host` once more by function: microseconds."""
    from torch.profiler import ProfilerActivity, profile

    walls = []
    for _ in range(times):
        start = time.perf_counter()
        step()
        walls.append(time.perf_counter() - start)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            step()
    kernels: dict[str, float] = {}
    for event in seen.key_averages():
        if event.self_device_time_total > 0:
            kernels[event.key] = event.self_device_time_total / times
    return {
        "step_us": round(statistics.median(walls) * 1e6, 1), "gpu_us": round(sum(kernels.values()), 1),
        "kernels_us": {name: round(us, 2) for name, us in kernels.items()},
        **({"host_us": host_functions(step, times)} if host else {}),
    }  # fmt: skip


def host_functions(step: Callable[[], Any], times: int) -> dict[str, float]:
    """Microseconds a step of the host in each function itself, longest first; `total` is all of it."""
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(times):
        step()
    watch.disable()
    stats: Any = pstats.Stats(watch)
    own = {
        f"{name} ({'/'.join(Path(file).parts[-2:])}:{line})" if line else name: seconds / times * 1e6
        for (file, line, name), (_, _, seconds, _, _) in stats.stats.items()
    }
    longest = sorted(own.items(), key=lambda item: -item[1])[:LONGEST_FUNCTIONS]
    return {"total": round(sum(own.values()), 1)} | {name: round(us, 1) for name, us in longest}


def _prefill(model: Any, draw: random.Random, tokens: int) -> None:
    """Requests of so many prompt tokens together, prefilled in one step, until each has its one new token."""
    import vllm

    wanted = vllm.SamplingParams(temperature=0, ignore_eos=True, max_tokens=1)
    left, number = tokens, 0
    while left:
        length = min(left, PROMPT)
        prompt = [draw.randrange(1000, 150_000) for _ in range(length)]
        model.llm_engine.add_request(f"prefill-{number}", {"prompt_token_ids": prompt}, wanted)
        left, number = left - length, number + 1
    while model.llm_engine.has_unfinished_requests():
        model.llm_engine.step()


def _fill(model: Any, draw: random.Random, batch: int, prompt: int, steps: int, later: int) -> None:
    """A batch of requests, all of them past their prompts."""
    import vllm

    wanted = vllm.SamplingParams(
        temperature=0, ignore_eos=True, max_tokens=3 * steps + 24 + (later + 2 * steps if later else 0)
    )
    for number in range(batch):
        tokens = [draw.randrange(1000, 150_000) for _ in range(prompt)]
        model.llm_engine.add_request(f"{batch}-{number}", {"prompt_token_ids": tokens}, wanted)
    # Prompts may take several steps; from its first token on the engine returns a request at every step.
    for _ in range(8 + steps):
        if len(model.llm_engine.step()) == batch:
            return
    raise SystemExit(
        f"{batch} requests of {prompt} tokens never ran all at once here: lower --prompt or --batches."
    )


def run(arm: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start an arm's process and read what it measured."""
    from autotune.cli.lab_plan import starter_table
    from autotune.lab.model import WEIGHTS_PLUGIN, install_random_weights, write_model
    from autotune.vocabulary.errors import AutotuneError

    model, site = folder / "model", folder / "site"
    write_model(model, given.scheme, given.layers)
    install_random_weights(site)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
    env |= {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", "")))),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
        "VLLM_PLUGINS": WEIGHTS_PLUGIN + (",autotune" if arm == "plugin" else ""),
        "AUTOTUNE_TABLE": str(starter_table(given.scheme)),
        "AUTOTUNE_CACHE": str(folder / "tables"),
    }
    answer = folder / f"{arm}.json"
    words = [sys.executable, __file__, *sys.argv[1:], "--engine", str(model), "--answer", str(answer)]
    if arm == COUNTING:
        words.append("--counting")
    # Its own session: whatever ends this process, all of the engine's go with it.
    engine_process = subprocess.Popen(words, env=env, stdout=sys.stderr, start_new_session=True)
    try:
        status = engine_process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine_process.pid, signal.SIGKILL)
    if status != 0:
        raise AutotuneError(f"The engine of {arm} ended with {status}.", "Its log is above.")
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def report(arms: dict[str, dict[str, Any]], layers: int) -> str:
    """The arms side by side, and the kernels that took longest."""
    lines = [f"{'step':>17}" + "".join(f"{arm + ' step us':>16}{arm + ' GPU us':>16}" for arm in arms)]
    lines[0] += f"{'differing kernels, us a layer':>38}"
    steps = list(next(iter(arms.values())))
    for step in steps:
        cells = "".join(f"{found[step]['step_us']:>16}{found[step]['gpu_us']:>16}" for found in arms.values())
        apart = "  against  ".join(f"{us:.1f}" for us in _differing(arms, step, layers))
        lines.append(f"{step:>17}{cells}{apart:>38}")
    for arm, found in arms.items():
        for step in steps:
            lines.append(f"\n{arm}, {step}: microseconds a step")
            longest = sorted(found[step]["kernels_us"].items(), key=lambda item: -item[1])[:LONGEST]
            lines += [f"{us:>12.1f}  {name[:90]}" for name, us in longest]
            host = dict(found[step].get("host_us", {}))
            if host:
                lines.append(
                    f"{arm}, {step}: microseconds of the host, of {host.pop('total')} a watched step"
                )
                lines += [f"{us:>12.1f}  {name[:90]}" for name, us in list(host.items())[:LONGEST]]
    return "\n".join(lines)


def _differing(arms: dict[str, dict[str, Any]], step: str, layers: int) -> Sequence[float]:
    kernels = [found[step]["kernels_us"] for found in arms.values()]
    common = set.intersection(*(set(named) for named in kernels))
    return [sum(us for name, us in named.items() if name not in common) / layers for named in kernels]


def _number(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text.strip()) or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 to {most}")
        return int(text)

    return number


def _numbers(most: int, empty: bool = False) -> Callable[[str], list[int]]:
    def numbers(text: str) -> list[int]:
        return [_number(most)(item) for item in text.split(",")] if text or not empty else []

    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", default="fp8_tensor", choices=["fp8_tensor", "fp8_block128"])
    parser.add_argument("--layers", type=_number(48), default=12)
    parser.add_argument("--batches", default="1,8,32,128", type=_numbers(1024))
    parser.add_argument(
        "--prompt", type=_number(PROMPT // 2), default=128, help="prompt tokens of each decoding request"
    )
    parser.add_argument(
        "--prefills",
        default="128,2048,8192",
        type=_numbers(STEP_TOKENS, True),
        help="tokens of each prefill; '' for none",
    )
    parser.add_argument("--steps", type=_number(400), default=16, help="decode steps timed, then profiled")
    parser.add_argument("--later", type=_number(1500), default=0, help="measure again so many tokens on")
    parser.add_argument("--routing", action="store_true", help="count the rows of each expert, too")
    parser.add_argument("--host", action="store_true", help="list where the host's time goes, too")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of engine_steps.json")
    parser.add_argument("--engine", dest="model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--counting", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    # transformers looks for a package `kernels`: the file of that name beside this one must not answer.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    if given.model:
        engine(given)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is ended, too
    from autotune.vocabulary.errors import AutotuneError, UsageError

    try:
        compare(given)
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def compare(given: argparse.Namespace) -> None:
    """Run the engines, print the report, keep the figures.

    Raises:
        AutotuneError: without a GPU or vLLM, if an engine fails, or if nothing can be kept.
    """
    from autotune.measure.detect import detect_environment, driver_version
    from autotune.vocabulary.out_folder import out_folder

    out_folder(given.out)
    environment = detect_environment()
    with tempfile.TemporaryDirectory(prefix="engine-steps-") as folder:
        arms = {arm: run(arm, given, Path(folder)) for arm in ARMS}
        print(f"{environment}; driver {driver_version()}; {given.scheme}, {given.layers} layers")
        print(report(arms, given.layers), flush=True)
        kept = {
            "environment": environment.model_dump(mode="json"), "driver": driver_version(), "arms": arms,
            "scheme": given.scheme, "layers": given.layers, "prompt": given.prompt, "steps": given.steps,
            "prefills": given.prefills, "later": given.later, "routing": {},
        }  # fmt: skip
        file = given.out / "engine_steps.json"
        file.write_text(json.dumps(kept, indent=1) + "\n")  # the third engine may fail
        if given.routing:
            counts = kept["routing"] = run(COUNTING, given, Path(folder))
            file.write_text(json.dumps(kept, indent=1) + "\n")
            for step, found in counts.items():
                print(
                    f"routing, {step}: {found['touched']} experts touched (uniform "
                    f"{found['uniform_touches']}), {found['most']} rows at most, {found['above_8']:.2%} of "
                    f"experts with more than 8, {found['above_16']:.2%} with more than 16"
                )


if __name__ == "__main__":
    sys.exit(main())
