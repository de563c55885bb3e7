"""The model that stand-ins are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.labs import vllm_path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder, written with vLLM's own libraries."""
    folder = tmp_path_factory.mktemp("lab") / "model"
    code = "import pathlib, sys, autotune.lab.model as m; m.write_model(pathlib.Path(sys.argv[1]), 'fp8_tensor', 2)"  # noqa: E501
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": vllm_path()}
    subprocess.run([sys.executable, "-c", code, str(folder)], env=env, check=True, timeout=200)
    return folder
