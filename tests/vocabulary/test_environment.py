"""Which environments a table is valid for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from autotune.vocabulary.environment import GPU_ALIASES, Environment, Match, gpu_name
from autotune.vocabulary.errors import UnknownNameError
from tests.factories import H200


def test_a_table_matches_its_own_environment() -> None:
    assert H200.match(H200.model_copy()) is Match.EXACT
    assert H200.differences(H200) == {}


@pytest.mark.parametrize(
    ("field", "value"), [("vllm", "0.26.0"), ("torch", "2.13.0"), ("triton", "3.9.0"), ("cuda", "12.8")]
)
def test_another_library_version_is_stale(field: str, value: str) -> None:
    other = H200.model_copy(update={field: value})
    assert H200.match(other) is Match.STALE
    assert H200.differences(other) == {field: (getattr(H200, field), value)}


def test_a_version_that_the_asker_lacks_is_stale() -> None:
    assert H200.match(H200.model_copy(update={"triton": None})) is Match.STALE


@pytest.mark.parametrize("gpu", ["NVIDIA_H200_NVL", "NVIDIA_GH200_480GB", "NVIDIA_H200_MIG_1g.18gb"])
def test_other_gpus_never_match(gpu: str) -> None:
    other = H200.model_copy(update={"gpu": gpu, "triton": "3.9.0"})
    assert H200.match(other) is Match.NONE


def test_another_capability_never_matches() -> None:
    assert H200.match(H200.model_copy(update={"capability": "10.0"})) is Match.NONE


def test_flashinfer_counts_only_if_the_table_used_it() -> None:
    asking = H200.model_copy(update={"flashinfer": "0.6.13"})
    assert H200.match(asking) is Match.EXACT
    using = H200.model_copy(update={"flashinfer": "0.6.13"})
    assert using.match(asking) is Match.EXACT
    assert using.match(H200) is Match.STALE


def test_names_and_versions_are_normalized() -> None:
    read = Environment(gpu="NVIDIA H200", capability="9.0", torch="2.11.0+cu130", vllm="0.25.1", triton="")
    assert (read.gpu, read.torch, read.triton) == ("NVIDIA_H200", "2.11.0", None)


@pytest.mark.parametrize("fields", [{"capability": "sm90"}, {"gpu": ""}, {"driver": "580"}])
def test_malformed_environments_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Environment.model_validate({"gpu": "NVIDIA_H200", "capability": "9.0", **fields})


def test_str_names_what_a_person_needs() -> None:
    assert str(H200) == "NVIDIA_H200 (sm_90; vllm 0.25.1, torch 2.11.0, triton 3.6.0, cuda 13.0)"


@pytest.mark.parametrize("text", ["h200", "H200", " h200 ", "nvidia_h200", "NVIDIA H200", "NVIDIA_H200"])
def test_one_gpu_has_many_spellings(text: str) -> None:
    assert gpu_name(text) == "NVIDIA_H200"


def test_every_alias_resolves_to_a_distinct_device() -> None:
    assert len({gpu_name(alias) for alias in GPU_ALIASES}) == len(GPU_ALIASES)
    assert gpu_name("h200_nvl") == gpu_name("H200 NVL") == "NVIDIA_H200_NVL"


def test_any_nvidia_device_name_is_taken() -> None:
    assert gpu_name("NVIDIA Some New GPU") == "NVIDIA_Some_New_GPU"


@pytest.mark.parametrize(
    ("text", "nearest"), [("h2000", "h200"), ("", None), ("NVIDIA_", None), ("h200nvl", "h200-nvl")]
)
def test_unknown_gpus_get_the_known_names(text: str, nearest: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        gpu_name(text)
    assert "h200" in str(caught.value)
    if nearest:
        assert caught.value.nearest == nearest
