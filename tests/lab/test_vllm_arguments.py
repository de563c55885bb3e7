"""What is passed to `vllm serve` and `vllm bench serve` against their own parsers, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.lab.labs import vllm_path

PARSE = """
import json
from pathlib import Path
from vllm.platforms import current_platform
type(current_platform).device_type = "cuda"
from vllm.benchmarks import serve
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from autotune.lab.arms import known_arms
from autotune.lab.client import bench_arguments
from autotune.lab.hosting import VLLM_SERVE
from autotune.lab.outputs import request_of
from autotune.lab.plan import Point
from autotune.vocabulary.problem import Scheme

filled = {"{port}": "8", "{memory}": "0.450", "{model}": "/m"}
words = [filled.get(word, word) for word in VLLM_SERVE[VLLM_SERVE.index("serve") + 1:]]
engine = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
engine.add_argument("--port", type=int)
arm = known_arms(Scheme.FP8_TENSOR)["tiles"]
a = engine.parse_args(["--model", words[0], *words[1:], *arm.serve_args])
client = FlexibleArgumentParser()
serve.add_cli_args(client)
point = Point(concurrency=8, shortest=128, longest=4096, output=64, requests=32)
b = client.parse_args(bench_arguments(point, Path("/m"), 8, seed=3, ahead=0))
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
c = CompletionRequest(**request_of("/m", "w5 w6", 4))
print("PARSED" + json.dumps([
    a.load_format, a.gpu_memory_utilization, a.enable_prefix_caching, a.jit_monitor_verbose, a.moe_backend,
    b.num_prompts, b.max_concurrency, b.num_warmups, b.ready_check_timeout_sec, b.ignore_eos, b.seed,
    c.logprobs, c.prompt_logprobs, c.temperature, c.max_tokens, c.ignore_eos,
]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.25.1", "0.33.0"])
def test_vllms_parsers_take_the_words(version: str) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": vllm_path(version), "VLLM_PLUGINS": ""}
    done = subprocess.run([sys.executable, "-c", PARSE], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    parsed = json.loads(done.stdout.partition("PARSED")[2])
    assert parsed == ["dummy", 0.45, False, True, "triton", 32, 8, 0, 0, True, 3, 1, 1, 0, 4, True]
