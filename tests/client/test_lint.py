"""Findings about table files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.client.lint import (
    lint_file,
    lint_table,
    lint_vllm_config,
    read_vllm_config,
    vllm_config_faults,
)
from autotune.vocabulary.candidate import FlashinferCutlassCandidate, TritonCandidate
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.wire import encode_tables
from tests.factories import H200, make_published, make_table

NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}


def test_a_good_table_has_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(make_table().to_json_data()))
    assert lint_file(path) == []
    path.write_text(json.dumps(encode_tables([make_published()])))
    assert lint_file(path) == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("{", "not readable JSON"),
        ("[]", "must be a JSON object"),
        ('{"schema_version": 9}', "schema 9"),
        (json.dumps({**make_table().to_json_data(), "margin": 0.5}), "does not match its content"),
        (json.dumps({**make_table().to_json_data(), "routes": []}), "malformed at routes"),
    ],
)
def test_a_broken_file(tmp_path: Path, text: str, finding: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    (found,) = lint_file(path)
    assert finding in found


def test_no_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        lint_file(tmp_path / "absent.json")


def changed(**fields: object) -> RoutingTable:
    table = make_table(tokens=(8,))
    route = table.routes[0].model_copy(update=fields)
    return table.model_copy(update={"routes": (route,)})


def test_figures_that_contradict_each_other() -> None:
    route = make_table(tokens=(8,)).routes[0]
    assert route.speedup is not None
    weak = route.speedup.model_copy(update={"low": 1.005})
    assert "does not clear the margin" in lint_table(changed(speedup=weak))[0]
    odd = route.speedup.model_copy(update={"low": 1.5})
    assert "below its lower bound" in lint_table(changed(speedup=odd))[0]
    slow = route.winner_timing.model_copy(update={"p95_us": 1.0})
    assert "winner: p95 is below p50" in lint_table(changed(winner_timing=slow))[0]
    assert "a win on 1 measurement" in lint_table(changed(evidence=("a" * 64,)))[0]
    assert "content digests" in lint_table(changed(evidence=("1", "2", "3")))[0]


def test_tiles_that_triton_cannot_compile() -> None:
    route = make_table(tokens=(8,)).routes[0]
    assert isinstance(route.winner, TritonCandidate)
    for change in ({"block_m": 48}, {"num_warps": 3}):
        tile = route.winner.tile.model_copy(update=change)
        found = lint_table(changed(winner=route.winner.model_copy(update={"tile": tile})))
        ((name, value),) = change.items()
        assert any(f"{name} {value} is no power of two: no GPU can run it" in line for line in found), found


def test_an_environment_that_matches_nothing() -> None:
    found = lint_table(make_table(environment=H200.model_copy(update={"vllm": None})))
    assert found == ["the environment names no vllm version: it matches no vLLM"]
    (unnamed,) = lint_table(make_table(baseline=FlashinferCutlassCandidate()))
    assert "FlashInfer is used" in unnamed


def test_vllm_config_files() -> None:
    good = {"triton_version": "3.6.0", "1": TILE, "64": TILE}
    assert lint_vllm_config(NAME, good) == []
    assert "not an integer" in lint_vllm_config(NAME, {**good, "x": TILE})[0]
    assert "SWAP_AB would fail" in lint_vllm_config(NAME, {**good, "2": {**TILE, "SWAP_AB": True}})[0]
    assert (
        "BLOCK_SIZE_M is missing"
        in lint_vllm_config(NAME, {**good, "2": {"BLOCK_SIZE_N": 1, "BLOCK_SIZE_K": 1}})[0]
    )
    assert "smallest key is 96" in lint_vllm_config(NAME, {"triton_version": "3.6.0", "96": TILE})[0]
    assert "no triton_version" in lint_vllm_config(NAME, {"1": TILE})[0]
    assert "not a vLLM tuned-config file name" in lint_vllm_config("E=1.json", good)[0]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('{"1": {%s, "BLOCK_SIZE_M": 0}}', "1: BLOCK_SIZE_M is not an integer that Triton takes"),
        ('{"1": {%s, "BLOCK_SIZE_M": 99999}}', "a power of two from 8 to 1024"),
        ('{"1": {%s, "BLOCK_SIZE_N": 100000000000000000000000000}}', "BLOCK_SIZE_N"),
        ('{"1": {%s, "BLOCK_SIZE_K": 96}}', "BLOCK_SIZE_K"),
        ('{"1": {%s, "num_warps": 0}}', "num_warps"),
        ('{"1": {%s, "num_warps": 3}}', "num_warps"),
        ('{"1": {%s, "num_warps": 4.0}}', "num_warps"),
        ('{"1": {%s, "num_warps": true}}', "num_warps"),
        ('{"1": {%s, "GROUP_SIZE_M": 0}}', "GROUP_SIZE_M"),
        ('{"0": {%s}}', "key '0' is no token count"),
        ('{"1": {%s}, "01": {}}', "keys '1' and '01' are one token count"),
        ('{"1": {}, "1": {%s}}', "the file: '1' is given twice"),
        ('{"1": {"BLOCK_SIZE_M": 16, %s}}', "1: 'BLOCK_SIZE_M' is given twice"),
        ('{"triton_version": 5, "1": {%s}}', "its triton_version is no text"),
    ],
)
def test_what_no_kernel_can_run_with(tmp_path: Path, text: str, finding: str) -> None:
    path = tmp_path / NAME
    tile = {name: value for name, value in TILE.items() if f'"{name}"' not in text or "twice" in finding}
    path.write_text(text % json.dumps(tile)[1:-1])
    found = lint_file(path)
    assert any(finding in sentence for sentence in found), found
    assert bool(vllm_config_faults(read_vllm_config(path.read_text()))) is ("triton_version" not in finding)


def test_what_amds_files_hold_is_good() -> None:
    amd = {**TILE, "waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2, "num_stages": 2, "num_warps": 8}
    assert lint_vllm_config(NAME, {"triton_version": "3.6.0", "1": amd}) == []
