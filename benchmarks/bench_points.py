"""`vllm bench serve` at several concurrencies in one process, started while the server still starts.

    python benchmarks/bench_points.py POINTS.json

Importing vLLM takes as long as a point does, so all points share one process; what runs is the code behind
`vllm bench serve`, with its command line. POINTS.json holds `{"health": URL, "limit_s": seconds, "points":
[[...]]}`, a point being its arguments. Waits for the server, runs the points in order, and stops at the first
that does not complete.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def wait_healthy(address: str, limit_s: float) -> None:
    """Return when the address answers.

    Raises:
        TimeoutError: if it does not within the limit.
    """
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"{address} did not answer within {limit_s:.0f} s")


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    from vllm.benchmarks.serve import add_cli_args, main_async
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    wait_healthy(plan["health"], plan["limit_s"])
    for arguments in plan["points"]:
        args = parser.parse_args(arguments)
        result = asyncio.run(main_async(args))
        if result["completed"] != args.num_prompts:
            raise SystemExit(f"{result['completed']} of {args.num_prompts} requests completed: {arguments}")


if __name__ == "__main__":
    main()
