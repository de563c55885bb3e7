"""The router in processes that have vLLM's real source imported (see `conftest.py`), for each version."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tests.vllm_plugin.conftest import TILE

Inside = dict[str, Any]
LIMIT = 3e-2
"""FP8's error limit against the float32 reference."""


def served(result: Any) -> dict[int, str]:
    """What computed each token count, the last word of each call."""
    return {int(count): call["ran"][-1] for count, call in result["calls"].items()}


def warnings(result: Any) -> list[str]:
    return [line for line in result["lines"] if line.startswith("WARNING")]


TRITON = f"triton:{TILE.tile.block_m}"
ALL = {
    1: "own", 4: "own", 5: TRITON, 8: TRITON, 9: "cutlass", 16: "cutlass", 17: "flashinfer", 64: "flashinfer"
}  # fmt: skip


def test_one_layer_runs_the_winner_of_each_token_count(inside: Inside) -> None:
    result = inside["routed"]
    assert result["experts"] == "RouterExperts"
    assert served(result) == ALL
    assert all(len(call["ran"]) == 1 for call in result["calls"].values()), "something ran twice"
    assert all(call["error"] <= LIMIT for call in result["calls"].values()), result["calls"]


def test_every_backend_is_tried_once_a_shape_before_it_serves(inside: Inside) -> None:
    first = inside["routed"]["first"]["ran"]
    # Each added backend and, beside it, vLLM's own at the same token count; then the call itself.
    assert sorted(first[:-1]) == sorted(["own", TRITON, "cutlass", *["flashinfer"] * 3])
    assert first[-1] == "flashinfer"
    assert inside["routed"]["second_layer"]["ran"] == [TRITON], "a second layer of the shape was probed again"
    (line,) = [line for line in inside["routed"]["lines"] if "over flashinfer_cutlass:" in line]
    assert "1..4 fused_decode" in line
    assert "9..16 vllm_cutlass" in line


def test_it_comes_off_again(inside: Inside) -> None:
    assert inside["routed"]["after"] == "FlashInferExperts"
    assert inside["routed"]["restored"]
    assert not warnings(inside["routed"])


def test_a_kernel_that_reads_one_order_only_stays_out_and_the_rest_serves(inside: Inside) -> None:
    result = inside["routed_one_order"]
    assert served(result) == {**ALL, 1: "flashinfer", 4: "flashinfer"}
    assert any("does not read up rows before gate rows" in line for line in result["lines"])


def test_over_tritons_weights_nothing_is_swapped(inside: Inside) -> None:
    result = inside["routed_over_triton"]
    found = served(result)
    assert {found[n] for n in (1, 4)} == {"own"}
    assert {found[n] for n in (9, 16)} == {"cutlass"}
    assert found[8] == TRITON, "the base runs the table's tile"
    assert all(call["error"] <= LIMIT for call in result["calls"].values()), result["calls"]


def test_bf16_is_routed_too(inside: Inside) -> None:
    result = inside["routed_bf16"]
    assert served(result) == {1: "own", 5: TRITON, 9: "flashinfer", 17: "flashinfer"}
    assert all(call["error"] <= 1e-2 for call in result["calls"].values()), result["calls"]


def test_workspaces_are_the_larger_of_each(inside: Inside) -> None:
    for tokens, found in inside["workspaces"]["shapes"].items():
        first, second, output = found["router"]
        assert prod(first) == max(prod(shapes[0]) for shapes in found["inners"]), tokens
        assert prod(second) == max(prod(shapes[1]) for shapes in found["inners"]), tokens
        assert prod(second) > 0, "FlashInfer's alone are empty"
        assert output == [int(tokens), 128]
        assert found["again"] == found["router"]
    assert inside["workspaces"]["expects_unquantized"], "our kernels quantize by themselves"


