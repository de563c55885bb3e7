"""What is tried inside a process that has vLLM's real source imported. Run by `inside.py`, not by pytest.

Each function gets the patched-in facts of an H200 (sm90) and returns plain data for the tests to judge.
Every one runs in a fork of its own, so none sees another's patches.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FM = "vllm.model_executor.layers.fused_moe"
W1, W2 = (128, 1536, 2048), (128, 2048, 768)
BLOCK = [128, 128]


class Lines(logging.Handler):
    """Keeps the plugin's log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def listen() -> Lines:
    handler = Lines()
    for name in ("vllm.autotune", "autotune"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.DEBUG)
    return handler


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{FM}.{name}")


def fake_h200(name: str = "NVIDIA H200") -> None:
    """Let vLLM's platform say what it would on an H200. After vLLM's modules, which look at it on import."""
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    platform = type(current_platform)
    platform.get_device_name = classmethod(lambda cls, device_id=0: name)
    platform.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    platform.is_cuda = platform.is_cuda_alike = lambda self: True
    platform.supports_fp8 = classmethod(lambda cls: True)


def register() -> tuple[Any, list[str]]:
    from autotune.vllm_plugin import register as entry_point
    from autotune.vllm_plugin import start

    lines = listen()
    entry_point()
    return start.running(), lines.lines


def features(plugin: Any) -> dict[str, list[str]]:
    return {f.name: [f.state, f.reason] for f in plugin.features} if plugin else {}


def look_up(
    counts: list[int], dtype: str | None = "fp8_w8a8", block: list[int] | None = BLOCK
) -> dict[str, Any]:
    """vLLM's own look-up, as its kernels call it, with what Swap-AB comes to for the answer."""
    fm = module("fused_moe")
    found = {}
    for count in counts:
        config = fm.try_get_optimal_moe_config(W1, W2, 8, dtype, count, block)
        swap = fm.enable_swap_ab(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"])
        found[str(count)] = [dict(config), bool(swap)]
    return found


def moe_config(**changes: Any) -> Any:
    import torch

    config = module("config")
    fields: dict[str, Any] = {
        "num_experts": 128, "experts_per_token": 8, "hidden_dim": 2048, "intermediate_size": 768,
        "num_local_experts": 128, "num_logical_experts": 128, "device": "cpu", "in_dtype": torch.bfloat16,
        "activation": module("activation").MoEActivation.SILU,
        "routing_method": config.RoutingMethodType.Renormalize,
        "moe_parallel_config": config.FusedMoEParallelConfig.make_no_parallel(),
    }  # fmt: skip
    if "in_dtype" in changes:
        changes["in_dtype"] = getattr(torch, changes["in_dtype"])
    return config.FusedMoEConfig(**{**fields, **changes})


def keys(scheme: str) -> tuple[Any, Any]:
    q = importlib.import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    return {
        "fp8_tensor": (q.kFp8StaticTensorSym, q.kFp8StaticTensorSym),
        "fp8_channel": (q.kFp8StaticChannelSym, q.kFp8DynamicTokenSym),
        "fp8_block128": (q.kFp8Static128BlockSym, q.kFp8Dynamic128Sym),
        "dynamic": (q.kFp8StaticTensorSym, q.kFp8DynamicTensorSym),
    }[scheme]


def order(scheme: str = "fp8_block128", **changes: Any) -> list[str]:
    return [b.name for b in module("oracle.fp8")._get_priority_backends(moe_config(**changes), *keys(scheme))]


def unquantized_order(**changes: Any) -> list[str]:
    return [b.name for b in module("oracle.unquantized")._get_priority_backends(moe_config(**changes))]


def refuse_the_router() -> None:
    """A vLLM in which the router cannot work, so that one backend is chosen for the whole process."""
    kernel = module("modular_kernel").FusedMoEKernel
    original = kernel.__init__

    def __init__(self: Any, prepare_finalize: Any, fused_experts: Any, stream: Any = None) -> None:
        original(self, prepare_finalize, fused_experts)

    kernel.__init__ = __init__


# Scenarios.


def untouched(**_: Any) -> Any:
    return {"tiles": look_up([1, 3, 8, 64, 65, 4000]), "order": order(), "bf16": unquantized_order()}


def tiles(**_: Any) -> Any:
    fm = module("fused_moe")
    originals = fm.get_moe_configs, fm.enable_swap_ab
    plugin, lines = register()
    found = look_up([1, 3, 8, 64, 65, 4000])
    config = fm.try_get_optimal_moe_config(W1, W2, 8, "fp8_w8a8", 8, BLOCK)
    started = time.perf_counter()
    for _ in range(20_000):
        fm.try_get_optimal_moe_config(W1, W2, 8, "fp8_w8a8", 8, BLOCK)
    each_us = (time.perf_counter() - started) / 20_000 * 1e6
    result = {
        "features": features(plugin), "tiles": found, "lines": list(lines), "each_us": each_us,
        "keys": sorted(config), "environment": dict(os.environ),
        "other": look_up([8], "int8_w8a16", None),
    }  # fmt: skip
    plugin.unapply()
    restored = (fm.get_moe_configs, fm.enable_swap_ab) == originals
    return {**result, "restored": restored, "after": look_up([1, 8])}


def launch(counts: list[int], **_: Any) -> Any:
    """Run vLLM's own launcher with a recorder in place of the compiled kernel."""
    import torch

    fm = module("fused_moe")
    register()
    launched: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def run(*_: Any, **meta: Any) -> None:
                launched.append({k: v for k, v in meta.items() if isinstance(v, (int, bool))})

            return run

    fm.fused_moe_kernel = Recorder()
    for count in counts:
        config = fm.try_get_optimal_moe_config(W1, W2, 8, "fp8_w8a8", count, BLOCK)
        fm.invoke_fused_moe_triton_kernel(
            torch.empty(count, 256).to(torch.float8_e4m3fn), torch.empty(2, 128, 256).to(torch.float8_e4m3fn),
            torch.empty(count, 8, 128), torch.ones(count, 2), torch.ones(2, 1, 2), None, None,
            torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), False, 8, config,
            fm.tl.bfloat16, True, False, False, False, False, BLOCK,
        )  # fmt: skip
    return launched


