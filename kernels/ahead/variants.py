"""Triton variants that launches would need, found by Triton's own binder and compiled elsewhere.

Triton hands each missing variant to `knobs.runtime.jit_cache_hook` before it compiles, with the very data
from which `JITFunction.preload` makes the same variant again (Triton 3.6 to 3.8). Answering True leaves it
uncompiled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass
class Variant:
    """One compiled form of a kernel, not yet compiled in this process.

    Args:
        kernel: the `triton.jit` function.
        key: tells variants of one process apart.
        data: Triton's JSON of signature, constants, attributes and options.
        load: makes this process compile it, or take it from the disk; runs nothing on the GPU.
        tokens: the token count that first needed it.
    """

    kernel: Any
    key: str
    data: str
    load: Callable[[], Any]
    tokens: int = 0


@dataclass
class Found:
    """What a set of launches needs: `missing` by cache key, and the variants that were loaded already."""

    missing: dict[str, Variant] = field(default_factory=dict)
    loaded: set[int] = field(default_factory=set)
    """Identities of compiled kernels that this process holds."""
    tokens: int = 0
    """Note of the caller: the count whose launches come next."""

    @property
    def total(self) -> int:
        """Distinct variants."""
        return len(self.missing) + len(self.loaded)


@contextmanager
def collecting() -> Iterator[Found]:
    """Turn every Triton launch into a question for its variant; nothing is compiled and nothing runs.

    Meant for a moment in which no other thread launches kernels: it replaces `JITFunction.run`.
    """
    from triton import knobs
    from triton.runtime.jit import JITFunction

    found = Found()
    original, hook = JITFunction.run, knobs.runtime.jit_cache_hook
    launch: Callable[[], Any] = _nothing

    def note(**event: Any) -> bool:
        kernel = event["fn"].jit_function
        # Triton's key tells a kernel's variants apart, not two kernels.
        key = f"{id(kernel):x} {event['key']}"
        if key not in found.missing:
            data = event["compile"]["specialization_data"]
            found.missing[key] = Variant(kernel, key, data, launch, found.tokens)
        return True

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        nonlocal launch
        launch = partial(original, self, *args, grid=grid, warmup=True, **kwargs)
        compiled = launch()
        if compiled is not None:
            found.loaded.add(id(compiled))
        return compiled

    JITFunction.run = run
    knobs.runtime.jit_cache_hook = note
    try:
        yield found
    finally:
        JITFunction.run = original
        knobs.runtime.jit_cache_hook = hook


def held_by(kernel: Any) -> set[int]:
    """Identities of the compiled variants of a kernel that this process holds, on all devices.

    Empty as well where Triton keeps them in another place than 3.6 to 3.8 do.
    """
    held: set[int] = set()
    for entry in getattr(kernel, "device_caches", {}).values():
        if isinstance(entry, tuple) and entry and isinstance(entry[0], dict):
            held |= {id(compiled) for compiled in entry[0].values()}
    return held


def source_of(kernel: Any, data: str) -> tuple[Any, dict[str, Any]]:
    """A variant's `ASTSource` and options, from Triton's own JSON (as `JITFunction.preload` reads it).

    Raises:
        ValueError: for a constant that JSON cannot carry, such as a function.
    """
    import triton.language as tl
    from triton.compiler import ASTSource

    stored = json.loads(data)

    def constant(value: Any) -> Any:
        if isinstance(value, str) and tl.dtype.is_dtype(value):
            return tl.dtype(value)
        if isinstance(value, dict):
            if "constexpr" not in value:
                raise ValueError(f"a constant of another kind: {value}")
            return tl.constexpr(_tuples(value["constexpr"]))
        return _tuples(value)

    keys = [tuple(key) for key in stored["constant_keys"]]
    constants = dict(zip(keys, map(constant, stored["constant_vals"]), strict=True))
    attributes = dict(zip(map(tuple, stored["attrs_keys"]), stored["attrs_vals"], strict=True))
    signature = {name: _tuples(value) for name, value in stored["signature"].items()}
    options = {name: _tuples(value) for name, value in stored["options"].items()}
    return ASTSource(kernel, signature, constants, attributes), options


def on_disk(variant: Variant, target: Any) -> bool:
    """Whether Triton's cache on disk holds the variant. False as well where Triton keeps it differently."""
    try:
        from triton.compiler import make_backend
        from triton.compiler.compiler import get_cache_invalidating_env_vars
        from triton.runtime.cache import get_cache_key, get_cache_manager

        source, options = source_of(variant.kernel, variant.data)
        backend = make_backend(target)
        key = get_cache_key(
            source, backend, backend.parse_options(options), env_vars=get_cache_invalidating_env_vars()
        )
        name = f"{source.name[:150]}.json"
        group = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(name)
        return bool(group and group.get(name))
    except (ImportError, TypeError, ValueError):
        return False


def _nothing() -> None:
    """What there is to load before the first launch."""


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
