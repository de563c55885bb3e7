"""Our kernels compile nothing for a new token count; the audit finds what another kernel does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from autotune.cli.jit import add_to, before_and_after, cold_cache  # noqa: E402
from autotune.kernels.unspecialized import without_specialization  # noqa: E402
from autotune.measure.jit_audit import DEFAULT_TOKENS, Audit, audit  # noqa: E402
from autotune.measure.jit_targets import most_tokens, target_call  # noqa: E402
from autotune.vocabulary.errors import UnknownNameError, UsageError  # noqa: E402
from autotune.vocabulary.problem import Problem, Scheme  # noqa: E402


@triton.jit
def naive_kernel(x_ptr, rows, width, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, rows + width, mask=offsets < rows)


fixed_kernel = without_specialization(naive_kernel, ["rows"])


def problem_of(scheme: Scheme) -> Problem:
    return Problem(E=128, N=768, K=2048, topk=8, scheme=scheme)


@pytest.mark.parametrize("scheme", list(Scheme))
def test_fused_triton_needs_no_variant_for_a_token_count(scheme: Scheme) -> None:
    with target_call("fused_triton", problem_of(scheme), False, "NVIDIA_H200") as call:
        found = audit("fused_triton", call, [*DEFAULT_TOKENS, 4096, 8192, 16384])
    assert found.recompiles == []
    # Counting in a launch of its own from 256 tokens on; quantizing rows of two widths.
    assert {tuple(v.changed) for v in found.variants if v.changed} <= {("COUNTED",), ("COLUMNS", "WIDTH")}


@pytest.mark.parametrize("scheme", [Scheme.BF16, Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
def test_fused_decode_needs_a_few_widths_only(scheme: Scheme) -> None:
    problem = problem_of(scheme)
    most = most_tokens("fused_decode", problem)
    assert most == 128
    with target_call("fused_decode", problem, False, "NVIDIA_H200") as call:
        found = audit("fused_decode", call, range(1, most + 1))
    assert found.recompiles == []
    assert {name for v in found.variants for name in v.changed} == {"PAIRS", "ROUTED"}
    assert len(found.variants) == 3


def test_the_rotation_compiles_once_and_its_naive_form_for_each_kind_of_count() -> None:
    counts = [*DEFAULT_TOKENS, 4096, 16384]
    with target_call("rope_fp8", problem_of(Scheme.BF16), False, "") as call:
        assert [v.cause for v in audit("rope_fp8", call, counts).variants] == ["first"]
    with target_call("rope_fp8_naive", problem_of(Scheme.BF16), False, "") as call:
        found = audit("rope_fp8_naive", call, counts)
    assert [(v.tokens, v.scalars) for v in found.variants] == [(1, ()), (2, ("tokens",)), (16, ("tokens",))]


def launches(kernel):
    x = torch.empty(4096, dtype=torch.int32)
    return lambda tokens: kernel[(1,)](x, tokens, 64, BLOCK=64)


def test_the_argument_that_asks_for_a_variant_is_named() -> None:
    found = audit("naive", launches(naive_kernel), [1, 2, 3, 16, 17, 32])
    assert [(v.tokens, v.cause, v.scalars) for v in found.variants] == [
        (1, "first", ()),
        (2, "scalar", ("rows",)),
        (16, "scalar", ("rows",)),
    ]
    assert found.variants[2].changed == {"rows": ("i32, any", "i32, divisible by 16")}


def test_without_specialization_there_is_one_variant() -> None:
    found = audit("fixed", launches(fixed_kernel), [1, 2, 3, 16, 17, 32])
    assert [v.cause for v in found.variants] == ["first"]
    # The other integer keeps its specialization.
    x = torch.empty(64, dtype=torch.int32)
    widths = audit("width", lambda width: fixed_kernel[(1,)](x, 5, width, BLOCK=64), [16, 17])
    assert [v.scalars for v in widths.variants] == [(), ("width",)]


@pytest.mark.parametrize(
    ("kernel", "names", "error"),
    [
        (naive_kernel, ["columns"], "no argument columns"),
        (naive_kernel, ["BLOCK"], "compile-time constant"),
        (print, ["rows"], "no triton.jit function"),
    ],
)
def test_what_cannot_be_unspecialized_is_refused(kernel, names: list[str], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        without_specialization(kernel, names)


def test_unknown_targets_are_refused() -> None:
    with (
        pytest.raises(UnknownNameError, match="fused_triton"),
        target_call("fused", problem_of(Scheme.BF16), False, ""),
    ):
        pass
    with (
        pytest.raises(UsageError, match="nothing_there"),
        target_call("os:nothing_there", problem_of(Scheme.BF16), False, ""),
    ):
        pass
    with (
        pytest.raises(UsageError, match="missing a required argument: 'positions_ptr'"),
        target_call("autotune.kernels.rope_fp8._op:_rope_fp8", problem_of(Scheme.BF16), False, ""),
    ):
        pass
    with (
        target_call("os.path:basename", problem_of(Scheme.BF16), False, "") as call,
        pytest.raises(UsageError, match="failed with 3 as its token count: TypeError"),
    ):
        call(3)
    with (
        pytest.raises(UsageError, match="fp8_channel"),
        target_call("fused_decode", problem_of(Scheme.FP8_CHANNEL), False, ""),
    ):
        pass


def test_the_command_prints_json() -> None:
    command = [
        sys.executable,
        "-m",
        "autotune",
        "jit",
        "audit",
        "fused_decode",
        "--tokens",
        "1,8,64",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["target"], found["tokens"], found["recompiles"]) == ("fused_decode", [1, 8, 64], 0)


def test_both_forms_of_a_kernel_are_summed_up() -> None:
    counts = [1, 2, 3, 16, 17, 4096]
    audits = []
    for target in ("rope_fp8_naive", "rope_fp8"):
        with target_call(target, problem_of(Scheme.BF16), False, "") as call:
            audits.append(audit(target, call, counts))
    assert before_and_after(audits) == [
        "_rope_fp8: 3 compilations (2 for a scalar's value alone) before, "
        "1 compilation (0 for a scalar's value alone) without specialization on the token count"
    ]
    assert before_and_after(audits[:1]) == []
    assert audits[0].seconds is None
    timed = [replace(v, seconds=1.5) for v in audits[0].variants]
    measured = Audit("rope_fp8_naive", tuple(counts), True, timed)
    assert measured.seconds == 4.5
    assert "2 for a scalar's value alone, 4.5 s) before" in before_and_after([measured, audits[1]])[0]


def test_measured_compilations_find_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    with cold_cache():
        inside = Path(os.environ["TRITON_CACHE_DIR"])
        assert list(inside.iterdir()) == []
        assert triton.knobs.cache.dir == str(inside)
    assert not inside.exists()
    assert os.environ["TRITON_CACHE_DIR"] == "/somewhere"


def test_counts_that_no_launch_takes_are_refused() -> None:
    app = typer.Typer()
    add_to(app)
    done = CliRunner().invoke(app, ["jit", "audit", "--tokens", "1000,2000", "fused_decode"])
    assert isinstance(done.exception, UsageError)
    assert "fused_decode takes at most 128 tokens of E=128" in str(done.exception)
