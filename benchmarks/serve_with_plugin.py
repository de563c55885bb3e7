"""vLLM serving Qwen3-30B-A3B in FP8 with random weights: `vllm bench serve` with and without the plugin.

    python benchmarks/serve_with_plugin.py --scheme fp8_tensor --out results/

Needs vLLM with its command line, a CUDA GPU with 40 GB, and moe-autotune installed in the same environment.
Arms run one after the other, once, each in a server of its own; the result is one JSON file with both, and
the servers' logs beside it. The table comes from a service of its own, as its first published revision.
Nothing is downloaded: the model is a config.json, the tokenizer a list of words.
A quick look without intervals; `autotune lab run` measures in turns and rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from autotune.lab.client import bench_arguments, client
from autotune.lab.logs import kept_lines, text_from
from autotune.lab.model import MODEL_NAMES, install_random_weights, write_model
from autotune.lab.plan import Point
from autotune.lab.servers import start
from autotune.lab.service import service
from autotune.vocabulary.errors import AutotuneError
from autotune.vocabulary.problem import Scheme


def run_arm(arm: str, args: argparse.Namespace, model: Path, site: Path) -> dict[str, object]:
    """Serve with or without the plugin and drive it at each concurrency."""
    env = dict(os.environ)
    env["PYTHONPATH"] = f"{site}{os.pathsep}{env.get('PYTHONPATH', '')}"
    env["VLLM_PLUGINS"] = "random_weights" + (",autotune" if arm == "plugin" else "")
    env["VLLM_DEEP_GEMM_WARMUP"] = "skip"
    env["AUTOTUNE_CACHE"] = str(args.out / "cache")
    if arm == "plugin" and args.url:
        env["AUTOTUNE_URL"] = args.url
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--load-format", "dummy",
        "--port", str(args.port), "--max-model-len", "8192", "--max-num-seqs", "64",
        "--gpu-memory-utilization", "0.7", "--no-enable-prefix-caching", *args.serve_args.split(),
    ]  # fmt: skip
    log = args.out / f"{args.scheme}-{arm}.log"
    server = start(arm, command, env, args.port, log)
    try:
        # Importing vLLM takes the client half a minute: meanwhile the server starts.
        with client(args.out / f"{args.scheme}-{arm}-bench.log", env) as bench:
            result: dict[str, object] = {"command": " ".join(command[1:])}
            result["ready_s"] = round(server.wait_ready(args.start_limit), 1)
            runs = {}
            for concurrency in args.concurrency:
                point = Point(
                    concurrency=concurrency, shortest=args.input, longest=args.input, output=args.output,
                    requests=args.rounds * concurrency,
                )  # fmt: skip
                words = bench_arguments(point, model, args.port, seed=1)
                runs[concurrency] = bench.measure(words, point, server.check, args.start_limit)
            result["runs"] = runs
    finally:
        server.stop()
    result["log"] = kept_lines(text_from(log, 0))[:40]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", choices=("fp8_tensor", "fp8_block128"), default="fp8_tensor")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--table", type=Path, help="table file; default: the starter table")
    parser.add_argument("--arms", default="stock,plugin")
    parser.add_argument("--concurrency", type=lambda text: [int(c) for c in text.split(",")], default=[1, 8])
    parser.add_argument("--input", type=int, default=512, help="prompt tokens")
    parser.add_argument("--output", type=int, default=128, help="new tokens a request")
    parser.add_argument("--rounds", type=int, default=4, help="requests per concurrent client")
    parser.add_argument("--port", type=int, default=8123, help="vLLM's; the service takes the next one")
    parser.add_argument("--start-limit", type=float, default=600.0, help="seconds for a server to get ready")
    parser.add_argument("--serve-args", default="", help="more words for `vllm serve`, for both arms")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    # A plain kill would leave the servers behind: let `finally` stop them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = [name for name in ("vllm", "tokenizers", "transformers") if find_spec(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} not installed: run this with the Python of vLLM's environment")
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    model, site = args.out / f"model-{args.scheme}", args.out / "site"
    write_model(model, args.scheme, args.layers)
    install_random_weights(site)
    summary: dict[str, object] = {
        "scheme": args.scheme, "layers": args.layers, "input": args.input, "output": args.output,
        "rounds": args.rounds, "serve_args": args.serve_args,
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(("VLLM_", "AUTOTUNE_"))},
    }  # fmt: skip
    name = MODEL_NAMES[Scheme(args.scheme)]
    starter = Path(str(resources.files("autotune") / "data" / "tables" / f"nvidia_h200-{name}.json"))
    with service(args.table or starter, args.out, args.port + 1) as published:
        args.url = published.address
        for arm in args.arms.split(","):
            try:
                summary[arm] = run_arm(arm, args, model, site)
            except AutotuneError as error:
                summary[arm] = {"failed": str(error)}
            (args.out / f"{args.scheme}.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))
    return 1 if any("failed" in part for part in summary.values() if isinstance(part, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
