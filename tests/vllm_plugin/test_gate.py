"""A single token's gate in processes that have vLLM's real source imported, for each version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_plugin.conftest import TILE

Inside = dict[str, Any]
LIMIT = 3e-2
TAKEN = "a single token's gate, choice and layer are two launches"
LEFT = "a single token's gate stays vLLM's"


def saying(result: Any, words: str) -> list[str]:
    return [line for line in result["lines"] if words in line]


@pytest.mark.parametrize("renormalize", [True, False])
def test_a_single_token_is_taken_from_the_gate_on_and_no_other_count(
    inside: Inside, renormalize: bool
) -> None:
    result = inside[f"gate_{renormalize}"]
    one, two, five = (result["calls"][count] for count in "125")
    assert (one["ran"], one["vllm_chose"]) == (["gate"], False)
    assert (two["ran"], two["vllm_chose"]) == (["own"], True)
    assert (five["ran"], five["vllm_chose"]) == ([f"triton:{TILE.tile.block_m}"], True)
    assert all(call["error"] <= LIMIT for call in (one, two, five, result["first"]))
    assert set(result["seen"]) == {float(renormalize)}
    assert result["plain"] == [True]
    assert len(saying(result, TAKEN)) == 1
    assert not saying(result, "gate goes back") + saying(result, LEFT)


def test_it_is_tried_once_a_shape_before_it_serves(inside: Inside) -> None:
    result = inside["gate_True"]
    assert result["first"]["ran"].count("gate") == 4
    # Each made token is vLLM's first: its gate, its choice, and the same kernel behind them.
    assert result["first"]["ran"][-8:] == ["own", "gate"] * 4
    first, tried, one = result["beside"]
    assert first["took"], "the second layer has no seat"
    assert tried == 0, "a second layer of the shape was tried again"
    assert one["ran"] == ["gate"]


def test_whoever_asks_for_the_choice_gets_vllms(inside: Inside) -> None:
    for how in ("asked", "replayed"):
        assert inside["gate_True"][how]["ran"] == ["own"], how
        assert inside["gate_True"][how]["vllm_chose"], how


def test_a_kernel_that_vllm_builds_again_is_taken_anew(inside: Inside) -> None:
    result = inside["gate_reloaded"]
    assert [call["ran"] for call in result["calls"]] == [["gate"], ["own"], ["gate"]]
    assert all(call["error"] <= LIMIT for call in result["calls"])


def test_made_tokens_are_no_padding_and_recorded_by_nobody(inside: Inside) -> None:
    """A start may have runs of padding only until graphs are captured."""
    result = inside["gate_padded"]
    assert result["first"]["took"]
    assert result["first"]["ran"].count("gate") == 4
    # What vLLM chose in the run itself (none, if it skips padding), and in the call after it.
    assert result["recorded"] == [64, 1]
    assert result["kept"]
    assert result["first_row"] in (result["first"]["chose"][0], [-1, -1])
    assert result["listened"]["ran"] == ["own"]
    assert result["call"]["ran"] == ["gate"]
    assert not saying(result, LEFT)


def test_qwen3s_gate_of_newer_versions_is_taken(inside: Inside) -> None:
    assert inside["gate_refused"]["gate_linear"]["ran"] == ["gate"]


def test_it_goes_with_its_route_and_with_the_plugin(inside: Inside) -> None:
    for when in ("removed", "after"):
        call = inside["gate_True"][when]
        assert call["ran"][0].startswith("triton:"), when
        assert call["vllm_chose"], when
        assert call["error"] <= LIMIT, when


def test_launches_that_fail_leave_vllms_way_with_one_line(inside: Inside) -> None:
    for how, words, said in (
        ("wrong", LEFT, "its probe failed: it differs by 0."),
        ("raises", LEFT, "its probe failed: RuntimeError: misaligned address"),
        ("later", "a single token's gate goes back to vLLM", "RuntimeError: misaligned address"),
    ):
        result = inside[f"gate_{how}"]
        (line,) = saying(result, words)
        assert said in line, how
        assert result["calls"][1]["ran"] == ["own"], how
        assert all(call["error"] <= LIMIT for call in result["calls"]), how
    assert inside["gate_later"]["calls"][0]["ran"] == ["gate", "own"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sigmoid", "its experts are chosen by FusedTopKRouter (sigmoid scores)"),
        ("own_router", "its experts are chosen by Own (softmax scores)"),
        ("own_runner", "its runner is Runner"),
        ("own_experts", "its experts are Doubling"),
        ("wide_logits", "its gate is GateLinear with UnquantizedLinearMethod"),
        ("bias", "its gate has a bias or hooks"),
        ("hooked", "its gate has a bias or hooks"),
        ("dbo", "batches are split or sent to other ranks"),
        ("on_input", "the router's weights go onto the input"),
        ("ranks", "several ranks must choose alike"),
    ],
)
def test_a_layer_of_another_kind_keeps_vllms_gate_with_the_reason(
    inside: Inside, name: str, said: str
) -> None:
    assert inside["gate_refused"]["taken"]["ran"] == ["gate"]
    found = inside["gate_refused"][name]
    assert found["ran"] == ["own"]
    assert found["vllm_chose"]
    # What was said of one layer is not said again of the next.
    lines = [line for layer in inside["gate_refused"].values() for line in layer["lines"]]
    assert [line for line in lines if LEFT in line and said in line]


def test_a_setting_switches_it_off(inside: Inside) -> None:
    assert "gate" not in inside["gate_off"]["features"]
    assert inside["gate_off"]["call"]["ran"] == ["own"]
    state, reason = inside["router_batch_invariant"]["features"]["gate"]
    assert (state, reason) == ("disabled", "VLLM_BATCH_INVARIANT asks for vLLM's own kernels")


@pytest.mark.parametrize(
    ("what", "said"),
    [("signature", "_forward_impl takes (self, hidden_states"), ("choice", "_apply_quant_method no longer")],
)
def test_a_changed_runner_disables_the_gate_only(inside: Inside, what: str, said: str) -> None:
    states = inside[f"gate_changed_{what}"]["features"]
    state, reason = states.pop("gate")
    assert state == "disabled"
    assert said in reason
    assert {state for state, _ in states.values()} == {"applied"}
