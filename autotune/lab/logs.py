"""What a server's log says: compilations while it serves, memory, and the plugin's own lines."""

from __future__ import annotations

import re
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COMPILED = re.compile(r"JIT compilation during inference: (\S+?)[.]?(?: \(|\s|$)")
_KEPT = re.compile(r"autotune:|MoE backend|during inference|Using configuration from")
_GIB = {
    "weights_gib": re.compile(r"Model loading took ([0-9.]+) GiB"),
    "kv_cache_gib": re.compile(
        r"(?:Available KV cache memory:|GiB, reserved) ([0-9.]+) GiB"  # measured, or as given
    ),
    "graphs_gib": re.compile(r"Graph capturing finished in \d+ secs, took (-?[0-9.]+) GiB"),
}
MOST_LINES = 80


def text_from(log: Path, offset: int) -> str:
    """The log from a byte on, without colours."""
    with log.open("rb") as stream:
        stream.seek(offset)
        return _COLOURS.sub("", stream.read().decode(errors="replace"))


def compiles(text: str) -> tuple[str, ...]:
    """Kernels that vLLM's JIT monitor saw compiled while serving, in order.

    With `--jit-monitor-verbose` a line stands for each compilation, without it for each kernel's first.
    """
    return tuple(_COMPILED.findall(text))


def kept_lines(text: str) -> tuple[str, ...]:
    """The lines that tell what ran: the plugin's, vLLM's choice of a backend, compilations."""
    lines = [line.strip()[:300] for line in text.splitlines() if _KEPT.search(line)]
    return tuple(lines[:MOST_LINES])


def memory(text: str) -> dict[str, float]:
    """Weights, room for the KV cache, and CUDA graphs, GiB, as far as vLLM logs them."""
    found = {}
    for name, pattern in _GIB.items():
        match = pattern.search(text)
        if match:
            found[name] = float(match[1])
    return found
