"""Counting in a front end and a worker, two processes. Run by `inside.py`; see `scenarios.py`.

Real are vLLM's runner, dispatcher, scheduler statistics, message encoding, logger manager and registry.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scenarios
from router_scenarios import Setup, own_kernels
from scenarios import features, register

CAPTURED = [1, 2, 4, 8, 16]
STEPS = [(3, 1), (3, 1), (6, 3), (40, 20), (12, 1), (70, 35)]
"""Scheduled tokens of a step, and the most of one request."""
WORKER = "vllm.v1.worker.gpu_worker"


def vllm_config() -> Any:
    """The parts of a VllmConfig that the worker's code under test reads; its own classes where it counts."""
    config: Any = importlib.import_module("vllm.config")
    compilation = config.CompilationConfig(
        mode=3, cudagraph_mode="FULL_AND_PIECEWISE", cudagraph_capture_sizes=CAPTURED,
        max_cudagraph_capture_size=16,
    )  # fmt: skip
    compilation.splitting_ops = list(compilation._attention_ops)
    compilation.post_init_cudagraph_sizes()
    parallel = SimpleNamespace(
        data_parallel_size=1,
        data_parallel_rank=0,
        data_parallel_index=0,
        world_size=1,
        use_ubatching=False,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
    )
    return SimpleNamespace(
        compilation_config=compilation, lora_config=None, speculative_config=None, num_speculative_tokens=0,
        observability_config=config.ObservabilityConfig(), parallel_config=parallel,
        scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=64),
    )  # fmt: skip


def make_worker(capture: Any, second: bool = False) -> Any:
    """vLLM's worker and its runner, without the GPU that their constructors want."""
    worker_module = importlib.import_module(WORKER)
    name = "vllm.v1.worker.gpu.model_runner" if second else "vllm.v1.worker.gpu_model_runner"
    parent = importlib.import_module(name).GPUModelRunner
    dispatching: Any = importlib.import_module("vllm.v1.cudagraph_dispatcher")
    config = vllm_config()

    class Runner(parent):  # type: ignore[misc]
        def capture_model(self) -> int:
            capture()
            return 0

        def maybe_remove_all_loras(self, lora_config: Any) -> None:
            pass

        def _dummy_run(self, *args: Any, **named: Any) -> Any:
            return None, None

    runner = Runner.__new__(Runner)
    runner.vllm_config, runner.parallel_config = config, config.parallel_config
    runner.observability_config = config.observability_config
    runner.compilation_config, runner.lora_config = config.compilation_config, None
    runner.model_config = SimpleNamespace(is_encoder_decoder=False)
    runner.input_batch = SimpleNamespace(lora_id_to_lora_request={})
    runner.uniform_decode_query_len, runner.speculative_config = 1, None
    runner.cudagraph_dispatcher = dispatching.CudagraphDispatcher(config)
    mode = config.compilation_config.cudagraph_mode
    runner.cudagraph_dispatcher.initialize_cudagraph_keys(mode, 1)
    # What follows is not compiled here, as there is no model.
    config.compilation_config.mode = 0
    worker = worker_module.Worker.__new__(worker_module.Worker)
    worker.vllm_config, worker.model_runner, worker.rank, worker.device = config, runner, 0, "cpu"
    worker.compilation_config, worker.parallel_config = config.compilation_config, config.parallel_config
    worker.scheduler_config = config.scheduler_config
    worker.observability_config = config.observability_config
    worker.model_config = SimpleNamespace(enforce_eager=False, seed=0)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=1)
    worker.use_v2_model_runner = False
    worker._get_cudagraph_capture_context = contextlib.nullcontext
    worker._maybe_activate_jit_monitor = lambda: None
    return worker


def without_a_gpu() -> None:
    """Before the plugin is loaded: what the worker's warm-up calls outside the parts under test."""
    module: Any = importlib.import_module(WORKER)
    module.kernel_warmup = lambda worker: None
    module.get_pp_group = lambda: SimpleNamespace(is_last_rank=False)
    module.set_random_seed = lambda *seeds: None


