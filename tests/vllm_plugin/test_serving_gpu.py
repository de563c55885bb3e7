"""Faults that must cost speed only, in whole vLLM engines on a GPU: each starts, serves, names the cause."""

from __future__ import annotations

import importlib.util
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.vocabulary.candidate import FusedDecodeCandidate, FusedTritonCandidate, Tile
from autotune.vocabulary.environment import Environment
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, http_service, raw_server
from tests.factories import make_published, make_table, triton
from tests.vllm_plugin.faults import NOWHERE, READ_ONLY, TOO_LARGE
from tests.vllm_plugin.whole_engines import Served, serve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
PROBLEM = Problem.parse("E=128,N=768,K=2048,topk=8,scheme=fp8_block128")
TILE = triton(16, 128, 128, swap_ab=True, num_warps=4, num_stages=3)
OURS = FusedTritonCandidate(
    gate_up=Tile(block_m=16, block_n=128, block_k=128, num_warps=4, num_stages=3),
    down=Tile(block_m=16, block_n=128, block_k=128, num_warps=4, num_stages=3),
)


@pytest.fixture(scope="module")
def here() -> Environment:
    """This machine, as the plugin names it."""
    from autotune.measure.detect import detect_environment

    return detect_environment()


def body(environment: Environment, **changes: Any) -> dict[str, Any]:
    table = make_table(problem=PROBLEM, environment=environment, winner=TILE, tokens=(1, 8, 64), **changes)
    return encode_tables([make_published(table, revision=7)])


@contextmanager
def script(answer: Callable[[Script], None]) -> Iterator[dict[str, str]]:
    said = Script()
    answer(said)
    with http_service(said) as url:
        yield {"AUTOTUNE_URL": url}


def _broken(data: dict[str, Any]) -> dict[str, Any]:
    """Another time, the same digest."""
    text = json.dumps(data)
    assert '"p50_us": 17.2' in text
    broken: dict[str, Any] = json.loads(text.replace('"p50_us": 17.2', '"p50_us": 17.1'))
    return broken


def _silent(connection: socket.socket) -> None:
    connection.recv(1000)


FAULTS: dict[str, str] = {
    "down": "gave no usable answer: ",
    "silent": "no complete answer within 1 s",
    "500": "it answered HTTP 500",
    "cut": "gave no usable answer: ",
    "lying": "does not match its content",
    "wrong GPU": "no table is for ",
    "another vLLM": "vllm {vllm} (table: 0.24.0)",
    "unfit tile": "bytes of shared memory",
    "read-only cache": "the answer is not kept for later: ",
    "another plugin": "already replaced",
}


def fault(name: str, here: Environment, folder: Path, stack: ExitStack) -> dict[str, str]:
    """The environment variables that bring a fault about."""

    def table(environment: Environment, winner: Any = TILE) -> dict[str, str]:
        made = make_table(problem=PROBLEM, environment=environment, winner=winner, tokens=(1, 8, 64))
        path = folder / "table.json"
        path.write_text(json.dumps(made.to_json_data()))
        return {"AUTOTUNE_TABLE": str(path)}

    def service(answer: Callable[[Script], None]) -> dict[str, str]:
        return stack.enter_context(script(answer))

    def cut(said: Script) -> None:
        said.says(body(here))
        said.body = said.body[:200]

    match name:
        case "down":
            return {"AUTOTUNE_URL": NOWHERE}
        case "silent":
            return {"AUTOTUNE_URL": stack.enter_context(raw_server(_silent)), "AUTOTUNE_TIMEOUT": "1"}
        case "500":
            return service(lambda said: setattr(said, "status", 500))
        case "cut":
            return service(cut)
        case "lying":
            return service(lambda said: said.says(_broken(body(here))))
        case "wrong GPU":
            return table(here.model_copy(update={"gpu": "NVIDIA_H100_80GB_HBM3"}))
        case "another vLLM":
            return table(here.model_copy(update={"vllm": "0.24.0"}))
        case "unfit tile":
            return table(here, TOO_LARGE)
        case "read-only cache":
            answer = service(lambda said: said.says(body(here), etag='"x"'))
            return {**answer, "AUTOTUNE_CACHE": READ_ONLY}
        case _:
            return {**table(here), "VLLM_PLUGINS": "random_weights,another,autotune"}


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_engine_starts_and_serves_and_one_line_names_the_cause(
    name: str, here: Environment, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        served = serve(tmp_path, **fault(name, here, tmp_path, stack))
    assert [len(tokens) for tokens in served.tokens] == [12, 12]
    said = FAULTS[name].format(vllm=here.vllm)
    assert len(served.saying(said)) == 1, served.lines


def test_a_backend_that_raises_at_call_time_leaves_the_table_and_the_rest_serves(
    here: Environment, tmp_path: Path
) -> None:
    made = make_table(
        problem=PROBLEM, environment=here, winner=OURS, tokens=(8, 1024), firsts={8: 1, 1024: 512}
    )
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made.to_json_data()))
    served = serve(tmp_path, "random_weights,raising,autotune", AUTOTUNE_TABLE=str(path))
    assert [len(tokens) for tokens in served.tokens] == [12, 12]
    (line,) = served.warnings()
    assert "fused_triton leaves the table" in line
    assert "RuntimeError: misaligned address" in line