def backend(cases: list[dict[str, Any]], router: bool = False, **_: Any) -> Any:
    """The order of FP8 backends under different settings, in one process."""
    if not router:
        refuse_the_router()
    oracles = module("oracle.fp8"), module("oracle.unquantized")
    originals = [oracle._get_priority_backends for oracle in oracles]
    plugin, lines = register()
    found = []
    for case in cases:
        os.environ.update(case.get("env", {}))
        found.append(order(case.get("scheme", "fp8_block128"), **case.get("changes", {})))
        for name in case.get("env", {}):
            del os.environ[name]
    state = features(plugin)
    bf16 = unquantized_order()
    plugin.unapply()
    after = [oracle._get_priority_backends for oracle in oracles]
    return {
        "orders": found, "lines": lines, "features": state, "restored": after == originals, "bf16": bf16
    }  # fmt: skip


def select(quantization: str, **_: Any) -> Any:
    """vLLM's own selection runs through to the class of kernels, while it builds a model."""
    refuse_the_router()
    _, lines = register()
    model = SimpleNamespace(quantization=quantization, hf_text_config=SimpleNamespace(model_type="qwen3_moe"))
    importlib.import_module("vllm.config.vllm")._current_vllm_config = SimpleNamespace(model_config=model)
    found = module("oracle.fp8").select_fp8_moe_backend(moe_config(), *keys("fp8_tensor"))
    return {"found": [found[0].name, found[1].__name__], "front": order("fp8_tensor")[0], "lines": lines}


def moved_tiles(scheme: str, build: bool, **_: Any) -> Any:
    """Tiles of a table whose baseline is another backend, before and after the layer was moved to Triton."""
    refuse_the_router()
    plugin, lines = register()
    if build:
        order(scheme)
    return {"tiles": look_up([8], block=None), "lines": lines, "features": features(plugin)}


def layers(builds: list[dict[str, Any]], scheme: str | None, block: list[int] | None, **_: Any) -> Any:
    """Tiles after the process has built these layers."""
    plugin, lines = register()
    for changes in builds:
        if scheme is None:
            moe_config(**changes)
        else:
            order(scheme, **changes)
    return {"tiles": look_up([8], block=block), "lines": lines, "features": features(plugin)}


def quiet(counts: list[int], **_: Any) -> Any:
    """Register, then look up: for sources that fail and modes that leave vLLM alone."""
    kernel = module("fused_moe").fused_moe_kernel
    started = time.monotonic()
    plugin, lines = register()
    took = time.monotonic() - started
    return {
        "tiles": look_up(counts), "order": order(), "lines": lines, "features": features(plugin),
        "kernel": "own" if module("fused_moe").fused_moe_kernel is kernel else "replaced",
        "took": took, "snapshot": os.environ.get("AUTOTUNE_SNAPSHOT"),
    }  # fmt: skip


