"""A process that compiles variants for another: `python -m autotune.kernels.ahead.child`.

It imports Triton but not vLLM, whose import takes longer than a compilation: a kernel's function is taken out
of its file together with what it uses, and its cache key must equal the one in the asking process. It
sees no GPU, so that it takes no memory there.

Standard input: one JSON line with the target, then one line a variant. Standard output: one line an answer.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no answer
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(*json.loads(sys.stdin.readline()))
    kernels: dict[str, Any] = {}
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), target, kernels)), file=answers)


def _answer(task: dict[str, Any], target: Any, kernels: dict[str, Any]) -> dict[str, Any]:
    try:
        place = json.dumps(task["kernel"], sort_keys=True)
        if place not in kernels:
            kernels[place] = load_kernel(task["kernel"])
        start = time.perf_counter()
        hit = compile_variant(kernels[place], task["data"], target)
        return {"hit": hit, "seconds": round(time.perf_counter() - start, 3)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def compile_variant(kernel: Any, data: str, target: Any) -> bool:
    """Compile into Triton's cache; returns whether it was there already."""
    import triton
    from triton import knobs
    from triton.compiler import make_backend

    from autotune.kernels.ahead.variants import source_of

    source, options = source_of(kernel, data)
    hits: list[bool] = []
    knobs.compilation.listener = lambda **event: hits.append(bool(event.get("cache_hit")))
    triton.compile(source, target=target, options=make_backend(target).parse_options(options).__dict__)
    return bool(hits and hits[0])


def describe_kernel(kernel: Any) -> dict[str, Any]:
    """Where another process finds the kernel's function, as plain data."""
    function = kernel.fn
    modules = {
        name: value.__name__
        for name, value in function.__globals__.items()
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "triton"
    }
    return {
        "module": function.__module__,
        "file": function.__code__.co_filename,
        "name": function.__name__,
        "modules": modules,
        "cache_key": kernel.cache_key,
    }


def load_kernel(place: dict[str, Any]) -> Any:
    """The `triton.jit` function that `describe_kernel` described.

    Raises:
        ValueError: if what comes out is not the same kernel.
    """
    if place["module"].partition(".")[0] == "autotune":
        kernel = getattr(importlib.import_module(place["module"]), place["name"])
    else:
        kernel = _extract(place)
    if not hasattr(kernel, "cache_key"):
        import triton

        kernel = triton.jit(kernel)  # a function that its module wraps under another name
    if kernel.cache_key != place["cache_key"]:
        raise ValueError(f"{place['name']} of {place['file']} is another kernel here")
    return kernel


def _extract(place: dict[str, Any]) -> Any:
    """Run only those top-level statements of the file that the function needs."""
    tree = ast.parse(Path(place["file"]).read_text(encoding="utf-8"))
    bound: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            bound.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    bound.setdefault(target.id, []).append(node)
    needed: set[str] = set()
    waiting = [place["name"]]
    while waiting:
        name = waiting.pop()
        if name in needed or name not in bound or name in place["modules"]:
            continue
        needed.add(name)
        for node in bound[name]:
            waiting += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    kept = [node for node in tree.body if any(node in bound[name] for name in needed)]
    module = types.ModuleType(place["module"])
    module.__file__ = place["file"]
    for name, imported in place["modules"].items():
        setattr(module, name, importlib.import_module(imported))
    exec(compile(ast.Module(kept, []), place["file"], "exec"), module.__dict__)
    return getattr(module, place["name"])


if __name__ == "__main__":
    main()
