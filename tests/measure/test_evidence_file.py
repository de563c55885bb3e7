"""Recorded evidence as files, and the runner that answers from it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from autotune.measure.evidence_file import (
    RecordingHeader,
    find_evidence,
    read_evidence,
    shipped_evidence,
    write_evidence,
)
from autotune.measure.replay import ReplayRunner
from autotune.measure.task import Task
from autotune.vocabulary.errors import NotFoundError, TableError, UsageError
from autotune.vocabulary.measurement import Measurement, Stage, Status
from tests.factories import BASELINE, H100, OTHER_PROBLEM, PROBLEM, make_measurement, triton

HEADER = RecordingHeader(command="autotune sweep --gpu h200", machine="a test")
FAST, SLOW = triton(16), triton(32)


def recording() -> list[Measurement]:
    made = [
        make_measurement(tokens=tokens, candidate=c, stage=Stage.SCREEN, offset_s=tokens)
        for tokens in (1, 8)
        for c in (FAST, SLOW)
    ]
    made += [make_measurement(tokens=8, candidate=FAST, process=p, offset_s=60 + p) for p in range(3)]
    made.append(make_measurement(tokens=8, candidate=triton(64), stage=Stage.SCREEN, status=Status.CRASHED))
    return made


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    assert write_evidence(path, HEADER, recording()) == 8
    header, read = read_evidence(path)
    assert header == HEADER
    assert read == recording()
    assert [m.digest for m in read] == [m.digest for m in recording()]


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "another-name.jsonl.gz"
    write_evidence(first, HEADER, recording())
    write_evidence(second, HEADER, read_evidence(first)[1])
    assert first.read_bytes() == second.read_bytes()


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 8]) + data[middle + 8 :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"no gzip at all",
        flipped,
        lambda data: gzip.compress(b""),
        lambda data: gzip.compress(b'{"kind":"other","command":"x","machine":"y"}\n'),
        lambda data: gzip.compress(gzip.decompress(data).replace(b'"version":1', b'"version":2')),
        lambda data: gzip.compress(gzip.decompress(data).replace(b'"status":"ok"', b'"status":"fine"')),
        lambda data: gzip.compress(gzip.decompress(data) + b"{not json\n"),
    ],
)  # fmt: skip
def test_a_corrupt_file_is_refused_whole(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "one.jsonl.gz"
    write_evidence(path, HEADER, recording())
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(TableError, match=r"one\.jsonl\.gz is no readable evidence") as caught:
        read_evidence(path)
    assert caught.value.hint


def test_a_measurement_that_does_not_fit_is_named_by_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl.gz"
    write_evidence(path, HEADER, [make_measurement(), make_measurement(process=1)])
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[2] = lines[2].replace('"tokens":8', '"tokens":-8')
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(TableError, match=r"line 3, tokens: Input should be greater than 0"):
        read_evidence(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.jsonl\.gz cannot be read"):
        read_evidence(tmp_path / "none.jsonl.gz")


def test_finding_takes_one_problem_on_one_gpu(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl.gz"
    write_evidence(path, HEADER, [*recording(), make_measurement(problem=OTHER_PROBLEM)])
    found = find_evidence(PROBLEM, "NVIDIA_H200", path)
    assert found is not None
    assert found[1] == recording()
    assert find_evidence(PROBLEM, H100.gpu, path) is None
    assert find_evidence(PROBLEM.model_copy(update={"N": 1536}), "NVIDIA_H200", path) is None


def test_shipped_recordings_are_whole() -> None:
    for source in shipped_evidence():
        header, measurements = read_evidence(source)
        assert header.command
        assert measurements


def replay() -> ReplayRunner:
    return ReplayRunner(HEADER, recording())


def task(stage: Stage, process: int = 0) -> Task:
    return Task(PROBLEM, "fp8", 8, BASELINE, (FAST, SLOW, triton(128)), stage, "another-run", process=process)


def test_replay_answers_with_the_recorded_measurements_themselves() -> None:
    screened = list(replay().measure(task(Stage.SCREEN)))
    assert [m.candidate for m in screened] == [FAST, SLOW], "nothing for what was never recorded"
    assert {m.digest for m in screened} < {m.digest for m in recording()}
    assert {m.run for m in screened} == {"run-1"}
    finals = list(replay().measure(task(Stage.FINAL, process=2)))
    assert [(m.candidate, m.process) for m in finals] == [(FAST, 2)]


def test_replay_knows_what_is_on_record() -> None:
    runner = replay()
    assert runner.tokens() == [1, 8]
    assert {c.digest for c in runner.recorded(PROBLEM, 1)} == {FAST.digest, SLOW.digest}
    assert triton(64) in runner.recorded(PROBLEM, 8)
    assert runner.baseline(PROBLEM, "fp8", 8) == BASELINE
    with pytest.raises(NotFoundError, match="no measurements at 4 tokens") as caught:
        runner.baseline(PROBLEM, "fp8", 4)
    assert "1, 8" in caught.value.hint


def test_replay_names_its_recording() -> None:
    text = replay().machine.recording
    for part in ("8 measurements", "2026-11-29", "a test", "vllm 0.25.1", "triton 3.6.0", "580.159.04"):
        assert part in text
    later = ReplayRunner(HEADER, [*recording(), make_measurement(offset_s=86_400)])
    assert "2026-11-29 to 2026-11-30" in later.machine.recording