def test_a_call_asks_the_router_for_nothing_that_it_must_pass_on(inside: Inside) -> None:
    result = inside["asked_in_a_call"]
    assert result["ran"] == [["own"], ["cutlass"], ["flashinfer"]]
    assert result["forwarded"] == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("wrong", "it differs by 0.5 (relative L2, at most 0.03) from the float32 reference"),
        ("nan", "numbers that are not finite"),
        ("raises", "ZeroDivisionError"),
    ],
)
def test_a_backend_that_fails_its_probe_leaves_and_the_rest_serves(
    inside: Inside, how: str, said: str
) -> None:
    result = inside[f"probe_{how}"]
    assert served(result) == {2: "own", 6: TRITON, 12: "flashinfer", 40: "flashinfer"}
    (line,) = warnings(result)
    assert "vllm_cutlass leaves the table" in line
    assert "flashinfer_cutlass serves M in 9..16" in line
    assert said in line


def test_a_backend_that_raises_in_a_call_is_left_for_good(inside: Inside) -> None:
    result = inside["raises_later"]
    assert result["good"]["ran"] == ["cutlass"]
    for name in ("failing", "after", "other_layer"):
        assert result[name]["ran"] == ["flashinfer"], name
        assert result[name]["error"] <= LIMIT, name
    assert result["triton"]["ran"] == [TRITON]
    (line,) = warnings(result)
    assert "it failed at 12 tokens: RuntimeError: misaligned address" in line


def test_nothing_serves_that_has_not_been_tried(inside: Inside) -> None:
    # The first call has room for the routes that begin at 1; 6 for those up to 5; 12 for all.
    assert inside["small_first"]["calls"] == ["own", TRITON, "own", "cutlass", TRITON, "cutlass"]


def test_each_variant_that_a_route_needs_is_tried_in_the_profiling_run(inside: Inside) -> None:
    """Without a list of rows at 1 token, with one from 9 on; nothing of it is left to a request."""
    assert inside["tried"] == [1, 9]


def test_flashinfers_tuner_gets_its_calls(inside: Inside) -> None:
    result = inside["tuning"]
    assert result["before"]["ran"] == result["after"]["ran"] == ["cutlass"]
    assert {ran for call in result["during"].values() for ran in call["ran"]} == {"flashinfer:tuning"}


def test_without_a_way_to_see_the_tuner_nothing_is_routed(inside: Inside) -> None:
    assert inside["unwatchable_tuner"]["experts"] == "FlashInferExperts"
    assert any("autotuner cannot be watched" in line for line in inside["unwatchable_tuner"]["lines"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lora", "LoRA is enabled"),
        ("moe_backend", "moe_backend is flashinfer_cutlass, as set"),
        ("biases", "the layer has biases"),
        ("another_k", "No table for E=8,N=64,K=256"),
        ("hook", "post_gemm2_hook is set"),
        ("dynamic", "the quantization is not one that is measured"),
        ("unknown", "no other backend is known to read the weights of Unknown"),
        ("all_to_all", "expert parallel with all-to-all, or another prepare step (AllToAll)"),
        ("monolithic", "Monolithic is monolithic"),
    ],
)
def test_what_cannot_be_routed_stays_vllms_with_the_reason(inside: Inside, name: str, said: str) -> None:
    assert inside["refusals"]["routed"]["experts"] == "RouterExperts"
    found = inside["refusals"][name]
    assert found["experts"] != "RouterExperts"
    assert [line for line in found["lines"] if "no routing per call" in line and said in line], found


def test_a_hook_that_a_model_sets_later_reaches_vllms_choice(inside: Inside) -> None:
    result = inside["hook_later"]
    assert result["before"]["ran"] == ["cutlass"]
    assert result["after"]["ran"] == ["flashinfer"]
    assert result["reached_the_base"]


def test_observe_counts_and_changes_nothing(inside: Inside) -> None:
    result = inside["observed"]
    assert result["experts"] == "FlashInferExperts"
    assert {ran for call in result["calls"].values() for ran in call["ran"]} == {"flashinfer"}
    seen = [line.partition("observed: ")[2] for line in result["lines"] if "observed: " in line]
    by_route = {line.partition(": ")[2] for line in seen}
    assert any(line.startswith("9..16 vllm_cutlass: 1 calls") for line in by_route), by_route
    assert any(line.startswith(f"5..8 {TILE}: 2 calls") for line in by_route), by_route
    assert any(line.startswith("17..64 no benefit, flashinfer_cutlass kept: 2 calls") for line in by_route)


