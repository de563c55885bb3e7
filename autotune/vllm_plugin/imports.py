"""Runs a function when a module is imported, at once if it already is.

The plugin is loaded in processes that never run a MoE layer. Importing vLLM's kernels there only to
replace them would cost seconds and could come before vLLM has set up its platform.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}
        self.lock = threading.RLock()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._call_after(spec, fullname)
                return spec
        return None

    def _call_after(self, spec: ModuleSpec, fullname: str) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with self.lock:
                callbacks = self.waiting.pop(fullname, [])
            for callback in callbacks:
                callback(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _Finder()


def when_imported(name: str, callback: Callback) -> None:
    """Call `callback(module)` now if the module is imported, else right after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        callback(module)
        return
    with _finder.lock:
        _finder.waiting.setdefault(name, []).append(callback)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def forget(callback: Callback) -> None:
    """Take back what `when_imported` was asked, if it has not happened."""
    with _finder.lock:
        for name in list(_finder.waiting):
            left = [c for c in _finder.waiting[name] if c != callback]
            if left:
                _finder.waiting[name] = left
            else:
                del _finder.waiting[name]
        if not _finder.waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