DECODE = FusedDecodeCandidate(
    block_m=16, gate_up_block_n=32, gate_up_block_k=128, down_block_n=64, down_block_k=128
)


def test_single_tokens_are_taken_from_the_gate_on_and_say_the_same(here: Environment, tmp_path: Path) -> None:
    """With and without our gate: until a token differs, the same log probabilities."""
    made = make_table(problem=PROBLEM, environment=here, winner=DECODE, tokens=(8, 64), firsts={8: 1})
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made.to_json_data()))
    taken, left = (
        serve(tmp_path, AUTOTUNE_TABLE=str(path), SERVE_ALONE="1", AUTOTUNE_GATE=gate) for gate in "10"
    )
    said = "a single token's gate, choice and layer are two launches"
    assert len(taken.saying(said)) == 1, taken.lines
    assert left.saying(said) == set()
    assert taken.warnings() == left.warnings() == set()
    for ours, theirs, first, second in zip(
        taken.tokens, left.tokens, taken.logprobs, left.logprobs, strict=True
    ):
        alike = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
        assert alike >= 2, (ours, theirs)
        assert max(abs(a - b) for a, b in zip(first[:alike], second[:alike], strict=True)) <= 0.1


def test_a_whole_engine_routes_and_an_excluded_plugin_says_nothing(here: Environment, tmp_path: Path) -> None:
    made = make_table(problem=PROBLEM, environment=here, winner=OURS, tokens=(8, 64), firsts={8: 1})
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made.to_json_data()))
    served = serve(tmp_path, AUTOTUNE_TABLE=str(path))
    assert served.warnings() == set()
    assert [line for line in served.lines if "routing per call for" in line]
    stock = serve(tmp_path, "random_weights", AUTOTUNE_TABLE=str(path))
    assert stock.lines == []
    assert [len(tokens) for tokens in stock.tokens] == [12, 12]


ENGINES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "V1 model runner": ({}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    "V2 model runner": ({}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    "no graphs, not compiled": ({"enforce_eager": True}, {}),
    "piecewise graphs": ({"compilation_config": {"cudagraph_mode": "PIECEWISE"}}, {}),
    "prompts in chunks": ({"max_num_batched_tokens": 256, "max_num_seqs": 8}, {}),
    "prompts in chunks of one token": ({"long_prefill_token_threshold": 1}, {}),
}
"""Options and environment of an engine, by what is special about it; graphs are full and piecewise else.

A prompt that comes token by token is read by decode steps, so by our decode kernel.
"""


@pytest.mark.timeout(900)
def test_routed_engines_read_as_stock_ones(here: Environment, tmp_path: Path) -> None:
    """Decode steps and prefills go to our kernels, and the logits stay vLLM's but for rounding.

    How far rounding brings random weights apart, vLLM itself shows with and without graphs and compiler.
    """
    made = make_table(
        problem=PROBLEM, environment=here, winner=DECODE, tokens=(8, 64, 1024), firsts={8: 1, 1024: 256}
    )
    *decodes, prefill = made.routes
    made = made.model_copy(update={"routes": (*decodes, prefill.model_copy(update={"winner": OURS}))})
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made.to_json_data()))

    def engine(name: str, plugins: str) -> Served:
        options, env = ENGINES[name]
        folder = tmp_path / f"{list(ENGINES).index(name)}-{plugins.count(',')}"
        folder.mkdir()
        return serve(folder, plugins, SERVE_OPTIONS=json.dumps(options), AUTOTUNE_TABLE=str(path), **env)

    with ThreadPoolExecutor(6) as pool:
        stock = {name: pool.submit(engine, name, "random_weights") for name in ENGINES}
        routed = {name: pool.submit(engine, name, "random_weights,autotune") for name in ENGINES}
    theirs = {name: ran.result() for name, ran in stock.items()}
    ours = {name: ran.result() for name, ran in routed.items()}
    rounding = max(one.apart(theirs["V1 model runner"]) for one in theirs.values())
    apart = {name: one.apart(theirs[name]) for name, one in ours.items()}
    print(f"apart: stock engines at most {rounding:.4f}; routed from stock {apart}")
    for name, one in ours.items():
        assert theirs[name].lines == []
        assert one.warnings() == set(), name
        said = one.saying("routing per call for")
        assert any("fused_decode" in line and "fused_triton" in line for line in said), (name, one.lines)
    assert 0 < rounding < 0.4
    assert max(apart.values()) <= min(2 * rounding, 0.5), apart
