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


TARGET = """
import torch, triton, triton.language as tl
@triton.jit
def kernel(p, n, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), n)
@triton.autotune(configs=[triton.Config({'BLOCK': 32}), triton.Config({'BLOCK': 64})], key=['n'])
@triton.jit
def tuned(p, n, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), n)
def launch(tokens): kernel[(1,)](torch.empty(64), tokens, 64)
def launch_tuned(tokens): tuned[lambda meta: (1,)](torch.empty(64), tokens)
def launch_one(tokens): tuned.fn[(1,)](torch.empty(64), tokens, BLOCK=64)
def idle(tokens): pass
def boom(tokens): raise ValueError("x\\x1b[31m\\n" + "y" * 20 + ".")
def leaves(tokens): raise SystemExit(3)
async def later(tokens): kernel[(1,)](torch.empty(64), tokens, 64)
def lazy(tokens): yield kernel[(1,)](torch.empty(64), tokens, 64)
"""
MODULES = {
    "audited": TARGET,
    "raises_there": "raise RuntimeError('at\\x1b import')",
    "leaves_there": "import sys; sys.exit(7)",
    "no_python": "def f(:",
    "no_text": "x=1\0",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)


def refused(*arguments: str) -> UsageError:
    app = typer.Typer()
    add_to(app)
    done = CliRunner().invoke(app, ["jit", "audit", "--tokens", "1,2", *arguments])
    assert isinstance(done.exception, UsageError), done.exception
    assert done.exception.exit_code == 2
    assert str(done.exception).isprintable()
    assert done.exception.hint
    return done.exception


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (":f", "Unknown audit target ':f'."),
        ("audited:", "Unknown audit target 'audited:'."),
        (".audited:launch", ".audited:launch is relative, and there is no package to start from."),
        ("raises_there:f", "raises_there:f cannot be imported: RuntimeError: at import."),
        ("leaves_there:f", "leaves_there:f cannot be imported: SystemExit: 7."),
        (
            "no_python:f",
            "no_python:f cannot be imported: SyntaxError: invalid syntax (no_python.py, line 1).",
        ),
        (
            "no_text:f",
            "no_text:f cannot be imported: SyntaxError: source code string cannot contain null bytes.",
        ),
        ("absent_\x1b[31m:f", "absent_ [31m:f cannot be imported: ModuleNotFoundError: No module named"),
        (
            "audited:boom",
            "audited:boom failed with 1 as its token count: ValueError: x [31m yyyyyyyyyyyyyyyyyyyy.",
        ),
        ("audited:leaves", "audited:leaves failed with 1 as its token count: SystemExit: 3."),
        ("audited:idle", "audited:idle launched no Triton kernel at 2 token counts."),
        ("audited:later", "audited:later is async or a generator: a call of it runs nothing."),
        ("audited:lazy", "audited:lazy is async or a generator: a call of it runs nothing."),
    ],
)
def test_a_function_that_cannot_be_audited_is_refused_in_words(modules: None, target: str, said: str) -> None:
    assert refused(target).message.startswith(said)


def test_a_function_of_the_users_is_audited(modules: None) -> None:
    with target_call("audited:launch", problem_of(Scheme.BF16), False, "") as call:
        assert [v.cause for v in audit("audited:launch", call, [1, 2]).variants] == ["first", "scalar"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the configurations are timed")
def test_a_kernel_with_configurations_to_time_has_a_way_out(modules: None) -> None:
    found = refused("audited:launch_tuned")
    assert "0 active drivers ([]). There should only be one." in found.message
    assert "@triton.autotune" in found.hint
    assert "kernel.fn[grid](..., BLOCK=64)" in found.hint
    with target_call("audited:launch_one", problem_of(Scheme.BF16), False, "") as call:
        assert len(audit("audited:launch_one", call, [1]).variants) == 1


@pytest.mark.parametrize("target", ["vllm", "vllm_unspecialized", "fused_triton", "fused_decode"])
def test_a_problem_that_the_kernel_does_not_take_is_refused(target: str) -> None:
    found = refused(target, "--shape", "E=8,N=100,K=130,topk=1,scheme=fp8_block128")
    assert found.message == (
        f"{target} does not take E=8,N=100,K=130,topk=1,scheme=fp8_block128: "
        "block scales of 128 need N and K divisible by 128, not N=100, K=130."
    )


@pytest.mark.parametrize("target", ["fused_triton", "fused_decode"])
def test_a_problem_that_no_machine_holds_is_refused(target: str) -> None:
    shape = "E=4096,N=1048576,K=1048576,topk=1,scheme=bf16"
    assert refused(target, "--shape", shape).message == (
        f"{target}: this machine has no memory for tensors of {shape}."
    )
