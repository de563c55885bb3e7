"""The plugin in processes that have vLLM's real source imported (see `conftest.py`), for each version."""

from __future__ import annotations

from typing import Any

from tests.vllm_plugin.conftest import OTHER_TILE, TILE

Inside = dict[str, Any]
VLLM_CONFIG = TILE.tile.vllm_config()
ON = [VLLM_CONFIG, False]
"""The table's tile, with its Swap-AB choice."""


def own(inside: Inside, tokens: int) -> Any:
    """What vLLM answers without the plugin."""
    return inside["untouched"]["tiles"][str(tokens)]


def test_a_covered_count_gets_the_tile_and_another_vllms_own(inside: Inside) -> None:
    found = inside["tiles"]["tiles"]
    for tokens in (1, 8, 64):
        assert found[str(tokens)] == ON != own(inside, tokens)
    for tokens in (3, 65, 4000):  # between the routes, and above
        assert found[str(tokens)] == own(inside, tokens)


def test_the_config_has_vllms_keys_only_and_is_quick(inside: Inside) -> None:
    assert inside["tiles"]["keys"] == sorted(VLLM_CONFIG)
    assert inside["tiles"]["each_us"] < 200


def test_all_features_apply_and_come_off_again(inside: Inside) -> None:
    result = inside["tiles"]
    assert {name: state for name, (state, _) in result["features"].items()} == dict.fromkeys(
        (
            "layers",
            "static-fp8",
            "static-bf16",
            "tiles",
            "router",
            "recompiles",
            "counts",
            "metrics",
            "deep-gemm-warmup",
            "gate",
            "warmup",
            "ranks",
        ),
        "applied",
    )
    assert result["restored"]
    assert result["after"] == {str(n): own(inside, n) for n in (1, 8)}


def test_the_log_names_the_mode_the_revision_and_what_it_was_applied_to(inside: Inside) -> None:
    (start,) = [line for line in inside["tiles"]["lines"] if "mode route" in line]
    assert "1 of 1 tables fit NVIDIA_H200" in start
    assert "revision 7" in start
    assert "7 routes" in start
    (applied,) = [line for line in inside["tiles"]["lines"] if "applied to" in line]
    assert "table revision 7" in applied
    assert "applied to E=128,N=768,K=2048,topk=8,scheme=fp8_block128: tiles for M in 1..2, 4..64" in applied


def test_a_file_without_a_revision_works_too(inside: Inside) -> None:
    assert inside["unpublished"]["tiles"]["8"] == ON


def test_children_and_ray_workers_are_told(inside: Inside) -> None:
    environment = inside["tiles"]["environment"]
    assert environment["AUTOTUNE_SNAPSHOT_DIGEST"]
    assert "AUTOTUNE_" in environment["VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"].split(",")
    assert inside["child"] == 0


def test_it_waits_for_vllm_to_import_its_kernels(inside: Inside) -> None:
    result = inside["after_import"]
    assert not result["imported"], "the plugin itself imported vLLM's kernels"
    assert {state for state, _ in result["before"].values()} == {"waiting"}
    # vLLM's worker and loggers are not imported here.
    for name in ("warmup", "counts", "metrics", "ranks"):
        assert result["after"].pop(name)[0] == "waiting"
    assert {state for state, _ in result["after"].values()} == {"applied"}
    assert result["tiles"]["8"] == ON


def test_swap_ab_reaches_the_kernel(inside: Inside) -> None:
    covered, outside = inside["launch"][0], inside["launch"][1]
    assert (covered["BLOCK_SIZE_M"], covered["num_warps"], covered["SWAP_AB"]) == (32, 8, False)
    own_tile = (outside["BLOCK_SIZE_M"], outside["BLOCK_SIZE_N"])
    assert outside["SWAP_AB"] is (own_tile[0] < 64 <= own_tile[1])
    (swapped,) = inside["launch_swapped"]
    assert (swapped["BLOCK_SIZE_M"], swapped["SWAP_AB"]) == (OTHER_TILE.tile.block_m, True)


def test_off_observe_and_a_bad_mode_leave_vllm_alone(inside: Inside) -> None:
    for name in ("off", "observe", "bad_mode"):
        assert inside[name]["tiles"]["8"] == own(inside, 8), name
        assert inside[name]["order"] == inside["untouched"]["order"], name
    assert inside["off"]["features"] == inside["bad_mode"]["features"] == {}
    assert any("AUTOTUNE_MODE=off" in line for line in inside["off"]["lines"])
    assert any("would be applied to E=128" in line for line in inside["observe"]["lines"])
    assert any("WARNING" in line and "Did you mean 'route'" in line for line in inside["bad_mode"]["lines"])


