"""Says whether this Python can run a benchmark: `bench_python.py TARGET MODULE...`, run by `make TARGET`.

Only the standard library is imported, so that it runs in any Python. Exit code 2, with what to do next, where
a module is missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

OURS = ("pydantic", "typer", "rich")
"""What `pip install -e .` brings."""


def main() -> int:
    target, *modules = sys.argv[1:]
    missing = [name for name in (*OURS, *modules) if find_spec(name) is None]
    if not missing:
        return 0
    print(
        f"error: {sys.executable} has no {', '.join(missing)}.\n"
        f"next: make {target} PYTHON=/path/of/vllm/bin/python, the Python of vLLM's environment, into which "
        "this package was installed with `pip install -e '.[server,tune]'`.",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
