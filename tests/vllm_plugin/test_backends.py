"""Our backends over vLLM's real source, and what becomes of them where a library is missing or unknown."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")

LOOK = """
import json, sys
from autotune.kernels.backends.libraries import EXPERTS, library_support
from autotune.measure.detect import absent_libraries, flashinfer_version, vllm_version
from tests.factories import H200
vllm, flashinfer = vllm_version(), flashinfer_version()
here = H200.model_copy(update={"vllm": vllm, "flashinfer": flashinfer})
print(json.dumps({
    "vllm": vllm, "flashinfer": flashinfer, "absent": absent_libraries(here),
    "support": {name: library_support(name).reason for name in EXPERTS},
}))
"""


def run(*arguments: str, path: list[str], **variables: str) -> Any:
    """A process of its own with these folders to import from; what it printed last, as JSON."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOTUNE_", "VLLM_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**kept, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(path), **variables},
        capture_output=True, text=True, timeout=280, check=False, cwd=HERE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def package(folder: Path, name: str, version: str, distribution: str = "", **modules: str) -> None:
    """Install a package: modules by dotted name (`_` for the package itself) with their source."""
    for dotted, source in {"_": "", **modules}.items():
        parts = [name, *([] if dotted == "_" else dotted.split("__"))]
        for depth in range(1, len(parts) + 1):
            place = folder.joinpath(*parts[:depth])
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").touch()
        folder.joinpath(*parts, "__init__.py").write_text(source)
    info = folder / f"{(distribution or name).replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution or name}\nVersion: {version}\n"
    )


@pytest.fixture(scope="module", params=("0.25.1", "0.33.0"))
def real(request: pytest.FixtureRequest, vllm_path: dict[str, list[str]]) -> dict[str, Any]:
    """What backends_inside.py found in one vLLM version."""
    version = request.param
    if version not in vllm_path:
        pytest.skip(f"vLLM {version} is not among AUTOTUNE_VLLM_VERSIONS")
    folders = json.dumps([*vllm_path[version], str(HERE), str(ROOT)])
    answer: dict[str, Any] = run(str(HERE / "backends_inside.py"), folders, path=[str(ROOT)])
    return answer


@needs_torch
def test_vllm_has_the_surface_that_is_driven(real: dict[str, Any]) -> None:
    assert real["selection"] == ""
    assert real["libraries"]["triton"] == real["libraries"]["vllm_cutlass"] == ""
    assert "pip install flashinfer-python" in real["libraries"]["flashinfer_cutlass"]
    assert "install_deepgemm.sh" in real["libraries"]["deep_gemm"]


@needs_torch
def test_vllms_experts_take_the_up_half_first(real: dict[str, Any]) -> None:
    found = real["activations"]
    assert found["triton"] is found["cutlass"] is found["wrong_order_differs"] is found["restored"] is True
    assert found["gelu"] == "vLLM has no gelu that takes the up half first"


@needs_torch
def test_the_baseline_is_vllms_own_choice(real: dict[str, Any]) -> None:
    assert real["selections"] == {
        "bf16 unquantized ep=1": "triton",
        "fp8_tensor fp8 ep=1": "flashinfer_cutlass",
        "fp8_block128 fp8 ep=1": "triton",
        "fp8_block128 fp8 ep=2": "flashinfer_cutlass",
        "fp8_channel compressed-tensors ep=1": "vllm_cutlass",
    }


def test_without_the_libraries_every_backend_is_absent_with_a_hint() -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    found = run("-c", LOOK, path=[str(ROOT)])
    assert (found["vllm"], found["absent"]) == (None, [])
    assert len(found["support"]) == 4
    for reason in found["support"].values():
        assert "pip install vllm" in reason


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", ("vLLM 9.9.9", "fused_moe", "ModuleNotFoundError", "pip install vllm==")),
        ("raise OSError('libcudart.so.12: cannot open')", ("OSError", "libcudart.so.12")),
    ],
    ids=["unknown", "broken"],
)
def test_an_unknown_or_broken_vllm_is_absent_with_the_reason(
    tmp_path: Path, source: str, words: tuple[str, ...]
) -> None:
    package(tmp_path, "vllm", "9.9.9", _=source)
    package(tmp_path, "flashinfer", "0.6.13", "flashinfer-python")
    found = run("-c", LOOK, path=[str(tmp_path), str(ROOT)])
    assert (found["vllm"], found["flashinfer"]) == (None, None)
    for reason in (found["absent"][0], *found["support"].values()):
        for word in words:
            assert word in reason
    assert "FlashInfer 0.6.13 is installed" in found["absent"][1]


@needs_torch
def test_without_vllm_the_baseline_is_a_stand_in(tmp_path: Path) -> None:
    package(tmp_path, "vllm", "9.9.9")
    ask = (
        "import json; from autotune.kernels.backends.registry import baseline_candidate as ask;"
        "from autotune.kernels.specs import fits; from tests.factories import H200;"
        "from autotune.vocabulary.problem import Problem, Scheme;"
        "made = [(Problem(E=128, N=768, K=2048, topk=8, scheme=s), m) for s in Scheme for m in (1, 4096)];"
        "asked = [(ask(p, 'fp8', m), p) for p, m in made];"
        "print(json.dumps([[str(c), fits(c, p, H200).reason] for c, p in asked]))"
    )
    found = run("-c", ask, path=[str(tmp_path), str(ROOT)])
    assert {reason for _, reason in found} == {""}
    for few, many in zip(found[::2], found[1::2], strict=True):
        assert few[0].startswith("fused_triton 16x64")
        assert many[0].startswith("fused_triton 64x64")


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(
    "modules",
    [
        {"fused_moe": "", "_": "def fp4_quantize(): ..."},
        {"_": "raise RuntimeError('built for another torch')"},
    ],
    ids=["unknown", "broken"],
)
def test_an_unknown_or_broken_flashinfer_is_absent_with_the_reason(
    vllm_path: dict[str, list[str]], tmp_path: Path, modules: dict[str, str]
) -> None:
    package(tmp_path, "flashinfer", "0.0.9", "flashinfer-python", **modules)
    version = next(iter(vllm_path))
    found = run(
        "-c", LOOK, path=[str(tmp_path), *vllm_path[version], str(ROOT)], VLLM_HAS_FLASHINFER_CUBIN="1"
    )
    assert (found["vllm"], found["flashinfer"]) == (version, None)
    [reason] = found["absent"]
    assert "FlashInfer 0.0.9 is installed" in reason
    assert "pip install" in reason
    assert found["support"]["triton"] == ""
    assert "FlashInfer 0.0.9" in found["support"]["flashinfer_cutlass"]