def test_tiles_and_static_apply_that_alone(inside: Inside) -> None:
    assert inside["only_tiles"]["tiles"]["8"] == ON
    assert inside["only_static"]["tiles"]["8"] == own(inside, 8)
    moved, stock = inside["backend_static_mode"]["orders"][0], inside["backend_tiles_mode"]["orders"][0]
    assert moved == ["TRITON", *(name for name in stock if name != "TRITON")] != stock
    for name in ("only_tiles", "only_static"):
        features = inside[name]["features"]
        assert {"router", "gate", "counts", "deep-gemm-warmup"}.isdisjoint(features), name
        assert {state for state, _ in features.values()} == {"applied"}, name
    assert ("tiles" in inside["only_tiles"]["features"], "tiles" in inside["only_static"]["features"]) == (
        True, False,
    )  # fmt: skip


def test_settings_of_the_user_come_first(inside: Inside) -> None:
    state, reason = inside["batch_invariant"]["features"]["tiles"]
    assert (state, reason) == ("disabled", "VLLM_BATCH_INVARIANT fixes the tiles")
    assert inside["batch_invariant"]["tiles"]["8"][0] != VLLM_CONFIG
    assert inside["user_folder"]["tiles"]["8"][0]["BLOCK_SIZE_K"] == 32
    assert any("which stays" in line for line in inside["user_folder"]["lines"])


def test_broken_sources_leave_vllm_alone_with_a_reason(inside: Inside) -> None:
    for name, said in (
        ("nothing", "absent.json cannot be read"),
        ("corrupt", "does not match its content"),
        ("service_500", "it answered HTTP 500"),
        ("service_cut", "gave no usable answer"),
        ("service_lying", "does not match its content"),
        ("service_slow", "no complete answer within 0.5 s"),
    ):
        result = inside[name]
        assert result["tiles"]["8"] == own(inside, 8), name
        assert any("WARNING" in line and said in line for line in result["lines"]), (name, result["lines"])


def test_a_slow_service_delays_no_longer_than_the_time_out(inside: Inside) -> None:
    assert 0.5 <= inside["service_slow"]["took"] < 1.5


def test_a_service_is_used(inside: Inside) -> None:
    assert inside["service"]["tiles"]["8"] == ON


def test_another_version_is_stale_unless_compatible(inside: Inside) -> None:
    assert inside["stale"]["tiles"]["8"] == own(inside, 8)
    assert any("stale" in line and "table: 0.24.0" in line for line in inside["stale"]["lines"])
    assert inside["compatible"]["tiles"]["8"] == ON


def test_vllms_kernel_is_replaced_only_where_a_table_fits(inside: Inside) -> None:
    """It is every model's, also of those for which there is no table at all."""
    for name in ("service", "compatible"):
        assert inside[name]["kernel"] == "replaced", name
    for name in ("stale", "nvl", "nothing", "corrupt", "off", "observe", "bad_mode", "batch_invariant"):
        assert inside[name]["kernel"] == "own", name


def test_another_gpu_gets_nothing(inside: Inside) -> None:
    assert inside["nvl"]["tiles"]["8"][0] != VLLM_CONFIG
    assert inside["not_cuda"]["running"] is False
    assert any("not CUDA" in line for line in inside["not_cuda"]["lines"])


def test_tables_that_collide_disable_the_look_up(inside: Inside) -> None:
    assert inside["colliding"]["tiles"]["8"][0] != VLLM_CONFIG
    assert any("several tables share these dimensions" in line for line in inside["colliding"]["lines"])
    assert inside["resolved"]["tiles"]["8"] == ON, "the layer that was built tells which one is meant"


def test_a_layer_that_the_table_was_not_made_for_gets_nothing(inside: Inside) -> None:
    for name, said in (
        ("another_k", "the layer has K=4096"),
        ("another_topk", "topk=4"),
        ("lora", "LoRA is enabled"),
        ("half", "activations in float16, not bfloat16"),
        ("foreign_scheme", "quantization is not one that is measured"),
    ):
        assert inside[name]["tiles"]["8"][0] != VLLM_CONFIG, name
        assert any(said in line for line in inside[name]["lines"]), (name, inside[name]["lines"])
    assert inside["same_layer"]["tiles"]["8"] == ON


