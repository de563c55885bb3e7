"""Faults tried inside a process that has vLLM's real source imported.

Run by `inside.py`, each in a fork of its own; see `scenarios.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import router_scenarios
import scenarios
from scenarios import features, listen, look_up, module, quiet, register


def full_disk(**_: Any) -> Any:
    """No file can take a byte, for root neither; a child still decides with the parent's tables."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return {**quiet([8]), "child": _child(), "variables": sorted(os.environ)}


def read_only_cache(**_: Any) -> Any:
    return {**quiet([8]), "child": _child(), "variables": sorted(os.environ)}


def _child() -> int:
    """0 if a process started now has the announced tables without asking the service."""
    pid = os.fork()
    if pid == 0:
        from autotune.client import RoutingClient, sources

        sources.from_url = lambda settings, gpu: os._exit(2)
        snapshot = RoutingClient().snapshot
        same = snapshot.digest == os.environ["AUTOTUNE_SNAPSHOT_DIGEST"] and len(snapshot.tables) == 1
        os._exit(0 if same and not snapshot.reasons else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def clock_back(body: dict[str, Any], **_: Any) -> Any:
    """What was kept is from the future, and so are the files; the service is down."""
    from autotune.client.cache import LastKnownGood
    from autotune.vocabulary.settings import Settings

    settings = Settings.from_env()
    assert settings.url is not None
    kept = LastKnownGood(settings.cache, settings.url, "NVIDIA_H200", settings.channel)
    assert kept.write(body, '"x"') == ""
    later = time.time() + 50 * 365 * 86400
    stored = json.loads(kept.path.read_text())
    kept.path.write_text(json.dumps({**stored, "saved_at": "2076-01-01T00:00:00+00:00"}))
    os.utime(kept.path, (later, later))
    time.time = lambda: 0.0
    return quiet([8])


def plugins(**_: Any) -> Any:
    """vLLM's own loading of plugins, with whatever VLLM_PLUGINS says."""
    lines = listen()
    importlib.import_module("vllm.plugins").load_general_plugins()
    running = importlib.import_module("autotune.vllm_plugin.start").running()
    return {"running": running is not None, "tiles": look_up([8]), "lines": lines.lines}


def too_large(counts: list[int], **_: Any) -> Any:
    """A table names a tile that no launch could take; vLLM's launcher gets its own."""
    launched = scenarios.launch(counts)
    return {"launched": launched, "tiles": look_up(counts)}


def too_large_lines(**_: Any) -> Any:
    return quiet([8])


def too_large_routes(**_: Any) -> Any:
    """A route of a backend of ours that no launch could take: the router does not even try it."""
    router_scenarios.own_kernels(True)
    _, lines = register()
    setup = router_scenarios.Setup("fp8_tensor", "triton")
    kernel = setup.kernel()
    router_scenarios.warmed(setup, kernel)
    return {"calls": setup.calls(kernel, [2, 12]), "lines": lines}


def another_first(**_: Any) -> Any:
    """Another plugin has replaced the function before us."""
    fm = module("fused_moe")
    original = fm.get_moe_configs
    seen: list[int] = []

    def theirs(
        E: int, N: int, dtype: str | None, block_n: int | None = None, block_k: int | None = None
    ) -> Any:
        seen.append(E)
        return original(E, N, dtype, block_n, block_k)

    fm.get_moe_configs = theirs
    plugin, lines = register()
    during = look_up([8, 4000])
    plugin.unapply()
    return {
        "tiles": during, "after": look_up([8]), "seen": len(seen), "lines": lines,
        "theirs": fm.get_moe_configs is theirs, "features": features(plugin),
    }  # fmt: skip


def twice(**_: Any) -> Any:
    """vLLM loads general plugins again in the same process, as its documentation warns."""
    _, lines = register()
    vllm_plugins: Any = importlib.import_module("vllm.plugins")
    vllm_plugins.plugins_loaded = False
    vllm_plugins.load_general_plugins()
    return {"tiles": look_up([8]), "lines": lines, "cache": Path(os.environ["AUTOTUNE_CACHE"]).exists()}
