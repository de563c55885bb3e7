"""The parameters of the look-ups, and the query that they come to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autotune.vocabulary.decide import Query
from autotune.vocabulary.environment import Environment, Match, gpu_name
from autotune.vocabulary.errors import UsageError
from autotune.vocabulary.measurement import Checkpoint
from autotune.vocabulary.problem import Problem
from autotune.vocabulary.table import PublishedTable
from autotune.vocabulary.traffic import TrafficProfile

VERSIONS = ("capability", "vllm", "torch", "triton", "cuda", "flashinfer")
_COMPLETE = frozenset(VERSIONS) - {"flashinfer"}


def _whole(value: object) -> object:
    if not re.fullmatch(r"[0-9]{1,9}", str(value), re.ASCII) or int(str(value)) < 1:
        raise ValueError("must be a whole number from 1 to 999999999")
    return int(str(value))


Whole = Annotated[int, BeforeValidator(_whole)]
ChannelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
# Of a name that may not exist, more would only be echoed.
GpuName = Annotated[str, Field(max_length=128)]
Version = Annotated[str | None, Field(max_length=64)]


class GpuParameters(BaseModel):
    """Parameters of GET /routing/tables."""

    model_config = ConfigDict(frozen=True)

    gpu: GpuName | None = Field(default=None, description="GPU: h200, or vLLM's name such as NVIDIA_H200")
    channel: ChannelName = "stable"


class TableParameters(BaseModel):
    """Parameters of GET /routing/table."""

    model_config = ConfigDict(frozen=True)

    shape: str = Field(description="the layer: E=128,N=768,K=2048,topk=8,scheme=fp8_block128")
    gpu: GpuName = Field(description="GPU: h200, or vLLM's name such as NVIDIA_H200")
    channel: ChannelName = "stable"
    checkpoint: Checkpoint | None = None
    match: Literal["exact", "compatible"] = "exact"
    capability: Version = None
    vllm: Version = None
    torch: Version = None
    triton: Version = None
    cuda: Version = None
    flashinfer: Version = None
    dtype: str | None = Field(default=None, max_length=64, description="as in vLLM's file names: fp8_w8a8")
    block_shape: str | None = Field(
        default=None, max_length=64, description="as in vLLM's file names: [128,128]"
    )


class RoutingParameters(TableParameters):
    """Parameters of GET /routing."""

    tokens: Whole = Field(description="rows entering the layer, at least 1")
    concurrency: Whole | None = Field(default=None, description="also answer the static choice for it")


def build_query(parameters: TableParameters, tables: Sequence[PublishedTable]) -> Query:
    """The query that the parameters mean.

    Without any version, the newest table on record answers. Versions that are named must match; those
    left out are taken from the newest table that has the named ones, unless all but FlashInfer are named:
    then a FlashInfer left out means that there is none.

    Raises:
        ShapeError, UnknownNameError, UsageError: for what does not parse or contradicts itself.
    """
    problem = Problem.parse(parameters.shape)
    _check_file_name_parts(parameters, problem)
    gpu = gpu_name(parameters.gpu)
    concurrency = parameters.concurrency if isinstance(parameters, RoutingParameters) else None
    return Query(
        problem=problem,
        environment=_environment(parameters, problem, gpu, tables),
        gpu=gpu,
        checkpoint=parameters.checkpoint,
        compatible=parameters.match == "compatible",
        profile=TrafficProfile.concurrency(concurrency) if concurrency else None,
    )


def _environment(
    parameters: TableParameters, problem: Problem, gpu: str, tables: Sequence[PublishedTable]
) -> Environment | None:
    given = parameters.model_fields_set & set(VERSIONS)
    if not given:
        return None
    named = {name: getattr(parameters, name) for name in given}
    named = {name: None if value in ("", "none") else value for name, value in named.items()}
    if given >= _COMPLETE:
        return _made({"gpu": gpu, **named})
    fitting = [t for t in tables if t.problem == problem and t.environment.gpu == gpu]
    if parameters.checkpoint is not None:
        fitting = [t for t in fitting if t.checkpoint == parameters.checkpoint]
    fitting.sort(key=lambda t: t.revision or 0)
    candidates = [(t.environment, _made({**t.environment.model_dump(), **named})) for t in fitting]
    if not candidates:
        return None
    agreeing = [filled for of_table, filled in candidates if of_table.match(filled) is Match.EXACT]
    return agreeing[-1] if agreeing else candidates[-1][1]


def _made(fields: dict[str, str | None]) -> Environment:
    try:
        return Environment.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"Parameter {first['loc'][0]}: {first['msg']}.", "A compute capability looks like 9.0."
        ) from error


def _check_file_name_parts(parameters: TableParameters, problem: Problem) -> None:
    scheme = problem.scheme
    if parameters.dtype is not None and parameters.dtype != scheme.vllm_dtype:
        expected = scheme.vllm_dtype or "no dtype at all"
        raise UsageError(
            f"dtype={parameters.dtype} contradicts scheme={scheme.value}, for which vLLM writes {expected}.",
            "Leave dtype out, or correct one of the two.",
        )
    if parameters.block_shape is None:
        return
    match = re.fullmatch(r"\[?\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\]?", parameters.block_shape, re.ASCII)
    if match is None:
        raise UsageError(
            f"block_shape={parameters.block_shape} does not parse.", "Write block_shape=[128,128]."
        )
    if (int(match[1]), int(match[2])) != scheme.block_shape:
        expected = str(list(scheme.block_shape)) if scheme.block_shape else "no block_shape at all"
        raise UsageError(
            f"block_shape={parameters.block_shape} contradicts scheme={scheme.value}, for which vLLM writes "
            f"{expected}.",
            "Leave block_shape out, or correct one of the two.",
        )
