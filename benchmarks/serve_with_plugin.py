"""vLLM serving Qwen3-30B-A3B in FP8 with random weights: `vllm bench serve` with and without the plugin.

    python benchmarks/serve_with_plugin.py --scheme fp8_tensor --out results/

Needs vLLM with its command line, a CUDA GPU with 40 GB, and moe-autotune installed in the same environment.
Arms run one after the other, each in a server of its own; the result is one JSON file with both, and the
servers' logs beside it. The table comes from a service of its own, as its first published revision.
Nothing is downloaded: the model is a config.json, the tokenizer a list of words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

ARCHITECTURE = {
    # Qwen/Qwen3-30B-A3B, config.json
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
METRICS = (
    "output_throughput", "median_ttft_ms", "p95_ttft_ms", "median_itl_ms", "p95_itl_ms", "median_e2el_ms",
    "p95_e2el_ms", "completed",
)  # fmt: skip


def write_model(folder: Path, scheme: str, layers: int) -> None:
    """config.json with its quantization, and a tokenizer of words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    ignored = ["lm_head", *(f"model.layers.{n}.mlp.gate" for n in range(layers))]
    quantization: dict[str, object] = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    if scheme == "fp8_block128":
        quantization |= {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    else:
        quantization |= {"activation_scheme": "static"}
    config = ARCHITECTURE | {"num_hidden_layers": layers, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    words = {f"w{n}": n for n in range(ARCHITECTURE["vocab_size"])}  # type: ignore[call-overload]
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", eos_token="w1").save_pretrained(
        folder
    )


def install_random_weights(folder: Path) -> None:
    """Make the weight plugin visible to vLLM: a module and the metadata that names its entry point."""
    source = Path(__file__).parent / "random_weights" / "autotune_random_weights.py"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / source.name).write_text(source.read_text())
    metadata = folder / "autotune_random_weights-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune-random-weights\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nrandom_weights = autotune_random_weights:register\n"
    )


def wait_ready(server: subprocess.Popen[bytes], port: int, limit_s: float, path: str = "/health") -> float:
    """Seconds until the path answers.

    Raises:
        RuntimeError: if the server ends or the time is up.
    """
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}; see its log")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return time.monotonic() - start
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server was not ready within {limit_s:.0f} s; see its log")


@contextmanager
def service(table: Path, folder: Path, port: int) -> Iterator[str]:
    """The address of a service whose fresh database has the table published as its first revision."""
    database = folder / "autotune.db"
    database.unlink(missing_ok=True)
    autotune = [sys.executable, "-m", "autotune"]
    db = ["--db", f"sqlite:///{database}"]
    subprocess.run([*autotune, "db", "upgrade", *db], check=True, stdout=sys.stderr)
    subprocess.run(
        [*autotune, "publish", str(table), *db, "--reason", "serving benchmark", "--author", "benchmark"],
        check=True,
        stdout=sys.stderr,
    )
    with (folder / "service.log").open("wb") as log:
        server = subprocess.Popen(
            [*autotune, "serve", *db, "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_ready(server, port, 60.0, "/healthz")
        yield address
    finally:
        server.terminate()
        server.wait()


def refuse_taken(port: int) -> None:
    """A server that somebody left running would answer in place of the one that is meant.

    Raises:
        RuntimeError: if anything listens on the port.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise RuntimeError(f"port {port} is taken: stop what listens there, or pass another --port")


def bench_arguments(args: argparse.Namespace, model: Path, concurrency: int, target: Path) -> list[str]:
    """One point as arguments of `vllm bench serve`, a round of warm-up requests first."""
    options = {
        "--backend": "openai",
        "--endpoint": "/v1/completions",
        "--model": model,
        "--port": args.port,
        "--dataset-name": "random",
        "--random-input-len": args.input,
        "--random-output-len": args.output,
        "--num-prompts": args.rounds * concurrency,
        "--num-warmups": concurrency,
        "--max-concurrency": concurrency,
        "--seed": 1,
        "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--metric-percentiles": "50,95,99",
        "--result-dir": target.parent,
        "--result-filename": target.name,
    }
    flags = ["--ignore-eos", "--disable-tqdm", "--save-result"]
    return [*(str(word) for option in options.items() for word in option), *flags]


def run_arm(arm: str, args: argparse.Namespace, model: Path, site: Path) -> dict[str, object]:
    """Serve with or without the plugin and drive it at each concurrency."""
    env = dict(os.environ)
    env["PYTHONPATH"] = f"{site}{os.pathsep}{env.get('PYTHONPATH', '')}"
    env["VLLM_PLUGINS"] = "random_weights" + (",autotune" if arm == "plugin" else "")
    env["VLLM_DEEP_GEMM_WARMUP"] = "skip"
    env["AUTOTUNE_CACHE"] = str(args.out / "cache")
    if arm == "plugin" and args.url:
        env["AUTOTUNE_URL"] = args.url
    vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    command = [
        *vllm, "serve", str(model), "--load-format", "dummy", "--port", str(args.port), "--max-model-len",
        "8192", "--max-num-seqs", "64", "--gpu-memory-utilization", "0.7", "--no-enable-prefix-caching",
        *args.serve_args.split(),
    ]  # fmt: skip
    refuse_taken(args.port)
    points = {c: args.out / f"{args.scheme}-{arm}-c{c}.json" for c in args.concurrency}
    plan = args.out / f"{args.scheme}-{arm}-points.json"
    plan.write_text(
        json.dumps(
            {
                "health": f"http://127.0.0.1:{args.port}/health",
                "limit_s": args.start_limit,
                "points": [bench_arguments(args, model, c, target) for c, target in points.items()],
            }
        )
    )
    log = args.out / f"{args.scheme}-{arm}.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            command, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    with (args.out / f"{args.scheme}-{arm}-bench.log").open("wb") as stream:
        # Importing vLLM takes the client half a minute: meanwhile the server starts.
        client = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("bench_points.py")), str(plan)],
            env=env,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    result: dict[str, object] = {"command": " ".join(command[1:])}
    try:
        result["ready_s"] = round(wait_ready(server, args.port, args.start_limit), 1)
        if client.wait(args.start_limit) != 0:
            raise RuntimeError(f"the benchmark's client ended with {client.returncode}; see its log")
        kept = {c: json.loads(target.read_text()) for c, target in points.items()}
        result["runs"] = {c: {key: run[key] for key in METRICS if key in run} for c, run in kept.items()}
    finally:
        client.kill()
        client.wait()
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    lines = log.read_text(errors="replace").splitlines()
    wanted = re.compile(r"autotune:|MoE backend|JIT compilation during inference|Using configuration from")
    result["log"] = [re.sub(r"\x1b\[[0-9;]*m", "", line)[:300] for line in lines if wanted.search(line)][:40]
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
    name = {"fp8_tensor": "qwen-moe-fp8-tensor", "fp8_block128": "qwen-moe-fp8"}[args.scheme]
    starter = Path(str(resources.files("autotune") / "data" / "tables" / f"nvidia_h200-{name}.json"))
    with service(args.table or starter, args.out, args.port + 1) as args.url:
        for arm in args.arms.split(","):
            try:
                summary[arm] = run_arm(arm, args, model, site)
            except (RuntimeError, subprocess.SubprocessError) as error:
                summary[arm] = {"failed": str(error)}
            (args.out / f"{args.scheme}.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps(summary, indent=1))
    return 1 if any("failed" in part for part in summary.values() if isinstance(part, dict)) else 0


if __name__ == "__main__":
    sys.exit(main())
