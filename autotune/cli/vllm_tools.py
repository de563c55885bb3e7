"""`autotune vllm doctor`: what the plugin would do on this machine, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.vllm_plugin.doctor import Report

MOE_BACKENDS = (
    "auto", "triton", "batched_triton", "triton_unfused", "deep_gemm", "deep_gemm_mega_moe", "cutlass",
    "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_b12x",
    "flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_cutedsl", "flashinfer_moe_ep_mega_deep_gemm",
    "b12x", "marlin", "humming", "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16",
    "aiter_triton_mxfp4_mxfp4", "flydsl", "hpc", "rdna3", "emulation",
)  # fmt: skip
"""What `--moe-backend` takes in any of vLLM 0.25.1, 0.26.0, 0.28.0, 0.30.0 and 0.33.0: `MoEBackend` in
vllm/config/kernel.py."""

vllm_app = typer.Typer(no_args_is_help=True, help="Look at vLLM as the plugin sees it.")


def add_to(app: typer.Typer) -> None:
    """Add `vllm`."""
    app.add_typer(vllm_app, name="vllm")


@vllm_app.callback()
def _group() -> None:
    """Look at vLLM as the plugin sees it."""


@vllm_app.command("doctor")
def doctor(
    model: Annotated[
        str | None, typer.Option("--model", help="Also say what this model would get (name or config.json).")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel size, with --model.")] = 1,
    ep: Annotated[int, typer.Option("--ep", min=1, help="Expert-parallel size, with --model.")] = 1,
    moe_backend: Annotated[
        str, typer.Option("--moe-backend", help="vLLM's --moe-backend, with --model.")
    ] = "auto",
    lora: Annotated[bool, typer.Option("--lora", help="LoRA is enabled, with --model.")] = False,
    dp: Annotated[int, typer.Option("--dp", min=1, help="Data-parallel size, with --model.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what the plugin would apply in this environment, and why not.

    Applies nothing. Works without vLLM and without a GPU. With --model it also says which routes would be
    served per call. Whether each backend runs on the layer's real weights is tried when the server starts;
    what only vLLM's own objects tell (a monolithic kernel, biases, a hook) its log says then.

    The plugin reads AUTOTUNE_TABLE, else AUTOTUNE_URL, else the starter tables; it reads no database.
    """
    from autotune.cli.publishing_lookup import refuse_split
    from autotune.vllm_plugin.doctor import Serving, examine, unsettled
    from autotune.vllm_plugin.environment import installed
    from autotune.vocabulary.errors import UnknownNameError, UsageError
    from autotune.vocabulary.settings import Settings

    refuse_split(model, tp, ep)
    # As vLLM reads it (KernelConfig._normalize_moe_backend).
    backend = moe_backend.lower().replace("-", "_")
    if backend not in MOE_BACKENDS:
        raise UnknownNameError("MoE backend of vLLM", moe_backend, MOE_BACKENDS)
    serving = Serving(backend, lora, dp)
    if model is None and serving != Serving():
        raise UsageError(
            "--moe-backend, --lora and --dp go with --model.", "Name the model that is served so."
        )
    layer = None
    if model is not None:
        from autotune.vocabulary.catalogue import resolve_problem

        layer = resolve_problem(model, tp=tp, ep=ep)
    try:
        settings = Settings.from_env()
    except UsageError as error:
        report = unsettled(error)
    else:
        if installed("vllm"):
            typer.echo("importing vLLM ...", err=True)
        report = examine(settings, layer, serving)
    if as_json:
        typer.echo(json.dumps(report.to_json_data(), indent=2))
    else:
        _print(report)


_MODES = {
    "off": "nothing",
    "observe": "nothing; counts what would be done",
    "tiles": "tiles only",
    "static": "one backend for the whole process",
    "route": "tiles and routing per call; one backend where that cannot be had",
}


def _print(report: Report) -> None:
    from autotune.cli.lines import labelled

    tested = "" if report.vllm_tested else ", not one that the tests cover"
    lines = [("vLLM", report.vllm + tested if report.vllm else "not installed")]
    if report.mode:
        digest = f", digest {report.digest[:12]}" if report.tables else ""
        lines += [
            ("environment", str(report.environment or report.no_environment)),
            ("mode", f"{report.mode} ({_MODES[report.mode]})"),
            ("source", f"{report.source or 'none'}{digest}: {report.source_note}"),
        ]
    lines += [("feature", text) for text in _features(report.features)]
    for table in report.tables:
        detail = f": {table['detail']}" if table["detail"] else ""
        lines.append(("table", f"{table['problem']} ({table['checkpoint']}): {table['status']}{detail}"))
    lines += [("model", text) for text in _model(report)]
    lines += [("variable", f"{name}={value}") for name, value in report.variables.items()]
    lines += [("warning", warning) for warning in report.warnings]
    typer.echo(labelled("", report.summary, indent=0))
    typer.echo("")
    for label, text in lines:
        typer.echo(labelled(label, text))


def _features(features: list[dict[str, str]]) -> list[str]:
    """A line each; those that end alike in one, so that a common reason is said once."""
    ends: dict[str, list[str]] = {}
    for feature in features:
        reason = f": {feature['reason']}" if feature["reason"] else ""
        ends.setdefault(f"{feature['state']}{reason}", []).append(feature["title"])
    return [f"{'; '.join(titles)}: {end}" for end, titles in ends.items()]


def _model(report: Report) -> list[str]:
    model = report.model
    if model is None:
        return []
    name = f"{model['problem']} ({model['checkpoint']})"
    if model["answer"] == "fallback":
        return [f"{name}: vLLM's own choice stays ({model['reason']}): {model['detail']}"]
    gives = f"tiles for M in {model['tiles']}" if model["tiles"] else "no tiles of its own"
    if report.environment is None:
        about, where = (
            f"{name}: nothing here; on {model['measured_on']} this table would give {gives}",
            "there, ",
        )
    else:
        about, where = f"{name}: this table, measured on {model['measured_on']}, gives {gives}", ""
    told = _routing(model) if model["routing"] is not None else _not_routed(model)
    return [f"{about} (digest {model['table_digest'][:12]})", *(where + line for line in told)]


def _not_routed(model: dict[str, Any]) -> list[str]:
    choice = model["static"] or ("left to vLLM" if model["chooses"] else "no")
    return [
        f"routing per call: no: {model['routing_detail']}",
        f"static choice: {choice}: {model['static_detail']}",
    ]


def _routing(model: dict[str, Any]) -> list[str]:
    routing = model["routing"]
    return [
        f"weights prepared for {routing['base']}: {routing['base_detail']}",
        *(f"routing per call: M in {text}" for text in routing["served"]),
        *(f"not routed: M in {text}" for text in routing["declined"]),
        *(
            []
            if routing["served"]
            else ["routing per call: no route of the table would be served by another backend"]
        ),
    ]
