"""Our kernels compiled side by side: by Triton's real compiler for an H200, without a GPU."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.vocabulary.candidate import Candidate, FusedDecodeCandidate, FusedTritonCandidate, Tile
from autotune.vocabulary.problem import Problem

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from autotune.kernels.ahead.target import compiling_for  # noqa: E402
from autotune.kernels.backends.fused import unfilled  # noqa: E402
from autotune.measure.compiles import counting_compiles  # noqa: E402
from autotune.vllm_plugin import route_ahead  # noqa: E402
from autotune.vllm_plugin.inner_experts import Inner  # noqa: E402
from autotune.vllm_plugin.own_experts import OwnKernel  # noqa: E402
from autotune.vllm_plugin.route_ahead import begin, begin_plan, compile_ahead  # noqa: E402
from autotune.vllm_plugin.route_plan import RoutePlan  # noqa: E402
from autotune.vllm_plugin.route_reach import Entry, Outlook  # noqa: E402

pytestmark = pytest.mark.slow
PROBLEM = Problem.parse("E=8,N=256,K=512,topk=2,scheme=fp8_tensor")
TILE = Tile(block_m=16, block_n=64, block_k=128, num_warps=4, num_stages=2)
DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
)
BOTH: tuple[Candidate, ...] = (DECODE, FusedTritonCandidate(gate_up=TILE, down=TILE))


@pytest.fixture
def h200(tmp_path: Path) -> Iterator[Any]:
    """An H200 to compile for, and a Triton cache that is empty."""
    from triton import knobs

    with knobs.cache.scope(), compiling_for((9, 0)):
        knobs.cache.dir = str(tmp_path / "triton")
        forget()
        yield


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(route_ahead, "info_once", said.append)
    return said


def forget() -> None:
    """Take what this process has loaded away from it."""
    made, w1, w2 = kernels()
    for kernel in made:
        for launch in kernel.lay_out(1, w1, w2):
            launch.kernel.device_caches.clear()


def kernels(order: Any = "up_gate") -> tuple[list[OwnKernel], Any, Any]:
    """The kernels on one layer's weights, as FlashInfer has them unless said."""
    weights, _ = unfilled(PROBLEM, 1)
    experts = SimpleNamespace(
        w1_scale=weights.w13_scale, w2_scale=weights.w2_scale,
        a1_scale=torch.ones(1), a2_scale=torch.ones(1),
    )  # fmt: skip
    return [OwnKernel(PROBLEM, c, experts, order) for c in BOTH], weights.w13, weights.w2


def test_what_a_route_launches_is_compiled_before_it_is_tried(h200: Any, lines: list[str]) -> None:
    made, w1, w2 = kernels()
    calls = [partial(kernel.lay_out, tokens, w1, w2) for kernel in made for tokens in (1, 2)]
    with counting_compiles() as counted:
        compile_ahead("this layer", calls, 240.0)
    assert counted.count == 0, "this process reads what the others compiled"
    (line,) = lines
    assert line.startswith("our kernels for this layer: ")
    assert "left" not in line
    with counting_compiles() as counted:
        for call in calls:
            for launch in call():
                launch.compile()
    assert counted.count == 0
    # Another start finds all of it in the cache; the other order of rows is another variant.
    lines.clear()
    forget()
    compile_ahead("this layer", calls, 240.0)
    assert "were in Triton's cache" in lines[0]
    other, w1, w2 = kernels("gate_up")
    with counting_compiles() as counted:
        for launch in other[0].lay_out(1, w1, w2):
            launch.compile()
    assert counted.count > 0


def test_a_new_plan_s_kernels_are_compiled_beside_what_the_process_does(
    h200: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, w1, w2 = kernels()
    entries = (Entry(1, 8, DECODE), Entry(9, 3000, BOTH[1]))
    inners = [Inner(made[0].apply, True), *(Inner(k.apply, True, lay_out=k.lay_out) for k in made)]
    plan = RoutePlan(PROBLEM, Outlook("flashinfer_cutlass", entries, ()))
    assert begin_plan(plan, inners) is None, "no time was given"
    plan.ahead_s = 240.0
    assert begin_plan(plan, inners) is None, "there is no GPU"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    begun = begin_plan(plan, inners)
    assert begun is not None
    assert lines == []
    begun.finish()
    assert "left" not in lines[0]
    assert "processes, the first variant after" in lines[0]
    with counting_compiles() as counted:
        for kernel, counts in zip(made, ((1,), (9, 1200)), strict=True):
            for tokens in counts:
                for launch in kernel.lay_out(tokens, w1, w2):
                    launch.compile()
    assert counted.count == 0


@pytest.mark.parametrize(("gate", "missing"), [(True, 0), (False, 2)])
def test_a_single_token_s_gate_is_compiled_with_them(
    gate: bool, missing: int, h200: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, w1, w2 = kernels()
    inners = [Inner(made[0].apply, True), Inner(made[0].apply, True, lay_out=made[0].lay_out, own=made[0])]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    plan = RoutePlan(PROBLEM, Outlook("flashinfer_cutlass", (Entry(1, 8, DECODE),), ()))
    plan.ahead_s = 240.0
    begun = begin_plan(plan, inners, gate)
    assert begun is not None
    begun.finish()
    assert "left" not in lines[0]
    with counting_compiles() as counted:
        for launch in made[0].lay_out_from_gate(w1, w2):
            assert launch.options["PDL"], "on an H200 the second launch begins early"
            launch.kernel.device_caches.clear()
            launch.compile()
    assert counted.count == missing


def test_what_the_time_did_not_suffice_for_gets_no_second_limit(h200: Any, lines: list[str]) -> None:
    made, w1, w2 = kernels()
    calls = [partial(made[0].lay_out, 1, w1, w2)]
    begun = begin("this layer", calls, 0.05)
    assert begun is not None
    with counting_compiles() as counted:
        compile_ahead("this layer", calls, 0.05, begun)
    assert "as the time limit was reached" in lines[0]
    assert (len(lines), counted.count) == (1, 0)


def test_an_interrupt_while_it_is_waited_for_ends_what_compiles(h200: Any, lines: list[str]) -> None:
    made, w1, w2 = kernels()
    begun = begin("this layer", [partial(made[1].lay_out, 1, w1, w2)], 240.0)
    assert begun is not None
    interrupt = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        begun.finish()
    begun._warming._thread.join(10)
    assert not begun._warming._thread.is_alive()
    assert lines == []


def test_a_call_that_cannot_be_laid_out_is_left_to_its_probe(h200: Any, lines: list[str]) -> None:
    made, w1, w2 = kernels()
    wrong = partial(made[0].lay_out, 1, w1[:, :-1], w2)
    with pytest.raises(ValueError, match="weights of"):
        wrong()
    compile_ahead("this layer", [wrong, partial(made[0].lay_out, 1, w1, w2)], 240.0)
    assert len(lines) == 1
    lines.clear()
    compile_ahead("this layer", [wrong], 240.0)
    assert lines == []


def test_the_time_limit_leaves_the_rest_to_the_probes(h200: Any, lines: list[str]) -> None:
    made, w1, w2 = kernels()
    compile_ahead("this layer", [partial(made[1].lay_out, 1, w1, w2)], 0.0)
    assert "left to their first use, as the time limit was reached" in lines[0]