def test_the_static_choice_moves_one_backend_to_the_front(inside: Inside) -> None:
    moved, *kept = inside["backend"]["orders"]
    stock = kept[0]
    assert stock[0] != "TRITON"
    assert moved == ["TRITON", *(name for name in stock if name != "TRITON")]
    assert all(order == stock for order in kept), "an explicit choice or another layer was overruled"
    assert inside["backend"]["bf16"] == inside["untouched"]["bf16"]
    assert inside["backend"]["restored"]
    lines = inside["backend"]["lines"]
    assert any("no static choice for a layer: activations in float16, not bfloat16" in line for line in lines)
    said = "no static choice for a layer: its dimensions are not those of a layer that can be swept"
    assert any(said in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_where_calls_are_routed_the_weights_stay_as_vllm_prepares_them(inside: Inside) -> None:
    stock = inside["backend"]["orders"][1]
    assert inside["backend_routed"]["orders"] == [stock]
    said = "every winner of the table runs on the weights of flashinfer_cutlass"
    assert any(said in line for line in inside["backend_routed"]["lines"])


def test_unless_they_keep_the_winners_out(inside: Inside) -> None:
    (moved,) = inside["base_moved"]["orders"]
    assert moved[0] == "FLASHINFER_CUTLASS"
    (line,) = [line for line in inside["base_moved"]["lines"] if "weights prepared for" in line]
    assert "1.25x triton at concurrency=8, which keeps out flashinfer_cutlass" in line


def test_the_static_choice_is_left_out_where_it_is_not_wanted(inside: Inside) -> None:
    stock = inside["backend"]["orders"][1]
    for name in ("backend_tiles_mode", "backend_observe", "backend_other_traffic"):
        assert inside[name]["orders"] == [stock], name
    assert any("would be triton" in line for line in inside["backend_observe"]["lines"])
    assert any(
        "does not cover concurrency=10000" in line for line in inside["backend_other_traffic"]["lines"]
    )


def test_vllms_own_selection_takes_it(inside: Inside) -> None:
    assert inside["select"]["found"] == ["TRITON", "TritonExperts"]


def test_the_checkpoints_format_picks_the_table(inside: Inside) -> None:
    assert inside["select_compressed"]["front"] == "VLLM_CUTLASS", inside["select_compressed"]["lines"]
    assert inside["select_fp8"]["front"] == "TRITON"


def test_a_layer_moved_to_triton_gets_the_tile_it_was_moved_for(inside: Inside) -> None:
    assert inside["moved"]["tiles"]["8"] == [OTHER_TILE.tile.vllm_config(), True]
    assert inside["not_moved"]["tiles"]["8"][0] != OTHER_TILE.tile.vllm_config()


def test_a_changed_vllm_disables_only_the_feature_that_needs_it(inside: Inside) -> None:
    changed = inside["changed_signature"]
    state, reason = changed["features"]["tiles"]
    assert state == "disabled"
    assert "takes (E, N, dtype, block_size)" in reason
    assert changed["features"]["static-fp8"][0] == "applied"
    assert sum("WARNING" in line and "Triton tiles" in line for line in changed["lines"]) == 1
    assert "no longer contains" in inside["changed_lookup"]["tiles"][1]
    oracle = inside["changed_oracle"]
    assert oracle["features"]["static-fp8"][0] == "disabled"
    assert oracle["tiles"]["8"] == ON


def test_a_version_that_nobody_has_seen_is_said_and_loses_what_it_changed(inside: Inside) -> None:
    result = inside["future"]
    assert sum("vLLM 0.99.0 is not one that this release was tested with" in x for x in result["lines"]) == 1
    states = {name: state for name, (state, _) in result["features"].items()}
    assert states.pop("tiles") == "disabled"
    assert set(states.values()) == {"applied"}
    assert any("1 of 1 tables fit NVIDIA_H200 (sm_90; vllm 0.99.0" in line for line in result["lines"])
    # A table of the vLLM before it is no table for it.
    assert any("stale" in x and "vllm 0.99.0 (table: " in x for x in inside["future_stale"]["lines"])


def test_loading_it_twice_changes_nothing(inside: Inside) -> None:
    assert inside["twice"] == {"same": True, "tiles": {"8": ON}, "restored": True}


def test_another_plugins_patch_survives(inside: Inside) -> None:
    result = inside["chained"]
    assert result["during"]["8"] == ON
    assert result["after"]["8"] == own(inside, 8)
    assert result["theirs"]
    assert result["seen"] == 2


def test_exported_files_answer_as_the_table_does_inside_its_ranges(inside: Inside) -> None:
    found = {int(n): config for n, (config, _) in inside["exported"].items()}
    for tokens in (1, 2, 4, 5, 8, 9, 33, 64):
        assert found[tokens] == VLLM_CONFIG, tokens
    for tokens in (3, 65):  # the baseline's tile stands for what files cannot express
        assert found[tokens]["BLOCK_SIZE_M"] == 64


def test_doctor_tells_what_would_be_applied(inside: Inside) -> None:
    report = inside["doctor"]
    assert report["vllm"] == inside["version"]
    assert report["environment"]["gpu"] == "NVIDIA_H200"
    assert {f["state"] for f in report["features"]} == {"applied"}
    assert [t["status"] for t in report["tables"]] == ["match"]
    assert report["model"]["tiles"] == "1..2, 4..64"
    assert report["summary"].startswith("1 of 1 tables would be applied")
    assert report["untouched"]