def other_gpu(gpu: str, **_: Any) -> Any:
    fake_h200(gpu)
    return quiet([8])


def not_cuda(**_: Any) -> Any:
    from vllm.platforms import current_platform

    type(current_platform).is_cuda = lambda self: False
    plugin, lines = register()
    return {"running": plugin is not None, "lines": lines}


def changed_signature(**_: Any) -> Any:
    """A later vLLM renames an argument: only that feature goes."""
    fm = module("fused_moe")
    fm.get_moe_configs = lambda E, N, dtype, block_size: None
    plugin, lines = register()
    return {"features": features(plugin), "lines": lines, "order": order()}


def future(folder: str, **_: Any) -> Any:
    """A vLLM of a version that nobody has seen, by its metadata, which renames an argument besides."""
    metadata = Path(folder) / "vllm-0.99.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    sys.path.insert(0, folder)
    return changed_signature()


def changed_lookup(**_: Any) -> Any:
    fm = module("fused_moe")

    def try_get_optimal_moe_config(*arguments: Any) -> Any:
        return {}

    fm.try_get_optimal_moe_config = try_get_optimal_moe_config
    plugin, _ = register()
    return features(plugin)


def changed_oracle(**_: Any) -> Any:
    fp8 = module("oracle.fp8")
    fp8._get_priority_backends = lambda moe_config: []
    plugin, _ = register()
    return {"features": features(plugin), "tiles": look_up([8])}


def twice(**_: Any) -> Any:
    """Registered twice, and once more by a second copy of the plugin's code in the same process."""
    fm = module("fused_moe")
    original = fm.get_moe_configs
    first, _ = register()
    link = fm.get_moe_configs
    second, _ = register()
    same = first is second and fm.get_moe_configs is link
    for name in [n for n in sys.modules if n.startswith("autotune.vllm_plugin")]:
        del sys.modules[name]
    again, _ = register()
    found = look_up([8])
    again.unapply()
    return {"same": same, "tiles": found, "restored": fm.get_moe_configs is original}


def chained(**_: Any) -> Any:
    """Another plugin patches the same function after us, and stays in force when we go."""
    fm = module("fused_moe")
    plugin, _ = register()
    ours = fm.get_moe_configs
    seen: list[int] = []

    def theirs(
        E: int, N: int, dtype: str | None, block_n: int | None = None, block_k: int | None = None
    ) -> Any:
        seen.append(E)
        return ours(E, N, dtype, block_n, block_k)

    fm.get_moe_configs = theirs
    during = look_up([8])
    plugin.unapply()
    after = look_up([8])
    return {"during": during, "after": after, "theirs": fm.get_moe_configs is theirs, "seen": len(seen)}


def child(**_: Any) -> Any:
    """The parent resolves; a child process takes its snapshot although the source says something else."""
    register()
    path = Path(os.environ["AUTOTUNE_TABLE"])
    path.write_text("{}")
    pid = os.fork()
    if pid == 0:
        from autotune.client import RoutingClient

        snapshot = RoutingClient().snapshot
        ok = len(snapshot.tables) == 1 and snapshot.digest == os.environ["AUTOTUNE_SNAPSHOT_DIGEST"]
        os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def user_folder(folder: str, **_: Any) -> Any:
    """A user's own tuned file for this problem counts before the table."""
    fm = module("fused_moe")
    target = Path(folder)
    target.mkdir()
    name = fm.get_config_file_name(128, 768, "fp8_w8a8", BLOCK)
    own = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4}
    (target / name).write_text(json.dumps({"1": own}))
    os.environ["VLLM_TUNED_CONFIG_FOLDER"] = folder
    _, lines = register()
    return {"tiles": look_up([8]), "lines": lines}


def exported(folder: str, counts: list[int], **_: Any) -> Any:
    """vLLM reads an exported folder by itself, without the plugin."""
    os.environ["VLLM_TUNED_CONFIG_FOLDER"] = folder
    return look_up(counts)


def doctor(
    shape: str = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128",
    serving: dict[str, Any] | None = None,
    **_: Any,
) -> Any:
    from autotune.vllm_plugin.doctor import Serving, examine
    from autotune.vocabulary.problem import Problem
    from autotune.vocabulary.settings import Settings

    fm = module("fused_moe")
    original = fm.get_moe_configs
    serving_so = Serving(**(serving or {}))
    report = examine(Settings.from_env(), (Problem.parse(shape), "fp8"), serving_so).to_json_data()
    return {**report, "untouched": fm.get_moe_configs is original}
