"""Two ranks of vLLM's real source, connected over gloo on a CPU. Started by `test_ranks.py`.

Reads `{"path": [...], "cases": [...]}` from standard input and writes `{"<case>": [rank 0, rank 1]}` to the
file named by the first argument. A case is

    name
    start    "fork" or "spawn": how the ranks are started
    engine   environment of a process that loads the plugin first and whose children the ranks are; None
             starts each rank with its own, as on hosts of their own
    ranks    environment of each rank, on top
    remove   files that are gone when the ranks start
    carry    the ranks get only the variables that vLLM copies to Ray workers
    late_s   seconds by which rank 1 comes late to the comparison
    changed  vLLM's function that is waited for takes other arguments
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LIMIT_S = 90.0


class Config(SimpleNamespace):
    """As much of vLLM's configuration as connecting ranks looks at; every other part is switched off."""

    def __getattr__(self, name: str) -> None:
        return None


def main() -> None:
    spec = json.load(sys.stdin)
    sys.path[:0] = spec["path"]
    prepare()
    results: dict[str, Any] = {}
    for case in spec["cases"]:
        folder = Path(sys.argv[1]).parent / case["name"]
        folder.mkdir()
        engine = multiprocessing.get_context("fork").Process(target=run_case, args=(case, str(folder)))
        engine.start()
        engine.join(3 * LIMIT_S)  # longer than the ranks, which are its to end
        if engine.is_alive():
            engine.kill()
        results[case["name"]] = [_result(folder / f"{rank}.json") for rank in (0, 1)]
    Path(sys.argv[1]).write_text(json.dumps(results))


def _result(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {"error": "it did not end in time"}


def prepare() -> None:
    """Import what a worker has imported before it loads plugins and after."""
    import scenarios

    for name in ("config", "fused_moe", "oracle.fp8", "oracle.unquantized", "modular_kernel"):
        importlib.import_module(f"{scenarios.FM}.{name}")
    importlib.import_module("vllm.v1.worker.gpu_worker")


def load_plugins() -> list[str]:
    """As vLLM does; its platform says what it would on an H200."""
    import scenarios

    lines = scenarios.listen()
    scenarios.fake_h200()
    importlib.import_module("vllm.plugins").load_general_plugins()
    return lines.lines


def run_case(case: dict[str, Any], folder: str) -> None:
    """The process whose children the ranks are."""
    if case["engine"] is not None:
        os.environ.update(case["engine"])
        load_plugins()
    for path in case.get("remove", []):
        Path(path).unlink()
    if case.get("remove_snapshot"):
        Path(os.environ["AUTOTUNE_SNAPSHOT"]).unlink()
    if case.get("carry"):
        copied = importlib.import_module("vllm.ray.ray_env").get_env_vars_to_copy()
        for name in [name for name in os.environ if name.startswith("AUTOTUNE_") and name not in copied]:
            del os.environ[name]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context(case["start"])
    ranks = [
        context.Process(target=run_rank, args=(case, rank, port, folder, sys.path)) for rank in (0, 1)
    ]  # fmt: skip
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()


def run_rank(case: dict[str, Any], rank: int, port: int, folder: str, path: list[str]) -> None:
    """One worker: loads plugins, is connected, builds a layer, asks for a tile."""
    sys.path[:] = path
    os.environ.update(case["ranks"][rank])
    try:
        result = worker(case, rank, port)
    except BaseException:
        result = {"error": traceback.format_exc()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))


def worker(case: dict[str, Any], rank: int, port: int) -> dict[str, Any]:
    prepare()
    import scenarios

    gpu_worker: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
    _prepare_case(case, rank, gpu_worker)
    lines = load_plugins()
    from vllm.platforms import current_platform

    # The table is for an H200; the ranks are connected as CPU processes.
    type(current_platform).is_cuda = type(current_platform).is_cuda_alike = lambda self: False
    parallel = importlib.import_module("vllm.config").ParallelConfig
    config = Config(parallel_config=parallel(tensor_parallel_size=2, distributed_executor_backend="mp"))
    importlib.import_module("vllm.config.vllm")._current_vllm_config = config
    started = time.monotonic()
    gpu_worker.init_worker_distributed_environment(config, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
    took = time.monotonic() - started
    scenarios.moe_config()
    start: Any = importlib.import_module("autotune.vllm_plugin.start")
    result = {
        "tiles": scenarios.look_up([8])["8"], "lines": lines, "took": took,
        "features": scenarios.features(start.running()),
        "snapshot": os.environ.get("AUTOTUNE_SNAPSHOT_DIGEST"),
    }  # fmt: skip
    # No rank may end, and the store with it, while another still asks.
    importlib.import_module("torch.distributed").barrier()
    return result


def _prepare_case(case: dict[str, Any], rank: int, gpu_worker: Any) -> None:
    original = gpu_worker.init_worker_distributed_environment
    if case.get("changed"):
        gpu_worker.init_worker_distributed_environment = (
            lambda vllm_config, rank, method, local_rank, backend: original(
                vllm_config, rank, method, local_rank, backend
            )
        )
    elif rank == 1 and case.get("late_s"):

        @functools.wraps(original)
        def late(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            time.sleep(case["late_s"])

        gpu_worker.init_worker_distributed_environment = late


if __name__ == "__main__":
    main()
