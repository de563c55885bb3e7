"""The recorded evidence and the starter tables that come with the package belong together."""

from __future__ import annotations

import json

import pytest

from autotune.choose.routes import PROCESSES, build_table
from autotune.measure.evidence_file import read_evidence, shipped_evidence
from autotune.vocabulary.measurement import Stage, Status
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.traffic import DEFAULT_TOKENS

RECORDINGS = {source.name.removesuffix(".jsonl.gz"): source for source in shipped_evidence()}


@pytest.fixture(scope="module", params=sorted(RECORDINGS))
def recording(request):
    header, measurements = read_evidence(RECORDINGS[request.param])
    folder = __import__("importlib.resources").resources.files("autotune") / "data" / "tables"
    table = RoutingTable.from_json_data(json.loads((folder / f"{request.param}.json").read_text()))
    return header, measurements, table


def test_both_models_are_recorded() -> None:
    assert {"nvidia_h200-qwen-moe-fp8", "nvidia_h200-qwen-moe-fp8-tensor"} <= set(RECORDINGS)


def test_the_evidence_gives_the_starter_table(recording) -> None:
    _, measurements, table = recording
    first = measurements[0]
    again = build_table(
        measurements,
        problem=first.problem,
        environment=first.environment,
        checkpoint=first.checkpoint,
        margin=table.margin,
    )
    assert again.digest == table.digest


def test_every_cited_measurement_is_recorded(recording) -> None:
    _, measurements, table = recording
    known = {m.digest for m in measurements}
    cited = {d for r in table.routes for d in (*r.evidence, *(e for a in r.alternatives for e in a.evidence))}
    assert cited <= known


def test_the_recording_is_whole(recording) -> None:
    header, measurements, table = recording
    assert "H200" in header.machine
    assert header.command.startswith("autotune sweep")
    assert [r.tokens for r in table.routes] == list(DEFAULT_TOKENS)
    assert len({m.digest for m in measurements}) == len(measurements)
    noise = []
    for tokens in DEFAULT_TOKENS:
        finals = {m.process for m in measurements if m.tokens == tokens and m.stage is Stage.FINAL}
        assert finals == set(range(PROCESSES))
        own = [m for m in measurements if m.tokens == tokens and m.candidate == m.baseline and m.times]
        assert own, "the baseline against itself shows the noise"
        noise += [abs(m.times.p50_us / m.times.baseline_p50_us - 1) for m in own if m.times is not None]
    # bf16 at 4,096 tokens, once: both grew slower by an eighth meanwhile (docs/measuring.md).
    assert sum(n > 0.03 for n in noise) <= 1
    assert max(noise) < 0.07
    assert all(m.relative_error is not None for m in measurements if m.status is Status.OK)