def test_modes_and_settings_decide_whether_the_router_is_there(inside: Inside) -> None:
    assert "router" not in inside["mode_tiles"]["features"]
    assert "router" not in inside["mode_static"]["features"]
    state, reason = inside["router_batch_invariant"]["features"]["router"]
    assert (state, reason) == ("disabled", "VLLM_BATCH_INVARIANT asks for one kernel at all token counts")
    state, reason = inside["router_explicit"]["features"]["router"]
    assert (state, reason) == ("disabled", "VLLM_USE_FLASHINFER_MOE_FP8 is set")


def test_deep_gemm_is_added_to_tritons_blocks(inside: Inside) -> None:
    result = inside["routed_block"]
    assert served(result) == {1: "own", 5: TRITON, 9: "deep_gemm", 16: "deep_gemm", 17: result["own_tile"]}
    assert all(call["error"] <= LIMIT for call in result["calls"].values()), result["calls"]
    assert not warnings(result)


def test_doctor_tells_which_routes_would_be_served(inside: Inside) -> None:
    routing = inside["doctor_routed"]["model"]["routing"]
    assert routing["base"] == "flashinfer_cutlass"
    backends = [line.split()[1] for line in (*routing["served"], *routing["declined"])]
    assert sorted(backends) == ["fused_decode", "triton", "vllm_cutlass"]
    assert inside["doctor"]["model"]["routing"]["served"] == [], "the base itself won"
    assert inside["doctor"]["model"]["routing"]["base"] == "triton"


def test_doctor_gives_the_reason_that_the_log_gives(inside: Inside) -> None:
    routing = inside["doctor_set"]["model"]
    assert routing["routing"] is None
    assert routing["routing_detail"] == "moe_backend is triton, as set"
    lora = inside["doctor_lora"]["model"]
    assert (lora["answer"], lora["reason"]) == ("fallback", "not_routed")
    assert any(lora["detail"] in line for line in inside["refusals"]["lora"]["lines"])


@pytest.mark.parametrize("mode", ["tiles", "static"])
def test_doctor_tells_only_what_the_mode_installs(inside: Inside, mode: str) -> None:
    report = inside[f"doctor_{mode}"]
    names = {feature["name"] for feature in report["features"]}
    model = report["model"]
    assert ("tiles" in names) is (mode == "tiles")
    assert (model["routing"], model["routing_detail"]) == (None, f"not in mode {mode}")
    assert model["chooses"] is (mode == "static")
    assert bool(model["tiles"]) is (mode == "tiles")
    moves = "static choice of the FP8 backend" in report["summary"]
    assert moves is (mode == "static")


FEATURES = ("layers", "static-fp8", "static-bf16", "tiles", "router", "deep-gemm-warmup")


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_applies_to_this_vllm(inside: Inside, feature: str) -> None:
    assert inside["tiles"]["features"][feature] == ["applied", ""]


def test_a_changed_warm_up_disables_only_what_looks_at_it(inside: Inside) -> None:
    states = {name: state for name, (state, _) in inside["changed_warmup"]["features"].items()}
    assert states.pop("deep-gemm-warmup") == "disabled"
    assert set(states.values()) == {"applied"}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("init", "FusedMoEKernel.__init__ takes (self, prepare_finalize, fused_experts, stream)"),
        ("apply", "FusedMoEExpertsModular.apply takes (self, output, hidden_states, weights)"),
        ("prepare", "no longer contains `defer_input_quant=self.fused_experts.expects_unquantized_inputs`"),
    ],
)
def test_a_changed_kernel_disables_the_router_only(inside: Inside, what: str, said: str) -> None:
    result = inside[f"changed_{what}"]
    state, reason = result["features"]["router"]
    assert state == "disabled"
    assert said in reason
    others = {name: state for name, (state, _) in result["features"].items() if name != "router"}
    assert set(others.values()) == {"applied"}
    assert result["tiles"]["8"] == [TILE.tile.vllm_config(), False]
    assert sum("routing per call disabled" in line for line in warnings(result)) == 1


def test_vllms_warm_up_sees_deep_gemm_behind_a_router(inside: Inside) -> None:
    assert inside["deep_gemm_warmup"] == {"without": False, "found": True, "kept": True}
