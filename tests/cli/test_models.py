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
from autotune.vocabulary.catalogue import MODELS
from autotune.vocabulary.problem import Problem


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from autotune.cli import main; main()", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


RECORDED = {
    name: ["h200"] for name in ("qwen-moe-fp8", "qwen-moe-fp8-tensor", "qwen-moe-bf16", "mixtral-8x7b-fp8")
} | {"deepseek-r1": ["h200", "tp8"]}


def test_the_list_names_every_model_with_dimensions_and_source() -> None:
    result = run()
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for model in MODELS:
        (row,) = (line.split() for line in lines if line.split()[:1] == [model.name])
        assert row[1:5] == [str(n) for n in (model.experts, model.intermediate, model.hidden, model.topk)]
        assert row[5:7] == [model.act, model.scheme.value]
        assert row[7:] == RECORDED.get(model.name, [])
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
    there = [{"gpu": "NVIDIA_H200", "evidence": True, "table": True, "tp": 1}]
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
    assert shipped()
    for (text, checkpoint), there in shipped().items():
        problem = Problem.parse(text)
        for entry in there:
            found = find_evidence(problem, entry.gpu)
            assert any(m.checkpoint == checkpoint for m in (found[1] if found else ())) is entry.evidence
            of = (problem, entry.gpu, checkpoint)
            tables = [t for t in starter().tables if (t.problem, t.environment.gpu, t.checkpoint) == of]
            assert bool(tables) is entry.table


def test_recorded_is_told_by_the_layer_and_not_by_the_name(tmp_path: Path) -> None:
    def recorded(*arguments: str) -> list[str]:
        (entry,) = json.loads(run(*arguments, "--json").stdout)
        return [found["gpu"] for found in entry["recorded"]]

    assert recorded("qwen-moe-fp8") == ["NVIDIA_H200"]
    for split in (("--ep", "8"), ("--tp", "2")):
        assert recorded("qwen-moe-fp8", *split) == []
        assert "recorded " not in run("qwen-moe-fp8", *split).stdout
    config = {
        "num_experts": 128, "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "quantization_config": {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]
        },
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert recorded(str(file)) == ["NVIDIA_H200"]
    del config["quantization_config"]
    config["moe_intermediate_size"] = 640
    file.write_text(json.dumps(config))
    assert recorded(str(file)) == []
    (r1,) = json.loads(run("deepseek-r1", "--json").stdout)
    assert [found["tp"] for found in r1["recorded"]] == [8]
    assert "h200 tp8" in " ".join(run("deepseek-r1").stdout.split())
    assert recorded("deepseek-r1", "--tp", "8") == ["NVIDIA_H200"]


def test_a_split_needs_a_model_and_a_size() -> None:
    for arguments in (("--tp", "4"), ("--ep", "2")):
        refused = run(*arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "--tp and --ep go with --model" in refused.stderr
    for arguments in (("--tp", "0"), ("qwen-moe-fp8", "--ep", "-1")):
        assert run(*arguments).returncode == 2


def test_bad_usage_exits_2_with_what_to_do() -> None:
    unknown = run("qwen-moe-fp9")
    assert unknown.returncode == 2
    assert "Did you mean 'qwen-moe-fp8'?" in unknown.stderr
    split = run("qwen-moe-fp8", "--tp", "4")
    assert split.returncode == 2
    assert "Possible --tp: 1, 2, 3, 6" in split.stderr
