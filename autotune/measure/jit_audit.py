"""Which arguments make a Triton kernel compile again, over a set of token counts, and what that costs.

Without a GPU nothing is compiled: Triton's own binder says which variant each launch would need on a GPU of a
given capability, and counting the distinct ones counts the compilations. With a GPU the kernels run and each
compilation is timed as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

DEFAULT_TOKENS: tuple[int, ...] = (*range(1, 140), 160, 200, 256, 300, 384, 512, 513, 1000, 1024, 2048)
"""Every count of a decode step up to 139, and some of prefill chunks."""


@dataclass(frozen=True)
class Variant:
    """One compiled form of a kernel.

    Args:
        tokens: the token count that first needed it.
        changed: argument -> (before, now), against the most similar variant before it; empty for the first.
        scalars: those of `changed` that are run-time integers, whose value alone asked for the variant.
        tile: whether compile-time constants or launch options changed as well.
        seconds: what the call took that compiled it; None where nothing was compiled.
    """

    kernel: str
    tokens: int
    changed: dict[str, tuple[str, str]]
    scalars: tuple[str, ...]
    tile: bool
    seconds: float | None

    @property
    def cause(self) -> str:
        """`first`, `tile`, `scalar`, or `tile and scalar`."""
        if not self.changed:
            return "first"
        if self.tile:
            return "tile and scalar" if self.scalars else "tile"
        return "scalar" if self.scalars else "pointer"


@dataclass
class Audit:
    """What an audit of one target found."""

    target: str
    tokens: tuple[int, ...]
    measured: bool
    variants: list[Variant] = field(default_factory=list)

    @property
    def recompiles(self) -> list[Variant]:
        """Variants that a run-time integer's value asked for: those that surprise a running server."""
        return [v for v in self.variants if v.cause == "scalar"]

    def of_kernel(self, name: str) -> list[Variant]:
        """The variants of one kernel, by its function's name."""
        return [v for v in self.variants if v.kernel.rpartition(".")[2] == name]

    @property
    def seconds(self) -> float | None:
        """What all its compilations took, one after another; None where nothing was compiled."""
        taken = [v.seconds for v in self.variants if v.seconds is not None]
        return round(sum(taken), 3) if taken else None

    def to_json_data(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "target": self.target,
            "tokens": list(self.tokens),
            "measured": self.measured,
            "compilations": len(self.variants),
            "recompiles": len(self.recompiles),
            "seconds": self.seconds,
            "variants": [{**vars(v), "cause": v.cause} for v in self.variants],
        }


Signature = tuple[tuple[str, str], ...]


class _Recorder:
    """Stands in for `JITFunction.run`."""

    def __init__(self, capability: tuple[int, int], measured: bool) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend

        self._backend = make_backend(GPUTarget("cuda", 10 * capability[0] + capability[1], 32))
        self._binders: dict[int, Any] = {}
        self._seen: dict[str, list[Signature]] = {}
        self.measured = measured
        self.tokens = 0
        self.variants: list[Variant] = []

    def run(self, original: Callable[..., Any], kernel: Any, args: Any, kwargs: Any) -> Any:
        signature = self._signature(kernel, args, kwargs)
        name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
        known = self._seen.setdefault(name, [])
        fresh = signature not in known
        start = time.perf_counter()
        # Launches are asynchronous: what a first call takes on the host is its compilation.
        result = original(kernel, *args, **kwargs) if self.measured else None
        if fresh:
            seconds = time.perf_counter() - start if self.measured else None
            self.variants.append(self._describe(kernel, name, known, signature, seconds))
            known.append(signature)
        return result

    def _signature(self, kernel: Any, args: Any, kwargs: Any) -> Signature:
        from triton.runtime.jit import create_function_from_signature

        binder = self._binders.get(id(kernel))
        if binder is None:
            binder = create_function_from_signature(kernel.signature, kernel.params, self._backend)
            self._binders[id(kernel)] = binder
        launch = {k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}
        _, specialization, options = binder(*args, **launch)
        named = [(p.name, _text(s)) for p, s in zip(kernel.params, specialization, strict=True)]
        return (*named, *((f"option {key}", str(value)) for key, value in sorted(options.items())))

    def _describe(
        self, kernel: Any, name: str, known: list[Signature], signature: Signature, seconds: float | None
    ) -> Variant:
        changed: dict[str, tuple[str, str]] = {}
        if known:
            differences = [
                {a[0]: (b[1], a[1]) for a, b in zip(signature, other, strict=True) if a != b}
                for other in reversed(known)
            ]
            changed = min(differences, key=len)
        constexprs = {p.name for p in kernel.params if p.is_constexpr}
        tile = any(k in constexprs or k.startswith("option ") for k in changed)
        scalars = tuple(k for k, pair in changed.items() if k not in constexprs and all(map(_integer, pair)))
        return Variant(name, self.tokens, changed, scalars, tile, seconds)


def audit(
    target: str,
    call: Callable[[int], object],
    tokens: Sequence[int] = DEFAULT_TOKENS,
    *,
    capability: tuple[int, int] = (9, 0),
    measured: bool = False,
    tell: Callable[[int], None] = lambda tokens: None,
) -> Audit:
    """Call `call(tokens)` for each count and record every Triton launch in it.

    Args:
        target: what is audited, for the report.
        capability: of the GPU whose variants are counted; of this machine's where they are compiled.
        measured: let the launches through and time those that need a new variant; needs a GPU.
        tell: told each token count before it is run.
    """
    if measured:
        import torch

        capability = torch.cuda.get_device_capability()
    recorder = _Recorder(capability, measured)
    with _recording(recorder):
        for count in tokens:
            recorder.tokens = count
            tell(count)
            call(count)
    return Audit(target, tuple(tokens), measured, recorder.variants)


@contextmanager
def _recording(recorder: _Recorder) -> Iterator[None]:
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.run(original, self, args, kwargs)

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = original


def _text(specialization: Any) -> str:
    kind, value = specialization
    if kind == "constexpr":
        return f"constant {value}"
    return (
        f"{kind}, {'divisible by 16' if value == 'D' else value or 'any'}" if value is not None else str(kind)
    )


def _integer(text: str) -> bool:
    # "i32, any", "i64, divisible by 16"; an argument equal to 1 becomes the constant 1.
    return text.startswith(("i32", "i64", "u32", "u64")) or text == "constant 1"
