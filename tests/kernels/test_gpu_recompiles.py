"""vLLM's kernel without specialization on the token count, and warm-up, on a real GPU with vLLM."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys

import pytest

from autotune.vocabulary.problem import Problem, Scheme

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
SCHEMES = [Scheme.FP8_TENSOR, Scheme.FP8_BLOCK128, Scheme.BF16]
COUNTS = (1, 8, 64, 512, 4096)


def qwen(scheme: Scheme) -> Problem:
    return Problem(E=128, N=768, K=2048, topk=8, scheme=scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_unspecialized_kernel_gives_the_same_bits_at_the_same_speed(scheme: Scheme) -> None:
    from autotune.measure.recompiles import KernelPair, compile_pairs, same_bits

    pair = KernelPair(qwen(scheme))
    compiled = compile_pairs([pair], COUNTS)
    assert compiled.left == 0, compiled.failures
    for tokens in COUNTS:
        for seed in (3, 4):
            original, again, other = pair.outputs(tokens, seed)
            assert same_bits(original, again)
            assert same_bits(original, other)
        # A wide net for a loaded machine; benchmarks/recompiles.py gives the interval.
        ratio = statistics.median(pair.times(tokens, 5, blocks=6).log_ratios())
        assert ratio > -0.02, (tokens, ratio)


@pytest.mark.parametrize(
    ("scheme", "unspecialized"), [*((scheme, False) for scheme in Scheme), (Scheme.FP8_TENSOR, True)]
)
def test_nothing_compiles_after_a_warm_up(
    scheme: Scheme, unspecialized: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: enumerate without launching, compile in other processes, then launch every count."""
    import torch
    from triton.runtime import driver

    from autotune.kernels.ahead.warmup import warm_up
    from autotune.kernels.backends.registry import get_backend
    from autotune.kernels.backends.vllm_gemms import TritonGemms, reachable
    from autotune.kernels.unspecialized import VLLM_SCALARS, without_specialization
    from autotune.kernels.weights import LayerInputs, make_inputs, make_weights
    from autotune.measure.compiles import counting_variants
    from autotune.measure.recompiles import kernel_in_place

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    most = 2048
    problem = Problem(E=16, N=384, K=1024, topk=4, scheme=scheme)
    import vllm.model_executor.layers.fused_moe.fused_moe as module

    # A kernel of its own in either case: what earlier tests compiled is not in its memory.
    names = VLLM_SCALARS if unspecialized else ()
    kernel = without_specialization(module.fused_moe_kernel, names)
    backend = get_backend("triton")
    prepared = backend.prepare(make_weights(problem, 1))
    whole = make_inputs(problem, most, 1)

    def run(tokens: int) -> None:
        part = LayerInputs(whole.hidden[:tokens], whole.topk_ids[:tokens], whole.topk_weights[:tokens])
        backend.bind(prepared, None)(part)  # no tile is forced: vLLM looks it up

    with kernel_in_place(kernel):
        gemms = TritonGemms(problem)
        found = reachable(gemms, most)
        assert not found.loaded
        target = driver.active.get_current_target()
        done = warm_up(list(found.missing.values()), target, 300)
        assert (done.left, done.from_disk, done.compiled) == (0, 0, found.total), done
        assert len(reachable(gemms, most).missing) == 0
        with counting_variants() as later:
            for tokens in range(1, most + 1):
                run(tokens)
            torch.cuda.synchronize()
        assert [name for name in later.names if name == "fused_moe_kernel"] == []
        # A second start reads everything.
        kernel.device_caches.clear()
        again = warm_up(list(reachable(gemms, most).missing.values()), target, 300)
        assert again.from_disk == again.variants == found.total


def audited(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "jit", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_audit_runs_both_forms_of_vllms_kernel_and_says_what_each_compilation_cost() -> None:
    shape = "E=16,N=384,K=1024,topk=4,scheme=fp8_tensor"
    command = [
        "audit",
        "vllm",
        "vllm_unspecialized",
        "--shape",
        shape,
        "--run",
        "--tokens",
        "1,2,3,16,17,64,65",
    ]
    before, after = json.loads(_json(audited(*command, "--json")))
    scalars = {name for v in before["variants"] for name in v["scalars"] if v["cause"] == "scalar"}
    assert scalars <= {"EM", "num_valid_tokens"}
    assert before["recompiles"] > 0 == after["recompiles"]
    for found in (before, after):
        kernels = [v for v in found["variants"] if v["kernel"].endswith("fused_moe_kernel")]
        assert kernels
        # On an empty cache; 0.4 to 2.5 s each were seen on an H200.
        assert all(v["seconds"] > 0.05 for v in kernels), kernels
    assert "fused_moe_kernel: " in audited(*command)


def test_our_kernels_compile_nothing_for_a_count_when_run() -> None:
    shape = "E=16,N=384,K=1024,topk=4,scheme=fp8_tensor"
    targets = ("fused_triton", "fused_decode", "rope_fp8", "rope_fp8_naive")
    counts = ",".join(map(str, [*range(1, 40), 64, 65, 513, 1000, 2048]))
    found = json.loads(
        _json(audited("audit", *targets, "--shape", shape, "--run", "--tokens", counts, "--json"))
    )
    assert [a["target"] for a in found] == list(targets)
    assert [a["recompiles"] for a in found] == [0, 0, 0, 2]
    assert all(v["seconds"] > 0 for a in found for v in a["variants"])


def test_the_warm_up_command_leaves_nothing_to_compile() -> None:
    found = json.loads(
        _json(audited("warm-up", "--model", "qwen-moe-fp8", "--through", "300", "--run", "--json"))
    )
    assert found["compiled_later"] == 0
    assert found["variants"] == found["warm_up"]["compiled"] > 0
    assert found["warm_up"]["left"] == found["warm_up"]["from_disk"] == 0
    assert found["stock"] > 0


def _json(text: str) -> str:
    """What comes after vLLM's own lines."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line in ("[", "{"))
    return "\n".join(lines[start:])
