"""Plans, arms, the tables that they run with, logs, and verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from autotune.cli.lab_plan import make_plan, starter_table, whole_path
from autotune.lab.arms import known_arms, named_arms
from autotune.lab.client import bench_arguments
from autotune.lab.cold import cold_over_again, cold_over_warm
from autotune.lab.logs import compiles, kept_lines, memory
from autotune.lab.machine import Place
from autotune.lab.plan import MAX_ROUNDS, MAX_SEED, Plan, Point, Restriction
from autotune.lab.report import METRICS, Outcome, compare, make_report
from autotune.lab.results import LEAST, MOST, Folder, Pair, Result
from autotune.lab.running import check_arms, missing, round_seed
from autotune.lab.tables import read_table, restricted, vllm_swaps, write_table
from autotune.vllm_plugin.tile_choice import covered
from autotune.vocabulary.candidate import TritonCandidate
from autotune.vocabulary.errors import AutotuneError, ConflictError, UnknownNameError, UsageError
from autotune.vocabulary.problem import Scheme
from autotune.vocabulary.settings import Settings
from autotune.vocabulary.table import RoutingTable, Verdict
from tests.lab.labs import ROOT, stand_in_plan

TENSOR = read_table(starter_table("fp8_tensor"))
BLOCK = read_table(starter_table("fp8_block128"))


def winners(table: RoutingTable) -> dict[int, str]:
    return {route.last: route.winner.backend for route in table.routes if route.verdict is Verdict.WIN}


def plan_of(**given: object) -> Plan:
    options: dict[str, object] = {
        "scheme": "fp8_tensor", "layers": 48, "arms": "stock,all", "concurrency": "1,8",
        "prompts": "128:4096", "output": 128,
        "requests": None, "more": [], "rounds": 3, "seed": 1, "servers": None, "cache": "warm",
        "gpu_memory": 0.9, "env": [], "serve_args": [], "table": TENSOR.digest,
    }  # fmt: skip
    return make_plan(**{**options, **given})  # type: ignore[arg-type]


def test_single_points_are_added_once() -> None:
    plan = plan_of(more=["1@128", "1@16384+16", "2@64:512", "1@128:4096"])
    named = {point.name: point.requests for point in plan.points}
    assert named == {
        "c1-p128-4096-o128": 12, "c8-p128-4096-o128": 32, "c1-p128-128-o128": 12,
        "c1-p16384-16384-o16": 12, "c2-p64-512-o128": 12,
    }  # fmt: skip
    for wrong in ("128", "@128", "1@", "1@a:b", "1@128+x", "x@1"):
        with pytest.raises(UsageError, match="--point takes"):
            plan_of(more=[wrong])


def test_only_the_decode_kernels_routes_remain() -> None:
    table = restricted(TENSOR, "fused_decode")
    assert set(winners(table).values()) == {"fused_decode"}
    assert set(winners(table)) == {n for n, name in winners(TENSOR).items() if name == "fused_decode"}
    assert table.digest != TENSOR.digest
    for route, whole in zip(table.routes, TENSOR.routes, strict=True):
        if route.verdict is Verdict.NO_BENEFIT:
            assert (route.winner, route.winner_timing) == (whole.baseline, whole.baseline_timing)


def test_another_candidate_wins_where_the_winner_is_left_out() -> None:
    """By the rule of the sweep: final measurements, and a bound that clears the margin."""
    table = restricted(TENSOR, "route")
    for route, whole in zip(table.routes, TENSOR.routes, strict=True):
        able = [
            a for a in whole.alternatives
            if a.candidate.backend in ("triton", "vllm_cutlass")
            and a.final
            and a.speedup.low > 1 + TENSOR.margin
        ]  # fmt: skip
        if whole.winner.backend in ("triton", "vllm_cutlass"):
            assert route.winner == whole.winner
        elif able:
            best = max(able, key=lambda a: a.speedup.median)
            assert (route.winner, route.speedup) == (best.candidate, best.speedup)
            assert route.first == max(whole.first, best.first)
        else:
            assert route.verdict is Verdict.NO_BENEFIT
    assert "triton" in winners(table).values()
    assert not {"fused_decode", "fused_triton"} & set(winners(table).values())


def turned(table: RoutingTable) -> RoutingTable:
    """The table as if its Triton tiles had won with Swap-AB the other way."""
    routes = []
    for route in table.routes:
        others = [
            a.model_copy(update={"candidate": TritonCandidate(tile=c.tile, swap_ab=not c.swap_ab)})
            if isinstance(c := a.candidate, TritonCandidate)
            else a
            for a in route.alternatives
        ]
        routes.append(route.model_copy(update={"alternatives": tuple(others)}))
    return table.model_copy(update={"routes": tuple(routes)})


@pytest.mark.parametrize(
    ("table", "name", "keeps"),
    [(TENSOR, "tiles", True), (turned(TENSOR), "swap_ab", False), (BLOCK, "tiles", True)],
)
def test_tiles_keep_vllms_swap_ab_and_swap_ab_breaks_it(
    table: RoutingTable, name: Restriction, keeps: bool
) -> None:
    found = restricted(table, name)
    tiles = [r.winner for r in found.routes if r.verdict is Verdict.WIN]
    assert tiles
    for tile in tiles:
        assert isinstance(tile, TritonCandidate)
        assert (tile.swap_ab == vllm_swaps(tile.tile)) is keeps
    assert covered(found, moved_to_triton=False)


@pytest.mark.parametrize("table", [TENSOR, BLOCK])
def test_no_winning_tile_of_the_starter_tables_breaks_vllms_rule(table: RoutingTable) -> None:
    with pytest.raises(UsageError, match="no winning route for the arm 'swap_ab'"):
        restricted(table, "swap_ab")


def test_swap_ab_off_is_the_arm_tiles_without_swap_ab() -> None:
    on, off = restricted(TENSOR, "tiles"), restricted(TENSOR, "swap_ab_off")
    changed = 0
    for with_it, without in zip(on.routes, off.routes, strict=True):
        assert (with_it.first, with_it.last, with_it.verdict) == (
            without.first,
            without.last,
            without.verdict,
        )
        if without.verdict is Verdict.WIN:
            assert isinstance(without.winner, TritonCandidate)
            assert isinstance(with_it.winner, TritonCandidate)
            assert without.winner == TritonCandidate(tile=with_it.winner.tile)
            changed += with_it.winner.swap_ab
    assert changed >= 5
    with pytest.raises(UsageError, match="no winning tile with Swap-AB"):
        restricted(off, "swap_ab_off")
    arms = {arm.name: arm for arm in named_arms(["swap_ab_off"], Scheme.FP8_TENSOR)}
    assert set(arms) == {"stock", "stock-triton", "tiles", "swap_ab_off"}
    assert arms["swap_ab_off"].against == "tiles"


def test_a_restricted_table_is_one_that_the_plugin_reads(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    write_table(restricted(BLOCK, "nothing"), file)
    table = RoutingTable.from_json_data(json.loads(file.read_text()))
    assert winners(table) == {}
    assert covered(table, moved_to_triton=False) == ""
    with pytest.raises(UsageError, match="no winning route for the arm 'fused_decode'"):
        restricted(restricted(BLOCK, "nothing"), "fused_decode")


@pytest.mark.parametrize("scheme", [Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128])
def test_every_arm_names_settings_that_exist(scheme: Scheme) -> None:
    arms = known_arms(scheme)
    assert arms["stock"].env == {}
    assert not arms["stock"].plugin
    for arm in arms.values():
        Settings.from_env(arm.env)
        assert arm.note
        assert all(name.startswith("AUTOTUNE_") for name in arm.env)
        assert arm.plugin is (arm.table is not None)
        Plan(scheme=scheme, layers=1, arms=named_arms([arm.name, "all"], scheme), points=(POINT,))
    assert arms["all"].env == {}


POINT = Point(concurrency=8, shortest=128, longest=4096, output=128, requests=32)


def test_a_factor_of_triton_is_compared_with_triton() -> None:
    assert [arm.name for arm in named_arms(["tiles"], Scheme.FP8_TENSOR)] == [
        "stock",
        "tiles",
        "stock-triton",
    ]
    assert [arm.name for arm in named_arms(["tiles"], Scheme.FP8_BLOCK128)] == ["stock", "tiles"]
    tiles, triton = named_arms(["tiles"], Scheme.FP8_TENSOR)[1:]
    assert tiles.against == "stock-triton"
    assert tiles.serve_args == triton.serve_args == ("--moe-backend", "triton")
    with pytest.raises(UnknownNameError, match="fused_decode"):
        named_arms(["fused-decode"], Scheme.FP8_TENSOR)


def test_the_options_make_a_plan() -> None:
    plan = plan_of(env=["VLLM_DEEP_GEMM_WARMUP=skip", "all:AUTOTUNE_UNSPECIALIZE=1"])
    assert plan.servers == "together"
    assert plan.env == {"VLLM_DEEP_GEMM_WARMUP": "skip"}
    assert [arm.env for arm in plan.arms] == [{}, {"AUTOTUNE_UNSPECIALIZE": "1"}]
    assert [(p.concurrency, p.requests) for p in plan.points] == [(1, 12), (8, 32)]
    assert plan_of(arms="stock,all,static").servers == "one at a time"
    assert plan_of(cache="cold").servers == "one at a time"
    assert plan_of(cache="cold", servers="together").servers == "together"
    assert Plan.model_validate_json(plan.model_dump_json()).digest == plan.digest
    assert plan_of(seed=2).digest != plan_of().digest


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": 2}, "rounds"),
        ({"env": ["none:X=1"]}, "none"),
        ({"env": ["X"]}, "NAME=VALUE"),
        ({"prompts": "9:8"}, "shortest"),
        ({"prompts": "many"}, "SHORTEST:LONGEST"),
        ({"arms": "stock"}, "arms"),
        ({"arms": "stock,everything"}, "everything"),
        ({"servers": "both"}, "together"),
        ({"cache": "hot"}, "cache"),
        ({"requests": 4}, "concurrency 8"),
        ({"scheme": "bf16"}, r"'bf16'"),
        ({"rounds": 10**12}, "1000"),
        ({"env": ["=1"]}, "NAME=VALUE"),
        ({"env": ["all:A=\0"]}, "no environment variable"),
        ({"env": ["A=\udcff"]}, r"'\\udcff' is no environment variable in UTF-8"),
        ({"env": ["all:\udcff=1"]}, "no environment variable in UTF-8"),
        ({"serve_args": ["\0"]}, "NUL"),
        ({"serve_args": ["-x\udcff"]}, "no UTF-8"),
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"seed": MAX_SEED + 1}, "seed: Input should be less than or equal to 4294966"),
        ({"requests": 10**20}, "requests: Input should be less"),
        ({"prompts": "9" * 400}, "Input should be less"),
        ({"output": 10**400}, "output: Input should be"),
    ],
)
def test_what_is_no_plan_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises((UsageError, ValidationError), match=message):
        plan_of(**given)


def test_every_round_of_the_largest_seed_has_one_that_numpy_takes() -> None:
    plan = plan_of(seed=MAX_SEED, rounds=MAX_ROUNDS)
    assert round_seed(plan, 0) == MAX_SEED * 1000
    assert round_seed(plan, MAX_ROUNDS - 1) < 2**32
    seeds = {round_seed(plan_of(seed=seed), round_) for seed in (0, 1, 2) for round_ in range(MAX_ROUNDS)}
    assert len(seeds) == 3 * MAX_ROUNDS


def test_an_arm_without_a_winner_is_refused_before_its_plan_is_shown(tmp_path: Path) -> None:
    """Which one it is follows from the starter table, which a new recording may change."""
    without = [
        name
        for name, arm in known_arms(Scheme.FP8_BLOCK128).items()
        if arm.table not in (None, "published", "nothing") and not _has_winner(BLOCK, arm.table)
    ]
    assert without, "the starter table has a winner for every arm: take another table for this test"
    command = [sys.executable, "-m", "autotune", "lab", "run", "--scheme", "fp8_block128", "--show"]
    out = ["--out", str(tmp_path / "x"), "--arms"]
    refused = subprocess.run([*command, *out, without[0]], capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"no winning route for the arm '{without[0]}'" in refused.stderr
    shown = subprocess.run([*command, *out, "route"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    file = tmp_path / "plan.json"
    file.write_text(shown.stdout)
    again = subprocess.run(
        [*command, "--out", "x", "--plan", str(file)], capture_output=True, text=True, timeout=60
    )
    assert again.stdout == shown.stdout
    with pytest.raises(UsageError, match="is not the plan's"):
        check_arms(Plan.model_validate_json(shown.stdout), TENSOR)


def of_layer(table: RoutingTable, **changed: object) -> RoutingTable:
    return table.model_copy(update={"problem": table.problem.model_copy(update=changed)})


@pytest.mark.parametrize(
    ("table", "serve_args"),
    [
        (BLOCK, []),
        (of_layer(TENSOR, N=384), []),
        (of_layer(TENSOR, K=4096), ["--tensor-parallel-size", "2"]),
        (TENSOR.model_copy(update={"checkpoint": "compressed-tensors"}), []),
    ],
)
def test_a_table_of_another_layer_is_refused_unless_another_model_is_served(
    table: RoutingTable, serve_args: list[str]
) -> None:
    plan = plan_of(table=table.digest, serve_args=serve_args)
    with pytest.raises(UsageError, match="vLLM would take nothing from it"):
        check_arms(plan, table)
    check_arms(plan, table, own_model=True)


def test_a_table_of_a_part_of_the_layer_goes_with_servers_on_several_gpus() -> None:
    half = of_layer(TENSOR, N=384)
    for words in (["--tensor-parallel-size=2"], ["-tp", "2"]):
        check_arms(plan_of(table=half.digest, serve_args=words), half)
    some = of_layer(TENSOR, E=64, ep=2)
    check_arms(plan_of(table=some.digest, serve_args=["--enable-expert-parallel"]), some)


def test_a_plan_with_a_table_of_another_layer_is_not_shown(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "lab", "run", "--out", str(tmp_path / "x"), "--show"]
    command += ["--scheme", "fp8_block128", "--table", str(starter_table("fp8_tensor"))]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "vLLM would take nothing from it" in refused.stderr
    own = subprocess.run([*command, "--model-folder", "m"], capture_output=True, text=True, timeout=60)
    assert own.returncode == 0, own.stderr


def _has_winner(table: RoutingTable, to: Restriction | None) -> bool:
    assert to is not None
    try:
        return bool(winners(restricted(table, to)))
    except UsageError:
        return False


def test_a_folder_is_taken_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert whole_path(Path("x")) == Path(os.path.realpath(tmp_path)) / "x"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(AutotuneError, match="loop cannot be written"), Folder(whole_path(loop)).locked():
        pass
    with pytest.raises(UsageError, match=r"x\\udcff' is no UTF-8"):
        whole_path(tmp_path / "x\udcff")


def test_every_arm_goes_first_in_turn() -> None:
    plan = plan_of(arms="stock,all,static")
    firsts = [plan.order(turn)[0].name for turn in range(6)]
    assert firsts == ["stock", "all", "static"] * 2
    assert {arm.name for arm in plan.order(4)} == {"stock", "all", "static"}


def test_servers_that_start_one_at_a_time_serve_a_round_each(tmp_path: Path) -> None:
    plan = stand_in_plan(servers="one at a time")
    tasks = missing(plan, Folder(tmp_path), Place(boot="b", gpus=(), versions={}))
    named = [(round_, arm.name) for round_, _, arm in tasks]
    assert named == [
        (0, "stock"), (0, "stock"), (0, "fast"), (0, "fast"),
        (1, "fast"), (1, "fast"), (1, "stock"), (1, "stock"),
        (2, "stock"), (2, "stock"), (2, "fast"), (2, "fast"),
    ]  # fmt: skip
    together = missing(stand_in_plan(), Folder(tmp_path), Place(boot="b", gpus=(), versions={}))
    assert [arm.name for _, _, arm in together[:4]] == ["stock", "fast", "fast", "stock"]


def test_prompts_stay_in_their_range() -> None:
    words = bench_arguments(POINT, Path("/m"), 1, seed=7)
    options = dict(zip(words[:-2:2], words[1:-2:2], strict=True))
    middle = int(options["--random-input-len"])
    ratio = json.loads(options["--random-range-ratio"])["input"]
    assert middle * (1 - ratio) == pytest.approx(128, abs=1)
    assert middle * (1 + ratio) == pytest.approx(4096, abs=1)
    assert middle * (1 + ratio) <= 4096
    assert options["--num-warmups"] == "8"
    cold = bench_arguments(POINT, Path("/m"), 1, seed=7, ahead=0)
    assert cold[cold.index("--ready-check-timeout-sec") + 1] == "0"


LOG = """INFO Using TRITON Fp8 MoE backend out of potential backends
INFO Model loading took 29.08 GiB memory and 3.2 seconds
INFO Available KV cache memory: 25.5 GiB
INFO Graph capturing finished in 9 secs, took 0.62 GiB
INFO autotune: mode route, source x
WARNING Triton kernel JIT compilation during inference: fused_moe_kernel (device=0). This causes a spike
WARNING Triton kernel JIT compilation during inference: _topk. This causes a latency spike
INFO GET /health
"""


def test_the_log_tells_compilations_and_memory() -> None:
    assert compiles(LOG) == ("fused_moe_kernel", "_topk")
    assert memory(LOG) == {"weights_gib": 29.08, "kv_cache_gib": 25.5, "graphs_gib": 0.62}
    assert len(kept_lines(LOG)) == 4
    given = "INFO Initial free memory 114.04 GiB, reserved 30.0 GiB memory for KV Cache as specified by"
    assert memory(given) == {"kv_cache_gib": 30.0}


def pairs_of(plan: Plan, ratios: list[float], metric: str) -> list[Pair]:
    place = Place(boot="b", gpus=(), versions={})
    pairs = []
    for number, ratio in enumerate(ratios):
        results = {
            name: Result(
                plan=plan.digest, round=number, point=plan.points[0].name, arm=name, place=place, start="x",
                figures={metric: value}, compiles=(), compiles_since_ready=0, lines=(),
            )
            for name, value in (("stock", 200.0), ("fast", 200.0 * ratio))
        }  # fmt: skip
        pairs.append(Pair(number, plan.points[0], results))
    return pairs


@pytest.mark.parametrize(
    ("metric", "ratios", "outcome"),
    [
        ("output_throughput", [1.2, 1.19, 1.22], Outcome.BETTER),
        ("output_throughput", [0.9, 0.91, 0.92], Outcome.WORSE),
        ("output_throughput", [1.005, 1.004, 1.006], Outcome.NO_DIFFERENCE),
        ("output_throughput", [1.3, 0.99, 1.2], Outcome.NO_DIFFERENCE),
        ("output_throughput", [1.3, 1.3], Outcome.TOO_FEW),
        ("output_throughput", [], Outcome.TOO_FEW),
        ("p95_ttft_ms", [0.8, 0.81, 0.82], Outcome.BETTER),
        ("p95_ttft_ms", [1.1, 1.2, 1.3], Outcome.WORSE),
        ("p50_itl_ms", [1e-9, 0.0, 0.0], None),
    ],
)
def test_a_verdict_needs_rounds_and_an_interval_beyond_the_margin(
    metric: str, ratios: list[float], outcome: Outcome | None
) -> None:
    """Args:
    outcome: None where no ratio is one of figures.
    """
    plan = stand_in_plan()
    meant = next(m for m in METRICS if m.name == metric)
    found = compare(plan, pairs_of(plan, ratios, metric), "fast", "stock", plan.points[0], meant, 0.01)
    if outcome is None:
        assert (found.outcome, found.rounds, found.ratio) == (Outcome.TOO_FEW, 0, None)
        return
    assert found.outcome is outcome
    assert found.rounds == len(ratios)
    if ratios:
        assert found.ratio is not None
        assert found.low is not None
        assert found.high is not None
        assert min(ratios) - 1e-4 <= found.low <= found.ratio <= found.high <= max(ratios) + 1e-4
        # With three rounds the bounds are the range itself.
        if len(ratios) == 3:
            assert (found.low, found.high) == pytest.approx((min(ratios), max(ratios)), rel=1e-4)


def test_arms_and_commands_that_cannot_be_are_refused() -> None:
    plan = stand_in_plan().model_dump()
    with pytest.raises(ValidationError, match="no plugin that would read it"):
        stand_in_plan(arms=({**plan["arms"][0], "table": "published"}, plan["arms"][1]))
    with pytest.raises(ValidationError, match="begins with nothing"):
        stand_in_plan(server=("",))


def test_a_result_in_another_s_place_is_named_and_counts_as_missing(tmp_path: Path) -> None:
    plan, folder = stand_in_plan(), Folder(tmp_path)
    folder.open(plan)
    for round_ in range(plan.rounds):
        for point in plan.points:
            for arm in plan.arms:
                result = Result(
                    plan=plan.digest, round=round_, point=point.name, arm=arm.name,
                    place=Place(boot="b", gpus=(), versions={}), start="x", figures={"p95_ttft_ms": 1.0},
                    compiles=(), compiles_since_ready=0, lines=(),
                )  # fmt: skip
                folder.save(result, point, arm)
    assert (make_report(folder).pairs, make_report(folder).unusable) == (6, ())
    results = folder.path / "results"
    copied, cut = (results / f"r{n}-{plan.points[0].name}-fast.json" for n in (1, 2))
    copied.write_bytes((results / f"r0-{plan.points[0].name}-stock.json").read_bytes())
    cut.write_text(cut.read_text()[:50])
    found = make_report(folder)
    assert (found.pairs, found.unusable) == (4, (str(copied), str(cut)))
    assert found.to_json_data()["unusable"] == [str(copied), str(cut)]


def fill(folder: Folder, plan: Plan, figures: dict[str, float], **more: object) -> list[Path]:
    """A whole experiment in which every measurement came out the same; its files."""
    folder.open(plan)
    for round_ in range(plan.rounds):
        for point in plan.points:
            for arm in plan.arms:
                result = {
                    "plan": plan.digest, "round": round_, "point": point.name, "arm": arm.name,
                    "place": Place(boot="b", gpus=(), versions={}), "start": "x", "figures": figures,
                    "compiles": (), "compiles_since_ready": 0, "lines": (), **more,
                }  # fmt: skip
                folder.save(Result.model_validate(result), point, arm)
    return sorted((folder.path / "results").glob("*.json"))


FIGURES = {"p95_ttft_ms": 12.0, "output_throughput": 200.0, "p50_itl_ms": 0.0}


@pytest.mark.parametrize("field", ["figures", "again"])
@pytest.mark.parametrize(
    "value", ["0", "-1", "NaN", "Infinity", "1e300", "1e-300", '"12"', "true", "null", "[]"]
)
def test_a_figure_is_a_number_that_something_measured(tmp_path: Path, field: str, value: str) -> None:
    plan, folder = stand_in_plan(cache="cold"), Folder(tmp_path)
    broken = fill(folder, plan, FIGURES, again=FIGURES)[0]
    data = json.loads(broken.read_text())
    data[field]["p95_ttft_ms"] = "@"
    broken.write_text(json.dumps(data).replace('"@"', value))
    found = make_report(folder)
    assert (found.pairs, found.unusable) == (5, (str(broken),))
    assert len(cold_over_again(folder)) == 4
    assert len(missing(plan, folder, Place(boot="b", gpus=(), versions={}))) == 1
    json.dumps(found.to_json_data(), allow_nan=False)


def test_the_largest_and_the_least_figures_have_a_ratio(tmp_path: Path) -> None:
    plan, folder = stand_in_plan(), Folder(tmp_path)
    for file in fill(folder, plan, {"p95_ttft_ms": MOST}):
        if file.name.endswith("-fast.json"):
            file.write_text(file.read_text().replace(json.dumps(MOST), json.dumps(LEAST)))
    found = make_report(folder)
    assert (found.pairs, found.unusable) == (6, ())
    ratios = [row.ratio for row in found.comparisons if row.metric == "p95_ttft_ms"]
    assert ratios == pytest.approx([LEAST / MOST] * 2)


def test_cold_and_warm_leave_out_what_lacks_the_figure(tmp_path: Path) -> None:
    warm, cold = Folder(tmp_path / "warm"), Folder(tmp_path / "cold")
    fill(warm, stand_in_plan(), {"output_throughput": 200.0})
    fill(cold, stand_in_plan(cache="cold"), {}, again=FIGURES)
    assert cold_over_again(cold) == []
    with pytest.raises(UsageError, match="no arm and point in common"):
        cold_over_warm(warm, cold)


def test_a_folder_in_a_file_s_place_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    plan, folder = stand_in_plan(), Folder(tmp_path)
    place = fill(folder, plan, FIGURES)[3]
    folder.require_room(plan)
    content = Result.model_validate_json(place.read_text())
    place.unlink()
    place.mkdir()
    assert make_report(folder).unusable == (str(place),)
    with pytest.raises(ConflictError, match=f"{place.name} is a folder"):
        folder.require_room(plan)
    arm, point = plan.arm(content.arm), next(p for p in plan.points if p.name == content.point)
    with pytest.raises(AutotuneError, match=f"{place.name} cannot be written: Is a directory"):
        folder.save(content, point, arm)
    place.rmdir()
    for name in ("outputs.json", f"results/.r1-{point.name}-{arm.name}.json.part"):
        (tmp_path / name).mkdir()
        with pytest.raises(ConflictError, match="is a folder"):
            folder.require_room(plan)
        (tmp_path / name).rmdir()
    folder.require_room(plan)


def test_each_cold_server_stands_beside_itself(tmp_path: Path) -> None:
    plan = stand_in_plan(cache="cold", servers="together")
    folder, point = Folder(tmp_path), plan.points[0]
    folder.open(plan)
    for number, (first, again) in enumerate([(120.0, 100.0), (300.0, 100.0), (110.0, 200.0)]):
        for arm in plan.arms:
            result = Result(
                plan=plan.digest, round=number, point=point.name, arm=arm.name,
                place=Place(boot="b", gpus=(), versions={}), start="x", figures={"p95_ttft_ms": first},
                compiles=(), compiles_since_ready=0, lines=(),
                again={"p95_ttft_ms": again} if arm.name == "fast" else {},
            )  # fmt: skip
            folder.save(result, point, arm)
    (fast,) = cold_over_again(folder)
    assert (fast.arm, fast.warm_ms, fast.cold_ms) == ("fast", 100.0, 120.0)
    # By server: not the ratio of the medians.
    assert (fast.ratio, fast.lowest, fast.highest) == pytest.approx((1.2, 0.55, 3.0))


def test_cold_stands_beside_warm(tmp_path: Path) -> None:
    plans = {
        "warm": stand_in_plan(),
        "cold": stand_in_plan(cache="cold", servers="one at a time"),
    }
    folders = {state: Folder(tmp_path / state) for state in plans}
    for state, values in (("warm", [100.0, 110.0, 105.0]), ("cold", [120.0, 210.0, 126.0])):
        folders[state].open(plans[state])
        if state == "cold":
            with pytest.raises(UsageError, match="no arm and point in common"):
                cold_over_warm(folders["warm"], folders["cold"])
        point = plans[state].points[0]
        for number, value in enumerate(values):
            for arm in plans[state].arms:
                result = Result(
                    plan=plans[state].digest, round=number, point=point.name, arm=arm.name,
                    place=Place(boot="b", gpus=(), versions={}), start="x", figures={"p95_ttft_ms": value},
                    compiles=(), compiles_since_ready=0, lines=(),
                )  # fmt: skip
                folders[state].save(result, point, arm)
    stock, fast = cold_over_warm(folders["warm"], folders["cold"])
    assert (stock.arm, fast.arm, stock.warm_ms, stock.cold_ms) == ("stock", "fast", 105.0, 126.0)
    assert (stock.ratio, stock.lowest, stock.highest) == pytest.approx((1.2, 120 / 105, 2.0))
    with pytest.raises(UsageError, match="must be warm"):
        cold_over_warm(folders["cold"], folders["warm"])


def test_every_recorded_plan_can_be_run_again() -> None:
    """The table of each is the starter table, or lies among the results."""
    results = ROOT / "benchmarks" / "results"
    kept = {read_table(file).digest for file in results.glob("*/table.json")}
    kept |= {read_table(file).digest for file in (ROOT / "autotune" / "data" / "tables").glob("*.json")}
    plans = {file: Plan.model_validate_json(file.read_bytes()) for file in results.glob("*/plan.json")}
    assert len(plans) > 5
    assert [str(file) for file, plan in plans.items() if plan.table and plan.table not in kept] == []
