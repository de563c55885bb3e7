"""`autotune models`, run as the installed program is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.cli.shipped import shipped
from autotune.client.sources import starter
from autotune.measure.evidence_file import find_evidence
from autotune.vocabulary.catalogue import MODELS, resolve_problem


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from autotune.cli import main; main()", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


RECORDED = {"qwen-moe-fp8", "qwen-moe-fp8-tensor", "qwen-moe-bf16"}


def test_the_list_names_every_model_with_dimensions_and_source() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for model in MODELS:
        (row,) = (line.split() for line in lines if line.split()[:1] == [model.name])
        assert row[1:5] == [str(n) for n in (model.experts, model.intermediate, model.hidden, model.topk)]
        assert row[5:7] == [model.act, model.scheme.value]
        assert row[7:] == (["h200"] if model.name in RECORDED else [])
        (first,) = (n for n, line in enumerate(lines) if line.startswith(f"{model.name}: "))
        about = " ".join(" ".join(lines[first : first + 6]).split())
        assert model.source in about
    assert any("MXFP4" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_json_is_for_machines() -> None:
    result = run("--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    listed = json.loads(result.stdout)
    assert [entry["name"] for entry in listed] == [model.name for model in MODELS]
    there = [{"gpu": "NVIDIA_H200", "evidence": True, "table": True}]
    assert [entry["recorded"] for entry in listed[:3]] == [there, there, there]
    assert listed[0]["problem"] == "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"


def test_one_model_is_shown_as_it_is_split() -> None:
    result = run("deepseek-ai/DeepSeek-R1", "--tp", "8", "--json")
    assert result.returncode == 0, result.stderr
    (entry,) = json.loads(result.stdout)
    assert entry["problem"] == "E=256,N=256,K=7168,topk=8,scheme=fp8_block128"
    assert "E=32,N=2048" in run("deepseek-r1", "--tp", "8", "--ep", "8").stdout


def test_a_config_is_shown_or_refused_by_reason(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"num_experts": 8, "hidden_size": 512, "moe_intermediate_size": 256, "num_experts_per_tok": 2}
    file.write_text(json.dumps(config))
    assert "E=8,N=256,K=512,topk=2,scheme=bf16" in run(str(file)).stdout
    file.write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    refused = run(str(file))
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "quantized with awq" in refused.stderr
    assert "next:" in refused.stderr


def test_a_device_or_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        refused = run(path)
        assert refused.returncode == 2
        assert "no regular file" in refused.stderr


def test_what_is_shipped_matches_what_the_files_hold() -> None:
    for model, there in shipped().items():
        problem = resolve_problem(model)[0]
        for entry in there:
            assert (find_evidence(problem, entry.gpu) is not None) is entry.evidence
            tables = [t for t in starter().tables if (t.problem, t.environment.gpu) == (problem, entry.gpu)]
            assert bool(tables) is entry.table


def test_bad_usage_exits_2_with_what_to_do() -> None:
    unknown = run("qwen-moe-fp9")
    assert unknown.returncode == 2
    assert "Did you mean 'qwen-moe-fp8'?" in unknown.stderr
    split = run("qwen-moe-fp8", "--tp", "4")
    assert split.returncode == 2
    assert "Possible --tp: 1, 2, 3, 6" in split.stderr
