"""Whole vLLM engines on GPUs, of two layers with random weights, under plugins that make faults."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

FAULTY_PLUGIN = """
import os

def raising():
    # Our kernels fail once the engine is up: the profiling run and every probe have gone well.
    from autotune.vllm_plugin import own_experts

    apply = own_experts.OwnKernel.apply

    def failing(self, *args, **named):
        if os.path.exists(os.environ["FAULT_FLAG"]):
            raise RuntimeError("misaligned address")
        return apply(self, *args, **named)

    own_experts.OwnKernel.apply = failing

def another():
    # Somebody else's plugin, which replaces the same function first.
    from vllm.model_executor.layers.fused_moe import fused_moe

    original = fused_moe.get_moe_configs

    def theirs(E, N, dtype, block_n=None, block_k=None):
        return original(E, N, dtype, block_n, block_k)

    fused_moe.get_moe_configs = theirs

def another_table():
    # The second worker reads a table of its own, not the snapshot that its parent hands down.
    import multiprocessing

    if multiprocessing.current_process().name == "VllmWorker-1":
        for name in ("AUTOTUNE_SNAPSHOT", "AUTOTUNE_SNAPSHOT_DATA", "AUTOTUNE_SNAPSHOT_DIGEST"):
            os.environ.pop(name, None)
        os.environ["AUTOTUNE_TABLE"] = os.environ["FAULT_TABLE"]
"""


@dataclass(frozen=True)
class Served:
    """One engine: what it generated, how long it took to start, and what the plugin said.

    Args:
        read: for each prompt the log probabilities of its own tokens but the first, nats.
    """

    tokens: list[list[int]]
    logprobs: list[list[float]]
    read: list[list[float]]
    start_s: float
    lines: list[str]

    def apart(self, other: Served) -> float:
        """Median difference between the log probabilities of the prompts' tokens, which both have read alike.

        In standard deviations of the other's: two engines that have nothing in common are some 0.95 apart.
        """
        pairs = [
            pair
            for mine, theirs in zip(self.read, other.read, strict=True)
            for pair in zip(mine, theirs, strict=True)
        ]
        spread = statistics.pstdev(theirs for _, theirs in pairs)
        return statistics.median(abs(mine - theirs) for mine, theirs in pairs) / spread

    def warnings(self) -> set[str]:
        """The plugin's warnings; every process of vLLM may say each once."""
        return self.saying("WARNING")

    def saying(self, words: str) -> set[str]:
        """What the plugin said in lines with these words."""
        return {line.partition("autotune: ")[2] for line in self.lines if words in line}


def serve(folder: Path, plugins: str = "random_weights,autotune", ranks: int = 1, **env: str) -> Served:
    """Start an engine of `ranks` GPUs with the plugin, generate, and read its log."""
    from autotune.lab.model import install_random_weights, write_model

    model, site, flag = folder / "model", folder / "site", folder / "up"
    flag.unlink(missing_ok=True)
    write_model(model, "fp8_block128", layers=2)
    install_random_weights(site)
    (site / "faulty_plugins.py").write_text(FAULTY_PLUGIN)
    metadata = site / "faulty_plugins-0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugins\nVersion: 0\n")
    # vLLM loads plugins as Python finds them: this folder is the first on the path.
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nraising = faulty_plugins:raising\nanother = faulty_plugins:another\n"
        "another_table = faulty_plugins:another_table\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
    paths = [str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("serve_once.py")), str(model), str(flag), str(ranks)],
        capture_output=True, text=True, timeout=380,
        env={
            **clean, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "VLLM_PLUGINS": plugins,
            "FAULT_FLAG": str(flag), "VLLM_DEEP_GEMM_WARMUP": "skip",
            "AUTOTUNE_CACHE": str(folder / "cache"), **env,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "autotune: " in line]
    (answer,) = [line for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
    return Served(**json.loads(answer), lines=lines)
