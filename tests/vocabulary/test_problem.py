"""The text form of a problem, and vLLM's file names as partial problems."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.vocabulary.errors import ShapeError, UnknownNameError, UsageError
from autotune.vocabulary.problem import (
    ACTIVATIONS,
    PartialProblem,
    Problem,
    Scheme,
    vllm_config_file_name,
)

QWEN = "E=128,N=768,K=2048,topk=8,scheme=fp8_block128"


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    experts = draw(st.integers(1, 4096))
    ep = draw(st.integers(1, 64))
    return Problem(
        E=experts,
        N=draw(st.integers(1, 1 << 20)),
        K=draw(st.integers(1, 1 << 20)),
        topk=draw(st.integers(1, min(256, experts * ep))),
        scheme=draw(st.sampled_from(Scheme)),
        act=draw(st.sampled_from(ACTIVATIONS)),
        ep=ep,
    )


@given(problems())
def test_text_and_json_come_back_unchanged(problem: Problem) -> None:
    assert Problem.parse(str(problem)) == problem
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert hash(pickle.loads(pickle.dumps(problem))) == hash(problem)


@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(problem: Problem, random: object) -> None:
    pairs = str(problem).split(",")
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert Problem.parse(",".join(pairs)) == problem


@given(st.text(max_size=60))
def test_any_text_is_a_problem_or_a_named_error(text: str) -> None:
    try:
        problem = Problem.parse(text)
    except UsageError as error:
        shown = str(error)
    else:
        shown = str(Problem.parse(str(problem)))
    assert shown


def test_defaults_are_left_out() -> None:
    assert str(Problem.parse(QWEN + ",act=silu,ep=1")) == QWEN
    assert str(Problem.parse(QWEN + ",ep=2,act=gelu")) == QWEN + ",act=gelu,ep=2"


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "expected KEY=VALUE"),
        ("E=8,N", 4, "expected KEY=VALUE"),
        ("E=8,M=4", 4, "unknown key 'M'"),
        ("e=8", 0, "unknown key 'e'"),
        ("E=8,E=8", 4, "given twice"),
        ("E=8,N=", 6, "no value"),
        ("E=8,N=0,K=1,topk=1,scheme=bf16", 6, "from 1 to"),
        ("E=8,N=-1,K=1,topk=1,scheme=bf16", 6, "from 1 to"),
        ("E=8,N=1.5,K=1,topk=1,scheme=bf16", 6, "from 1 to"),
        ("E=8,N=٣,K=1,topk=1,scheme=bf16", 6, "from 1 to"),
        ("E=8,N=1,K=99999999999,topk=1,scheme=bf16", 10, "from 1 to"),
        ("E=8, N=1", 4, "unknown key ' N'"),
        ("E=8,N=1,K=1,topk=9,scheme=bf16", 17, "exceeds the 8 experts"),
        ("E=8,N=1,K=1,topk=1", 18, "scheme= is missing"),
        ("E=8,N=1,K=1,topk=1,scheme=bf16,", 31, "expected KEY=VALUE"),
    ],
)
def test_what_does_not_parse_names_its_position(text: str, position: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        Problem.parse(text)
    assert caught.value.position == position
    assert caught.value.http_status == 400
    assert "for example" in caught.value.hint


def test_unknown_schemes_and_activations_get_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError) as scheme:
        Problem.parse(QWEN.replace("fp8_block128", "fp8_block"))
    assert scheme.value.nearest == "fp8_block128"
    with pytest.raises(UnknownNameError) as act:
        Problem.parse(QWEN + ",act=swigluoia")
    assert act.value.nearest == "swigluoai"


def test_topk_may_exceed_the_local_experts_but_not_all() -> None:
    assert Problem.parse("E=4,N=64,K=64,topk=8,scheme=bf16,ep=2").global_experts == 8
    with pytest.raises(ValidationError, match="exceeds the 8 experts"):
        Problem(E=4, N=64, K=64, topk=9, scheme=Scheme.BF16, ep=2)


def test_sizes_follow_activation_and_scheme() -> None:
    gated = Problem.parse("E=8,N=100,K=64,topk=2,scheme=bf16")
    plain = Problem.parse("E=8,N=100,K=64,topk=2,scheme=fp8_tensor,act=relu2_no_mul")
    assert (gated.gate_up_rows, gated.weight_bytes_per_expert) == (200, 300 * 64 * 2)
    assert (plain.gate_up_rows, plain.weight_bytes_per_expert) == (100, 200 * 64)


@pytest.mark.parametrize(
    ("text", "device", "name"),
    [
        (
            QWEN,
            "NVIDIA_H200",
            "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        ("E=8,N=64,K=64,topk=2,scheme=bf16", "NVIDIA_L4", "E=8,N=64,device_name=NVIDIA_L4.json"),
        (
            "E=8,N=64,K=64,topk=2,scheme=fp8_channel",
            "NVIDIA_H200_NVL",
            "E=8,N=64,device_name=NVIDIA_H200,dtype=fp8_w8a8.json",
        ),
    ],
)
def test_file_names_as_vllm_writes_them(text: str, device: str, name: str) -> None:
    problem = Problem.parse(text)
    assert vllm_config_file_name(problem, device) == name
    partial = PartialProblem.parse_file_name(name)
    assert partial.covers(problem)
    assert not partial.covers(problem.model_copy(update={"N": problem.N + 1}))


def test_a_file_name_covers_problems_that_differ_in_what_it_leaves_out() -> None:
    name = "E=8,N=64,device_name=NVIDIA_H200,dtype=fp8_w8a8.json"
    partial = PartialProblem.parse_file_name(name)
    covered = [
        f"E=8,N=64,K={k},topk={topk},scheme={scheme}"
        for k in (64, 128)
        for topk in (1, 2)
        for scheme in ("fp8_tensor", "fp8_channel")
    ]
    assert all(partial.covers(Problem.parse(text)) for text in covered)
    assert not partial.covers(Problem.parse("E=8,N=64,K=64,topk=2,scheme=fp8_block128"))
    assert not partial.covers(Problem.parse("E=8,N=64,K=64,topk=2,scheme=bf16"))


@pytest.mark.parametrize(
    "name",
    [
        "E=8,N=64.json",
        "E=0,N=64,device_name=NVIDIA_L4.json",
        "E=8,N=64,device_name=NVIDIA_L4",
        "E=8,N=64,device_name=../x.json",
        "N=64,E=8,device_name=NVIDIA_L4.json",
        "",
    ],
)
def test_other_file_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a vLLM tuned-config file name"):
        PartialProblem.parse_file_name(name)
