"""Fetch what the vLLM tests need: vLLM's Python source without its binaries, and what that source imports.

    python tools/fetch_vllm_sources.py 0.25.1 0.33.0

puts `.cache/vllm/<version>/` (only *.py, *.json and the metadata of the wheel) and
`.cache/vllm/deps-cp3XX/` (packages that vLLM imports, torch aside) beside this repository's files. What is
there already is kept. Nothing is installed into the running environment: the tests put both folders on
`sys.path` of the processes that import vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "vllm"
VERSIONS = ("0.25.1",)
KEEP = (".py", ".json")

PACKAGES = (
    "numpy", "packaging", "regex", "psutil", "pyzmq", "urllib3", "pydantic", "cbor2", "transformers",
    "huggingface-hub", "httpx", "httpx2", "httpcore2", "truststore", "h11", "idna", "tqdm", "pyyaml",
    "safetensors", "tokenizers", "aiohttp", "requests", "certifi", "openai-harmony", "openai", "sniffio",
    "anyio", "pillow", "prometheus-client", "cachetools", "cloudpickle", "msgspec", "py-cpuinfo", "pybase64",
    "uvloop", "apache-tvm-ffi", "fastapi<0.137", "starlette", "annotated-doc", "partial-json-parser",
    "llguidance", "einops",
)  # fmt: skip
ALONE = ("xgrammar",)
"""Installed without dependencies: they would bring torch with CUDA."""

PLATFORMS = (
    "manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_34_x86_64", "manylinux_2_35_x86_64",
    "manylinux_2_24_x86_64", "manylinux1_x86_64",
)  # fmt: skip
"""Platform tags that vLLM's x86 wheels have carried; the machine's own does not matter for reading source."""


def deps_folder() -> Path:
    """The dependency folder of the running Python."""
    return CACHE / f"deps-cp{sys.version_info.major}{sys.version_info.minor}"


def fetch_source(version: str) -> Path:
    """Unpack one vLLM version's source; returns its folder, to be put on `sys.path`.

    Raises:
        SystemExit: if pip cannot download the wheel.
    """
    target = CACHE / version
    if target.is_dir():
        return target
    with _staging() as staging:
        print(
            f"vLLM {version}: downloading the wheel (some hundred MB, 35 to 60 MB are kept)", file=sys.stderr
        )
        platforms = [word for tag in PLATFORMS for word in ("--platform", tag)]
        _pip(
            "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--python-version", "3.12",
            "--implementation", "cp", "--abi", "cp312", "--abi", "abi3", *platforms,
            "--dest", str(staging / "wheel"), f"vllm=={version}",
        )  # fmt: skip
        (wheel,) = (staging / "wheel").glob("*.whl")
        unpacked = staging / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(KEEP) or ".dist-info/" in name:
                    archive.extract(name, unpacked)
        _place(unpacked, target)
    return target


def fetch_deps() -> Path:
    """Install what vLLM's source imports into a folder of its own; returns the folder.

    Raises:
        SystemExit: if pip cannot install it.
    """
    target = deps_folder()
    stamp = hashlib.sha256(" ".join((*PACKAGES, *ALONE)).encode()).hexdigest()
    marker = target / ".complete"
    if marker.is_file() and marker.read_text() == stamp:
        return target
    with _staging() as staging:
        print("Packages that vLLM imports: installing (about 400 MB, torch not among them)", file=sys.stderr)
        folder = staging / "deps"
        # Both in one folder, so that no package of this environment is touched.
        _pip("install", "--only-binary=:all:", "--target", str(folder), *PACKAGES)
        _pip("install", "--only-binary=:all:", "--no-deps", "--target", str(folder), *ALONE)
        (folder / ".complete").write_text(stamp)
        if target.exists():
            shutil.rmtree(target)
        _place(folder, target)
    return target


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        again = f"pip failed ({done.returncode}). Run again: what was fetched before is kept."
        sys.exit(f"{done.stdout}\n{again}\nThe command was: {' '.join(command)}")


@contextlib.contextmanager
def _staging() -> Iterator[Path]:
    """A folder on the same file system, so that a finished part appears at once or not at all."""
    CACHE.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=CACHE))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _place(folder: Path, target: Path) -> None:
    try:
        os.rename(folder, target)
    except OSError:
        # Another process placed it first.
        if not target.is_dir():
            raise


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = f"vLLM versions (default: {' '.join(VERSIONS)})"
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=known)
    started = time.monotonic()
    for version in parser.parse_args().versions:
        print(fetch_source(version))
    print(fetch_deps())
    print(f"done in {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