def step(runner: Any, tokens: int, most: int) -> Any:
    """vLLM's own decision on one step: its graph mode, padded size and statistics."""
    requests = -(-tokens // most)
    return runner._determine_batch_execution_and_padding(
        num_tokens=tokens, num_reqs=requests, num_scheduled_tokens_np=np.array([most] * requests),
        max_num_scheduled_tokens=most, use_cascade_attn=False,
    )  # fmt: skip


def serve(pipe: Any, log: str) -> None:
    """The worker; what it raises reaches the front end."""
    try:
        work(pipe, log)
    except Exception:
        pipe.send(traceback.format_exc())
        raise


def work(pipe: Any, log: str) -> None:
    """The worker: builds a layer, captures, runs steps as vLLM would, and hands its statistics on."""
    handler = logging.FileHandler(log)
    for name in ("vllm.autotune", "autotune"):
        logging.getLogger(name).addHandler(handler)
    own_kernels(True)
    setup = Setup()
    kernels = [setup.kernel(), setup.kernel()]
    for kernel in kernels:
        setup.call(kernel, 64)

    def capture() -> None:
        for count in reversed(CAPTURED):
            setup.calls(kernels[0], [count])

    worker = make_worker(capture)
    worker.compile_or_warm_up_model()
    engine: Any = importlib.import_module("vllm.v1.engine")
    stats: Any = importlib.import_module("vllm.v1.metrics.stats")
    encoder: Any = importlib.import_module("vllm.v1.serial_utils").MsgpackEncoder()
    for tokens, most in STEPS:
        mode, batch, *_, stat = step(worker.model_runner, tokens, most)
        if mode.name == "NONE":
            for kernel in kernels:
                setup.call(kernel, batch.num_tokens)
        # A prefill chunk that yields no token has a message of its own too.
        outputs = engine.EngineCoreOutputs(scheduler_stats=stats.SchedulerStats(cudagraph_stats=stat))
        pipe.send([bytes(part) for part in encoder.encode(outputs)])
    from autotune.vllm_plugin.start import running

    counts = next(f for f in running().features if f.name == "counts")
    counts.watch._add({"src": SimpleNamespace(name="fused_moe_kernel"), "cache_hit": False})
    counts.tell()
    pipe.send(["switched", worker.vllm_config.observability_config.cudagraph_metrics])
    pipe.recv()


def counted(log: str, twice: bool = False, **_: Any) -> Any:
    """One front end and its worker."""
    without_a_gpu()
    plugin, lines = register()
    found: dict[str, Any] = {"features": features(plugin)}
    folder = Path(os.environ["AUTOTUNE_RUN"])
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    process = forking.Process(target=serve, args=(theirs, log))
    process.start()
    theirs.close()  # so that a worker that dies ends the wait for it
    loggers: Any = importlib.import_module("vllm.v1.metrics.loggers")
    stats: Any = importlib.import_module("vllm.v1.metrics.stats")
    engine: Any = importlib.import_module("vllm.v1.engine")
    decoder = importlib.import_module("vllm.v1.serial_utils").MsgpackDecoder(engine.EngineCoreOutputs)
    manager = loggers.StatLoggerManager.__new__(loggers.StatLoggerManager)
    kept: list[Any] = []
    manager.stat_loggers = [SimpleNamespace(record=lambda *args, **named: kept.append(args[0]))]
    for _step in STEPS:
        message = ours.recv()
        if isinstance(message, str):
            raise RuntimeError(message)
        outputs = decoder.decode(message)
        manager.record(
            engine_idx=0, scheduler_stats=outputs.scheduler_stats, iteration_stats=stats.IterationStats()
        )
    found["switched"] = ours.recv()[1]
    metrics = next(f for f in plugin.features if f.name == "metrics")
    metrics.meter.flush()
    if twice:
        # Another engine in the same process says what serves, too.
        other = next(folder.glob("worker-0-*.json"))
        copy = json.loads(other.read_text())
        (folder / f"worker-0-{os.getpid()}.json").write_text(json.dumps({**copy, "pid": os.getpid()}))
        metrics.meter.saw(kept[0].cudagraph_stats)
        metrics.meter.flush()
    ours.send("done")
    process.join(30)
    from prometheus_client import generate_latest

    registry = importlib.import_module("vllm.v1.metrics.prometheus").get_prometheus_registry()
    found |= {
        "metrics": [x for x in generate_latest(registry).decode().splitlines() if x.startswith("autotune_")],
        "reached vLLM": len(kept), "exit": process.exitcode, "worker": Path(log).read_text().splitlines(),
    }  # fmt: skip
    metrics.meter.end()
    return {**found, "lines": lines}


def untold(**_: Any) -> Any:
    """A runner that states nothing, an engine in the front end's process, and steps in parts."""
    without_a_gpu()
    plugin, lines = register()
    counts: Any = importlib.import_module("autotune.vllm_plugin.worker_counts")
    first, second = make_worker(lambda: None), make_worker(lambda: None, second=True)
    found = {"in process": counts.have_steps_told(first)}
    os.environ["AUTOTUNE_RUN"] = "/nowhere"
    found["second runner"] = counts.have_steps_told(second)
    first.vllm_config.parallel_config.use_ubatching = True
    found["parts"] = counts.have_steps_told(first)
    # A host without the folder, as under Ray.
    first.compile_or_warm_up_model()
    stats: Any = importlib.import_module("vllm.v1.metrics.stats")
    loggers: Any = importlib.import_module("vllm.v1.metrics.loggers")
    manager = loggers.StatLoggerManager.__new__(loggers.StatLoggerManager)
    manager.stat_loggers = []
    manager.record(stats.SchedulerStats(), stats.IterationStats())
    manager.record(None, None)
    metrics = next(f for f in plugin.features if f.name == "metrics")
    metrics.meter.flush()
    return {**found, "lines": lines, "placed": metrics.meter.lines()}


def changed(what: str, **_: Any) -> Any:
    """A later vLLM changes what the counts need: only they go."""
    if what == "record":
        loggers: Any = importlib.import_module("vllm.v1.metrics.loggers")
        loggers.StatLoggerManager.record = lambda self, stats: None
    elif what == "stat":
        graphs: Any = importlib.import_module("vllm.compilation.cuda_graph")
        graphs.CUDAGraphStat = type("CUDAGraphStat", (), {"runtime_mode": ""})
    else:
        worker: Any = importlib.import_module(WORKER).Worker
        name = "_compile_or_warm_up_model"
        setattr(worker, name if hasattr(worker, name) else name[1:], lambda self: None)
    plugin, lines = register()
    return {"features": features(plugin), "lines": lines, "tiles": scenarios.look_up([8])}
