"""The code behind `vllm bench serve`, for as many points as are asked for, in one process.

    python -m autotune.lab.client_process

Importing vLLM takes as long as a point does, so all points share one process. Each line of standard input is
a JSON list: the words of one `vllm bench serve` command line. Each is answered by one line of JSON on
standard output: the benchmark's result, or `{"error": text}`. What vLLM prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve: Any = importlib.import_module("vllm.benchmarks.serve")
    parser = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    serve.add_cli_args(parser)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            result = asyncio.run(serve.main_async(parser.parse_args(json.loads(line))))
            numbers = {key: value for key, value in result.items() if isinstance(value, int | float | str)}
            answer = json.dumps(numbers)
        # Whatever ends one point is told to whoever asked; the next one may do.
        except (Exception, SystemExit) as error:
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
