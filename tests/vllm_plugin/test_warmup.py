"""Warm-up from the table, against vLLM's real source and Triton's real compiler, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.vocabulary.wire import encode_tables
from tests.factories import make_published
from tests.vllm_plugin.conftest import HERE, ROOT, VERSIONS, _clean_environment, main_table

pytest.importorskip("torch")
pytest.importorskip("triton")


def inside(version: str, vllm_path: dict[str, list[str]], cache: Path, *arguments: object, **env: str) -> Any:
    """What `warm.py` says with that vLLM on its path."""
    done = subprocess.run(
        [sys.executable, str(HERE / "warm.py"), *map(str, arguments)],
        env={
            **_clean_environment(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *vllm_path[version], str(HERE)]),
            "CUDA_VISIBLE_DEVICES": "",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "TRITON_CACHE_DIR": str(cache),
            "AUTOTUNE_CACHE": str(cache),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_expected_variants_are_those_that_vllm_asks_for(
    vllm_path: dict[str, list[str]], tmp_path: Path, version: str
) -> None:
    found = inside(version, vllm_path, tmp_path, "requests", "fp8_tensor,fp8_channel,fp8_block128,bf16")
    assert len(found) == 5
    for scheme, seen in found.items():
        assert (seen["unexpected"], seen["never"], seen["left out"]) == ([], [], []), scheme
        assert seen["expected"] == seen["asked"] > 4
    assert found["fp8_tensor"]["expected"] == 30
    assert found["fp8_tensor unspecialized"]["expected"] == 14


def table_file(version: str, folder: Path) -> Path:
    path = folder / "table.json"
    path.write_text(json.dumps(encode_tables([make_published(main_table(version), revision=7)])))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_start_compiles_what_the_table_reaches_and_a_second_reads_it(
    vllm_path: dict[str, list[str]], tmp_path: Path, version: str
) -> None:
    most = 5
    found = inside(version, vllm_path, tmp_path / "cache", "serve", table_file(version, tmp_path), 200, most)
    assert found["states"]["warmup"] == ["applied", ""]
    assert any("vLLM has not run its Triton MoE kernel" in line for line in found["unused"])
    needed = found["held"]
    (start,) = [line for line in found["first"] if f"1 to {most} tokens need" in line]
    assert f"need {needed} variants of fused_moe_kernel, 2 of them loaded; at most 200 s" in start
    (end,) = [line for line in found["first"] if "compiled and" in line]
    assert f": {needed - 2} of {needed - 2} variants compiled and 0 read from Triton's cache in" in end
    assert found["compiled in the worker"] == 0
    assert found["compiled later"] == 0
    (again,) = [line for line in found["second"] if "Triton's cache" in line]
    assert f"all {needed - 2} variants were in Triton's cache, read in" in again
    assert found["vllm's own ran"] == 3


@pytest.mark.slow
def test_the_time_limit_lets_the_server_start(vllm_path: dict[str, list[str]], tmp_path: Path) -> None:
    version = VERSIONS[0]
    # With vLLM's kernel as it is, 1 and 2 tokens ask for variants of their own.
    own = {"AUTOTUNE_UNSPECIALIZE": "0"}
    table = table_file(version, tmp_path)
    found = inside(version, vllm_path, tmp_path / "cache", "serve", table, 0.5, 2, **own)
    (end,) = [line for line in found["first"] if "compiled and" in line]
    assert "2 are left to their first use, as the time limit was reached" in end
    assert found["vllm's own ran"] == 3


@pytest.mark.slow
def test_it_can_be_switched_off(vllm_path: dict[str, list[str]], tmp_path: Path) -> None:
    version = VERSIONS[0]
    found = inside(version, vllm_path, tmp_path / "cache", "serve", table_file(version, tmp_path), 0, 2)
    assert "warmup" not in found["states"]
    assert found["unused"]
    assert not any("warm-up" in line for line in found["unused"])
    assert found["vllm's own ran"] == 1
