"""`autotune jit audit`: which arguments make a kernel recompile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.vocabulary.text import counted, printable

if TYPE_CHECKING:
    from autotune.measure.jit_audit import Audit

_app = typer.Typer(no_args_is_help=True, help="Look at what Triton compiles, and when.")


def add_to(app: typer.Typer) -> None:
    """Add the command group."""
    from autotune.cli.jit_warmup import warm_up

    _app.command("warm-up")(warm_up)
    app.add_typer(_app, name="jit")


@_app.callback()
def _group() -> None:
    """Look at what Triton compiles, and when."""


@_app.command("audit")
def audit(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="fused_triton, fused_decode, rope_fp8, rope_fp8_naive, vllm, vllm_unspecialized, or "
            "module:function, a function that is called with each token count. Default: all but the last; "
            "vLLM's two if it is installed."
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="A model of `autotune models`.")] = "",
    shape: Annotated[str, typer.Option(help="A problem instead of a model.")] = "",
    gpu: Annotated[str, typer.Option(help="Whose tuned tiles vLLM is asked for, without a GPU.")] = "h200",
    tokens: Annotated[str, typer.Option(help="Token counts. Default: 1 to 139, and some up to 2048.")] = "",
    run: Annotated[
        bool,
        typer.Option("--run", help="Run on the GPU and time each compilation, with a cold Triton cache."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audits as JSON.")] = False,
) -> None:
    """Count the variants that Triton compiles over many token counts, and name what asks for them.

    Without --run nothing is compiled and no GPU is needed: Triton's own binder tells which variant each
    launch would take on a Hopper GPU. vLLM's kernel is shown as it is and without specialization on the
    scalars that follow from the token count.

    Example: autotune jit audit vllm vllm_unspecialized --model qwen-moe-fp8-tensor
    """
    import importlib.util
    import json

    from rich.console import Console

    from autotune.cli.problems import parse_numbers, resolve
    from autotune.vocabulary.environment import gpu_name
    from autotune.vocabulary.errors import GpuNotReadyError, MissingDependencyError
    from autotune.vocabulary.installing import install_extra

    device = gpu_name(gpu)
    problem, _ = resolve(model or ("" if shape else "qwen-moe-fp8-tensor"), shape)
    counts = parse_numbers("--tokens", tokens, most=1 << 17) if tokens else None
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("The audit needs torch and Triton.", install_extra("gpu"))
    if run:
        import torch

        if not torch.cuda.is_available():
            raise GpuNotReadyError("--run needs a CUDA GPU, and there is none.", "Leave --run out.")
    names = targets or ["fused_triton", "fused_decode", "rope_fp8_naive", "rope_fp8"]
    if targets is None and importlib.util.find_spec("vllm") is not None:
        names += ["vllm", "vllm_unspecialized"]
    console = Console(stderr=True, highlight=False)
    with cold_cache() if run else contextlib.nullcontext():
        audits = [_one(name, problem, counts, run, device, console) for name in names]
    if as_json:
        print(json.dumps([a.to_json_data() for a in audits], indent=2))
        return
    out = Console(highlight=False)
    for found in audits:
        _show(out, found)
    for line in before_and_after(audits):
        out.print(line, markup=False)


@contextlib.contextmanager
def cold_cache() -> Iterator[None]:
    """Triton's cache in an empty folder, so that every compilation is a real one and takes its time."""
    import os
    import tempfile

    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="autotune-jit-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


PAIRS = (
    ("vllm", "vllm_unspecialized", "fused_moe_kernel"),
    ("rope_fp8_naive", "rope_fp8", "_rope_fp8"),
)
"""Targets that show one kernel with and without specialization on the token count."""


def before_and_after(audits: list[Audit]) -> list[str]:
    """A line for each kernel that was audited in both forms."""
    found = {audit.target: audit for audit in audits}
    lines = []
    for before, after, kernel in PAIRS:
        if before not in found or after not in found:
            continue
        counts = []
        for name in (before, after):
            variants = found[name].of_kernel(kernel)
            scalar = sum(v.cause == "scalar" for v in variants)
            taken = [v.seconds for v in variants if v.seconds is not None]
            took = f", {sum(taken):.1f} s" if taken else ""
            counts.append(
                f"{counted(len(variants), 'compilation')} ({scalar} for a scalar's value alone{took})"
            )
        lines.append(f"{kernel}: {counts[0]} before, {counts[1]} without specialization on the token count")
    return lines


def _one(name: str, problem: Any, counts: list[int] | None, run: bool, device: str, console: Any) -> Audit:
    from rich.markup import escape

    from autotune.measure.jit_audit import DEFAULT_TOKENS, audit
    from autotune.measure.jit_targets import most_tokens, target_call
    from autotune.vocabulary.errors import UsageError

    most = most_tokens(name, problem)
    tokens = [c for c in counts or DEFAULT_TOKENS if most is None or c <= most]
    if not tokens:
        raise UsageError(
            f"{name} takes at most {most} tokens of {problem}.", "Give --tokens counts up to that, too."
        )
    with (
        console.status(f"{escape(name)}: {problem}") as status,
        target_call(name, problem, run, device) as call,
    ):
        found = audit(
            name,
            call,
            tokens,
            measured=run,
            tell=lambda count: status.update(f"{escape(name)}: {counted(count, 'token')}"),
        )
    if not found.variants:
        # Nothing to recompile would be the wrong thing to read from an empty table.
        raise UsageError(
            f"{printable(name)} launched no Triton kernel at {counted(len(tokens), 'token count')}.",
            "Name a function that launches a @triton.jit kernel: def launch(tokens): kernel[grid](...).",
        )
    return found


def _show(out: Any, found: Audit) -> None:
    from rich.table import Table

    view = Table(
        title=f"{found.target}: {counted(len(found.variants), 'compilation')} over "
        f"{counted(len(found.tokens), 'token count')}, {len(found.recompiles)} for a scalar's value alone",
        title_justify="left",
    )
    for column in ("kernel", "at tokens", "cause", "changed", "seconds"):
        view.add_column(column, justify="right" if column in ("at tokens", "seconds") else "left")
    for v in found.variants:
        changed = "\n".join(f"{name}: {before} -> {now}" for name, (before, now) in v.changed.items())
        seconds = "" if v.seconds is None else f"{v.seconds:.2f}"
        view.add_row(v.kernel.rpartition(".")[2], str(v.tokens), v.cause, changed, seconds)
    out.print(view)
