"""Imports vLLM's real source once, then runs each scenario in a fork. Started by the `vllm` fixture.

Reads `{"path": [...], "scenarios": [{"name", "function", "arguments", "env"}], "early": {...}}` from
standard input and writes `{"<name>": result}` to the file named by the first argument.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

ROUTED = (
    "modular_kernel", "experts.triton_moe", "experts.flashinfer_cutlass_moe", "experts.cutlass_moe",
    "experts.deep_gemm_moe", "prepare_finalize.no_dp_ep",
)  # fmt: skip


def main() -> None:
    spec = json.load(sys.stdin)
    sys.path[:0] = spec["path"]
    import scenarios

    results = {"after_import": _fork(lambda: _register_first(spec["early"]))}
    for name in ("config", "fused_moe", "oracle.fp8", "oracle.unquantized", *ROUTED):
        importlib.import_module(f"{scenarios.FM}.{name}")
    importlib.import_module("vllm.v1.worker.gpu_worker")
    importlib.import_module("vllm.v1.metrics.loggers")
    importlib.import_module("vllm.model_executor.warmup.deep_gemm_warmup")
    scenarios.fake_h200()
    for scenario in spec["scenarios"]:
        name, _, module = scenario["function"].partition("@")
        function = getattr(importlib.import_module(module or "scenarios"), name)
        results[scenario["name"]] = _fork(lambda f=function, s=scenario: _run(f, s))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(results, file)


def _run(function: Any, scenario: dict[str, Any]) -> Any:
    os.environ.update(scenario["env"])
    return function(**scenario["arguments"])


def _register_first(env: dict[str, str]) -> Any:
    """The plugin is loaded before vLLM imports its kernels, as in a starting server."""
    import scenarios

    os.environ.update(env)
    import vllm.platforms  # noqa: F401

    scenarios.fake_h200()
    plugin, _ = scenarios.register()
    imported = f"{scenarios.FM}.fused_moe" in sys.modules
    before = scenarios.features(plugin)
    from vllm.platforms import current_platform

    # vLLM's modules ask the platform on import, and CUDA's answers need its binaries.
    type(current_platform).is_cuda = lambda self: False
    for name in ("config", "fused_moe", "oracle.fp8", "oracle.unquantized", "modular_kernel"):
        importlib.import_module(f"{scenarios.FM}.{name}")
    importlib.import_module("vllm.model_executor.warmup.deep_gemm_warmup")
    scenarios.fake_h200()
    return {
        "imported": imported, "before": before, "after": scenarios.features(plugin),
        "tiles": scenarios.look_up([8]),
    }  # fmt: skip


def _fork(function: Any) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = {"ok": function()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the process died"}


if __name__ == "__main__":
    main()
