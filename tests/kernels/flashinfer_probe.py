"""Whether the FlashInfer module of this machine can run a scheme, found out in a process of its own.

    python flashinfer_probe.py bf16

A module that was built in part has traps in place of the kernels that were left out; one call into such a
trap ends the process that makes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def _probe(scheme: str) -> tuple[int, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__, scheme],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr[-2000:]


def require_flashinfer(scheme: str) -> None:
    """Skip the test where the module traps; fail it where the call fails in another way."""
    code, errors = _probe(scheme)
    if code < 0:
        pytest.skip(f"FlashInfer's module here was built without {scheme}: signal {-code}")
    assert code == 0, errors


def main(scheme: str) -> None:
    import torch

    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.weights import make_inputs, make_weights
    from autotune.vocabulary.candidate import FlashinferCutlassCandidate
    from autotune.vocabulary.problem import Problem

    problem = Problem.parse(f"E=8,N=256,K=512,topk=2,scheme={scheme}")
    backend = get_backend("flashinfer_cutlass")
    call = backend.bind(backend.prepare(make_weights(problem, 1)), FlashinferCutlassCandidate())
    for tokens in (1, 64, 2048):
        call(make_inputs(problem, tokens, 1))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
