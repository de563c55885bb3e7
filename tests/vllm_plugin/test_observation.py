"""What `AUTOTUNE_MODE=observe` counts is logged at the end of a process, however vLLM started it; no vLLM."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.vllm_plugin.observation import Observation


def observe(log: str) -> None:
    """A worker: three calls of one layer."""
    logging.basicConfig(level=logging.INFO, filename=log, format="%(message)s", force=True)
    experts = SimpleNamespace(apply=lambda *args, **named: None)
    Observation().watch(experts, "a layer", lambda tokens: "1..4 triton" if tokens <= 4 else "fallback")
    for tokens in (2, 3, 8):
        experts.apply(topk_ids=SimpleNamespace(shape=(tokens, 2)))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_worker_logs_its_counts_at_its_end(how: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    worker = multiprocessing.get_context(how).Process(target=observe, args=(str(log),))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    said = [line for line in log.read_text().splitlines() if "observed: " in line]
    assert said == [
        "autotune: observed: a layer: 1..4 triton: 2 calls",
        "autotune: observed: a layer: fallback: 1 calls",
    ]
