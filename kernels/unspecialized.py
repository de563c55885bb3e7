"""A Triton kernel without specialization on chosen scalars.

Triton compiles a variant of a kernel for each combination of "divisible by 16" and "equal to 1" among its
integer arguments. For arguments that follow from the token count this puts compilations into the request
path; addresses and strides keep their specialization, which vectorized loads need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

VLLM_SCALARS = ("EM", "num_valid_tokens")
"""The arguments of vLLM's `fused_moe_kernel` that follow from the token count."""


def without_specialization(kernel: Any, names: Sequence[str]) -> Any:
    """The same kernel function, compiled without specializing on the named arguments.

    Args:
        kernel: a `triton.jit` function.

    Raises:
        TypeError: if it is no plain `triton.jit` function.
        ValueError: if it has no such argument, or a named one is a compile-time constant.
    """
    import triton
    from triton.runtime.jit import JITFunction

    if not isinstance(kernel, JITFunction):
        raise TypeError(f"{kernel!r} is no triton.jit function")
    parameters = {p.name: p for p in kernel.params}
    for name in names:
        if name not in parameters:
            raise ValueError(f"{kernel.fn.__name__} has no argument {name}")
        if parameters[name].is_constexpr:
            raise ValueError(f"{name} of {kernel.fn.__name__} is a compile-time constant")
    kept = [p.name for p in kernel.params if p.do_not_specialize]
    aligned = [p.name for p in kernel.params if p.do_not_specialize_on_alignment]
    return triton.jit(
        kernel.fn,
        do_not_specialize=sorted({*kept, *names}),
        do_not_specialize_on_alignment=aligned,
        debug=kernel.debug,
        noinline=kernel.noinline,
    )
