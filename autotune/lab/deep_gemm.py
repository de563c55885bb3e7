"""What DeepGEMM compiled: it has its own compiler, which vLLM's JIT monitor does not see."""

from __future__ import annotations

from pathlib import Path

CACHE_VARIABLE = "DG_JIT_CACHE_DIR"


def kernels(cache: Path) -> frozenset[str]:
    """Kernels that a cache of DeepGEMM holds, by their folders there: `cache/kernel.<name>.<hash>`.

    Each variant that a process needs first is built, once (its csrc/jit/compiler.hpp).
    """
    try:
        return frozenset(
            folder.name for folder in (cache / "cache").iterdir() if folder.name[:7] == "kernel."
        )
    except OSError:  # nothing has been built
        return frozenset()


def compiled(before: frozenset[str], after: frozenset[str]) -> tuple[str, ...]:
    """Names of the kernels that came, `deep_gemm:<name>` for each variant."""
    return tuple(sorted(f"deep_gemm:{folder.split('.')[1]}" for folder in after - before))
