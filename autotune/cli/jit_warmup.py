"""`autotune jit warm-up`: what a starting vLLM would compile for a table, and what is left then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.vocabulary.problem import Problem
    from autotune.vocabulary.table import PublishedTable

KERNEL = "fused_moe_kernel"
MODES = ("route", "tiles")


def warm_up(
    gpu: Annotated[str, typer.Option(help="The table's GPU.")] = "h200",
    model: Annotated[str, typer.Option(help="A model of `autotune models`.")] = "qwen-moe-fp8",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks that share each expert.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert-parallel ranks that share the experts.")] = 1,
    table: Annotated[
        Path | None,
        typer.Option(
            help="A table file. Default: what the plugin reads: AUTOTUNE_TABLE, else AUTOTUNE_URL, else the "
            "starter tables."
        ),
    ] = None,
    through: Annotated[int, typer.Option(min=1, max=1 << 17, help="The largest token count.")] = 16_384,
    mode: Annotated[
        str,
        typer.Option(
            help="AUTOTUNE_MODE of the server, route or tiles; in the others the plugin leaves vLLM's tiles."
        ),
    ] = "route",
    unrouted: Annotated[
        bool,
        typer.Option(
            "--unrouted",
            help="As where calls cannot be routed: the static choice may then move the layer to Triton, and "
            "its tiles serve other counts.",
        ),
    ] = False,
    unspecialize: Annotated[
        bool,
        typer.Option(help="With the kernel that the plugin puts in place unless AUTOTUNE_UNSPECIALIZE=0."),
    ] = True,
    run: Annotated[
        bool,
        typer.Option("--run", help="Compile with a cold Triton cache and launch every count on the GPU."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Warm up for a table as the plugin does in vLLM, then look at every token count from 1 on.

    Needs vLLM. Without --run nothing is compiled and no GPU is needed: Triton's own binder tells which
    variants every launch would take, and the answer says how many of them the warm-up would have left out.

    Example: autotune jit warm-up --gpu h200 --model qwen-moe-fp8-tensor --run
    """
    import json

    from autotune.cli.jit import cold_cache
    from autotune.cli.routing_sources import one_table, read_plugins_source, wanted
    from autotune.vocabulary.errors import UnknownNameError, UsageError

    if mode not in MODES:
        raise UnknownNameError("mode", mode, MODES)
    if unrouted and mode != "route":
        raise UsageError(f"--unrouted goes with --mode route: mode {mode} routes nothing.", "Leave it out.")
    want = wanted(gpu, model, None, tp, ep, None)
    published = one_table(read_plugins_source(want, table), want)
    with cold_cache() if run else contextlib.nullcontext():
        found = _examine(published, through, mode, unrouted, unspecialize, run)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for line in _lines(found):
        typer.echo(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    most = f"{found['through']:,}"
    yield (
        f"{found['problem']} on {found['gpu']}; table {found['digest'][:12]}, its tiles in mode "
        f"{found['mode']}{', calls not routed,' if found['unrouted'] else ''} at {found['tiles']}"
    )
    yield f"vLLM alone: 1 to {most} tokens need {found['stock']} variants of {KERNEL}, each at its first use"
    if found["warm_up"] is None:
        yield f"with the table: {found['variants']} variants, all known before the first launch"
        yield f"1 to {most} tokens, every count asked: {found['left_out']} variants that a warm-up would lack"
        return
    yield f"with the table: {found['variants']} variants; warm-up: {found['warm_up_text']}"
    yield (
        f"1 to {most} tokens, every count launched: {found['compiled_later']} compilations of {KERNEL}, "
        f"{found['read_later']} variants read from the disk ({found['launch_s']:.0f} s)"
    )


def _examine(
    published: PublishedTable, through: int, mode: str, unrouted: bool, unspecialize: bool, run: bool
) -> dict[str, Any]:
    import time
    from dataclasses import asdict

    from autotune.measure.jit_targets import import_fused_moe
    from autotune.vocabulary.errors import GpuNotReadyError

    import_fused_moe(on_gpu=run)
    if run:
        import torch

        if not torch.cuda.is_available():
            raise GpuNotReadyError("--run needs a CUDA GPU, and there is none.", "Leave --run out.")
    from autotune.kernels.ahead.target import compiling_for
    from autotune.kernels.ahead.variants import collecting
    from autotune.kernels.ahead.warmup import warm_up
    from autotune.kernels.backends.vllm_gemms import TritonGemms, reachable
    from autotune.measure.jit_targets import as_on

    problem = published.problem
    gpu = published.environment.gpu
    major, _, minor = published.environment.capability.partition(".")
    device = contextlib.nullcontext() if run else as_on(gpu)
    target = contextlib.nullcontext() if run else compiling_for((int(major), int(minor)))
    with device, target:
        gemms = TritonGemms(problem)
        stock = reachable(gemms, through).total
        with _plugged_in(published, mode, unrouted, unspecialize) as tiles:
            found = reachable(gemms, through)
            assert published.table is not None
            result: dict[str, Any] = {
                "problem": str(problem), "gpu": gpu, "digest": published.table.digest,
                "mode": mode, "unrouted": unrouted, "tiles": tiles, "through": through,
                "unspecialized": unspecialize, "stock": stock, "variants": found.total, "warm_up": None,
            }  # fmt: skip
            if not run:
                with collecting() as every:
                    for tokens in range(1, through + 1):
                        gemms.launch(tokens, gemms.config(tokens))
                return {**result, "left_out": len(set(every.missing) - set(found.missing))}
            from triton.runtime import driver

            done = warm_up(
                list(found.missing.values()), driver.active.get_current_target(), 600.0, tell=_progress
            )
            start = time.perf_counter()
            later, read = _launch_all(problem, through)
            return {
                **result, "warm_up": asdict(done), "warm_up_text": str(done), "compiled_later": later,
                "read_later": read, "launch_s": time.perf_counter() - start,
            }  # fmt: skip


def _progress(done: int, total: int) -> None:
    typer.echo(f"warm-up: {done} of {total} variants", err=True)


@contextlib.contextmanager
def _plugged_in(published: PublishedTable, mode: str, unrouted: bool, unspecialize: bool) -> Iterator[str]:
    """The plugin's tiles and kernel in vLLM, for a layer of the table's problem.

    Yields the counts for which there is a tile: where the layer is moved to Triton they are more.
    """
    import json
    import tempfile

    from autotune.client import RoutingClient
    from autotune.kernels.backends.vllm_modular import moe_config
    from autotune.vllm_plugin.base_choice import choose_base
    from autotune.vllm_plugin.deployment import Deployment
    from autotune.vllm_plugin.features import Context, Feature
    from autotune.vllm_plugin.recompiles import Recompiles
    from autotune.vllm_plugin.static_choice import choose_backend
    from autotune.vllm_plugin.tile_choice import covered
    from autotune.vllm_plugin.tiles import Tiles
    from autotune.vocabulary.errors import AutotuneError
    from autotune.vocabulary.settings import Settings

    problem = published.problem
    assert published.table is not None
    with tempfile.TemporaryDirectory(prefix="autotune-jit-") as folder:
        file = Path(folder, "table.json")
        file.write_text(json.dumps(published.table.to_json_data()))
        client = RoutingClient(Settings(table=file), published.environment)
        client.refresh()  # while the file is there
    context = Context(client, Deployment())
    layer = context.deployment.learn(moe_config(problem, "cpu"), problem.scheme)
    if mode != "tiles":
        choose = choose_backend if unrouted else choose_base
        layer.moved_to = choose(client, problem, published.checkpoint).backend
    features: list[Feature] = [Tiles(context), *([Recompiles(context)] if unspecialize else [])]
    try:
        for feature in features:
            feature.install()
            if feature.state != "applied":
                raise AutotuneError(
                    f"{feature.title} cannot be applied: {feature.reason}.",
                    "Take a vLLM of 0.25.1 to 0.33.0.",
                )
        counts = covered(published.table, layer.moved_to == "triton")
        if bool(counts) != _answered_by_table(problem):
            raise AutotuneError(
                f"vLLM's look-up of tiles answers {'without' if counts else 'with'} the table, whose tiles "
                f"are for {counts or 'no count'}.",
                "Report this: what is said about the warm-up would not be about the table.",
            )
        yield counts or "none"
    finally:
        for feature in reversed(features):
            feature.unapply()


def _answered_by_table(problem: Problem) -> bool:
    import importlib

    from autotune.vllm_plugin.tile_map import TileMap

    module: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")
    block_n, block_k = problem.scheme.block_shape or (0, 0)
    found = module.get_moe_configs(problem.E, problem.N, problem.scheme.vllm_dtype, block_n, block_k)
    return isinstance(found, TileMap)


def _launch_all(problem: Any, through: int) -> tuple[int, int]:
    """Run the layer at every count, as vLLM runs it.

    Returns how many variants were compiled, and how many were read from the disk.
    """
    import torch

    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.weights import LayerInputs, make_inputs, make_weights
    from autotune.measure.compiles import counting_compiles, counting_variants

    backend = get_backend("triton")
    prepared = backend.prepare(make_weights(problem, 1))
    whole = make_inputs(problem, through, 1)
    call = backend.bind(prepared, None)  # type: ignore[arg-type]  # no tile is forced: vLLM looks it up
    with counting_compiles() as compiled, counting_variants() as loaded:
        for tokens in range(1, through + 1):
            call(LayerInputs(whole.hidden[:tokens], whole.topk_ids[:tokens], whole.topk_weights[:tokens]))
        torch.cuda.synchronize()
    new, seen = (sum(name == KERNEL for name in counted.names) for counted in (compiled, loaded))
    return new, seen - new
