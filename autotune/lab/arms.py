"""The arms that can be named: stock vLLM, the whole plugin, and one factor of it at a time."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.lab.plan import Arm
from autotune.vocabulary.errors import UnknownNameError
from autotune.vocabulary.problem import Scheme

_ALONE = {"AUTOTUNE_UNSPECIALIZE": "0", "AUTOTUNE_WARMUP_SECONDS": "0", "AUTOTUNE_GATE": "0"}

NOT_EXPRESSIBLE = {
    "swap_ab without its tile": "a table holds Swap-AB with a tile, and vLLM has no switch: `swap_ab` takes "
    "the tiles whose flag differs from vLLM's rule, `swap_ab_off` those of `tiles` without it",
    "tiles or the unspecialized kernel under vLLM's own choice of FlashInfer": "they concern Triton: for "
    "fp8_tensor these arms and their reference run with --moe-backend triton",
    "warm-up of vLLM's own tiles": "the warm-up compiles what a table's tiles reach, so it is part of `all` "
    "and no factor of its own; `no-recompile` is the unspecialized kernel alone",
    "routing with the weights' layout left alone": "the choice of the backend that the weights are prepared "
    "for belongs to the mode `route`",
    "DeepGEMM's warm-up behind a router": "it goes with the mode `route`",
}
"""What no setting of the plugin isolates, and why."""


def known_arms(scheme: Scheme) -> dict[str, Arm]:
    """Every arm by name, as it is for a scheme."""
    # vLLM's own choice is FlashInfer for per-tensor FP8 where that is usable: Triton must be asked for.
    on_triton: dict[str, str | tuple[str, ...]] = (
        {"serve_args": ("--moe-backend", "triton"), "against": "stock-triton"}
        if scheme is Scheme.FP8_TENSOR
        else {"against": "stock"}
    )

    def factor(name: str, note: str, env: dict[str, str], **fields: object) -> Arm:
        return Arm.model_validate(
            {"name": name, "note": note, "plugin": True, "env": {**_ALONE, **env}, "against": "stock"}
            | fields
        )

    arms = [
        Arm(name="stock", note="vLLM as it is, the plugin not loaded"),
        Arm(name="stock-again", note="the same once more: what noise looks like", against="stock"),
        Arm(
            name="stock-triton",
            note="vLLM with --moe-backend triton",
            serve_args=("--moe-backend", "triton"),
            against="stock",
        ),
        Arm(
            name="all",
            note="the plugin with its defaults and the whole table",
            plugin=True,
            table="published",
            against="stock",
        ),
        factor(
            "tiles",
            "the table's Triton tiles that keep vLLM's rule for Swap-AB",
            {"AUTOTUNE_MODE": "tiles"},
            table="tiles",
            **on_triton,
        ),
        factor(
            "swap_ab",
            "the table's Triton tiles that break vLLM's rule for Swap-AB",
            {"AUTOTUNE_MODE": "tiles"},
            table="swap_ab",
            **on_triton,
        ),
        factor(
            "swap_ab_off",
            "the same tiles as the arm tiles, Swap-AB switched off",
            {"AUTOTUNE_MODE": "tiles"},
            table="swap_ab_off",
            **{**on_triton, "against": "tiles"},
        ),
        factor(
            "static",
            "one backend for the process, chosen for AUTOTUNE_CONCURRENCY (8 unless set)",
            {"AUTOTUNE_MODE": "static"},
            table="published",
        ),
        factor(
            "no-recompile",
            "the kernel without specialization on the token count, vLLM's own tiles",
            {"AUTOTUNE_MODE": "tiles", "AUTOTUNE_UNSPECIALIZE": "1"},
            table="nothing",
            **on_triton,
        ),
        factor(
            "route",
            "routing per call among vLLM's own backends",
            {"AUTOTUNE_MODE": "route"},
            table="route",
        ),
        factor(
            "fused_decode",
            "routing per call to the decode kernel alone",
            {"AUTOTUNE_MODE": "route"},
            table="fused_decode",
        ),
        factor(
            "gate",
            "the same, a single token taken from the gate on",
            {"AUTOTUNE_MODE": "route", "AUTOTUNE_GATE": "1"},
            table="fused_decode",
            against="fused_decode",
        ),
        factor(
            "fused_triton",
            "routing per call to the two-tile Triton kernel alone",
            {"AUTOTUNE_MODE": "route"},
            table="fused_triton",
        ),
    ]
    return {arm.name: arm for arm in arms}


def named_arms(names: Sequence[str], scheme: Scheme) -> tuple[Arm, ...]:
    """The arms of these names and the references that they are compared with, references first.

    Raises:
        UnknownNameError: for a name that is none.
    """
    known = known_arms(scheme)
    for name in names:
        if name not in known:
            raise UnknownNameError("arm", name, known)
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        against = known[name].against
        if against is not None and against not in wanted:
            wanted.append(against)
    chosen = [known[name] for name in wanted]
    return tuple(sorted(chosen, key=lambda arm: (arm.against is not None, wanted.index(arm.name))))
