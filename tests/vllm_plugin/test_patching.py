"""Patches, import hooks and the tile mapping, without vLLM."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.vllm_plugin import imports
from autotune.vllm_plugin.patching import Patch
from autotune.vllm_plugin.surface import (
    SurfaceChangedError,
    require_function,
    require_source,
)
from autotune.vllm_plugin.tile_map import TileConfig, TileMap, take_swap_ab


def plus(amount: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda original: lambda value: original(value) + amount


def owner() -> Any:
    def function(value: int) -> int:
        return value

    return SimpleNamespace(function=function, __name__="owner")


def test_a_patch_comes_off_again() -> None:
    module = owner()
    original = module.function
    patch = Patch(module, "function", plus(10))
    patch.apply()
    patch.apply()
    assert module.function(1) == 11
    patch.unapply()
    patch.unapply()
    assert module.function is original


def test_a_second_patch_of_ours_replaces_the_first() -> None:
    module = owner()
    original = module.function
    Patch(module, "function", plus(10)).apply()
    second = Patch(module, "function", plus(100))
    second.apply()
    assert module.function(1) == 101
    second.unapply()
    assert module.function is original


@pytest.mark.parametrize("we_come_first", [True, False])
def test_another_plugins_patch_stays_whole(we_come_first: bool) -> None:
    module = owner()
    patch = Patch(module, "function", plus(10))
    if we_come_first:
        patch.apply()
    found = module.function
    module.function = theirs = lambda value: found(value) + 1000
    if not we_come_first:
        patch.apply()
    assert module.function(1) == 1011
    patch.unapply()
    assert module.function(1) == 1001
    assert module.function is theirs


def test_surface_checks_name_what_differs() -> None:
    module = owner()
    require_function(module, "function", ("value",))
    require_source(module, "function", ("return   value",))
    with pytest.raises(SurfaceChangedError, match=r"owner.function takes \(value\), not \(x\)"):
        require_function(module, "function", ("x",))
    with pytest.raises(SurfaceChangedError, match="owner has no other"):
        require_function(module, "other", ())
    with pytest.raises(SurfaceChangedError, match="no longer contains `return 5`"):
        require_source(module, "function", ("return 5",))


def test_a_module_is_patched_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[ModuleType] = []
    imports.when_imported("late_module", seen.append)
    assert seen == []
    module = importlib.import_module("late_module")
    assert seen == [module]
    imports.when_imported("late_module", seen.append)
    assert seen == [module, module]
    del sys.modules["late_module"]
    imports.when_imported("late_module", seen.append)
    imports.forget(seen.append)
    importlib.import_module("late_module")
    assert len(seen) == 2
    assert imports._finder not in sys.meta_path
    del sys.modules["late_module"]


def test_the_mapping_answers_vllms_expression_from_many_threads() -> None:
    configs = TileMap(lambda tokens: {"BLOCK_SIZE_M": tokens})
    wrong: list[int] = []

    def ask(offset: int) -> None:
        for count in range(1, 500):
            M = count * 7 + offset
            if configs[min(configs.keys(), key=lambda x: abs(x - M))]["BLOCK_SIZE_M"] != M:
                wrong.append(M)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert bool(configs)


def test_swap_ab_is_left_only_for_the_question_that_follows() -> None:
    config = TileConfig({"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64}, True)
    plain = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64}
    assert take_swap_ab(config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) is True
    assert take_swap_ab(16, 64) is None, "taken twice"
    assert take_swap_ab(plain["BLOCK_SIZE_M"], plain["BLOCK_SIZE_N"]) is None
    _ = config["BLOCK_SIZE_M"]
    assert take_swap_ab(plain["BLOCK_SIZE_M"], plain["BLOCK_SIZE_N"]) is None, "half a reading counts"
    _ = config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]
    assert take_swap_ab(32, 64) is None, "another tile"
    assert type(config.copy()) is dict
    assert dict(config) == plain


def test_the_entry_point_imports_nothing_and_never_raises() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import autotune.vllm_plugin as p; "
        "assert time.perf_counter() - t < 0.1; "
        "assert not {'pydantic', 'httpx', 'vllm', 'torch'} & set(sys.modules); "
        "assert p.register() is None; assert p.register() is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"PATH": "", "AUTOTUNE_TIMEOUT": "0.2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "autotune: disabled, vLLM runs unchanged: ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("ends", "passes"),
    [("SystemExit(3)", False), ("GeneratorExit()", False), ("KeyboardInterrupt()", True)],
)
def test_a_vllm_whose_import_ends_the_process_does_not(tmp_path: Path, ends: str, passes: bool) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(f"raise {ends}")
    code = "import autotune.vllm_plugin as p; p.register(); p.register(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={"PATH": "", "PYTHONPATH": str(tmp_path), "AUTOTUNE_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout == "alive\n") is not passes
    if not passes:
        assert done.stderr.count("disabled, vLLM runs unchanged") == 1, done.stderr
