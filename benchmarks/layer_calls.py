"""What a layer call costs beside its kernels: other layers' weights in between, and launches from Python.

    python benchmarks/layer_calls.py [--scheme fp8_tensor] [--tokens 1,8,32,128,1024,2048,8192]
                                     [--layers 24] [--out FOLDER]

A sweep times one layer's weights, again and again. A model reads another layer's in every call, and
launches prefills above its largest CUDA graph from Python. For each token count, what vLLM runs unaided and
each backend's best candidate of the starter table:

    one us    a call on one layer's weights, in CUDA graphs
    many us   the same with the weights of --layers layers in turn, side by side with it
    host us   how long a call without a graph keeps the host, the GPU idle before it

Needs a CUDA GPU with room for --layers layers (0.6 GB each, twice for FlashInfer), and vLLM.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.measure.bench import Bench
    from autotune.vocabulary.candidate import Candidate
    from autotune.vocabulary.table import Route, RoutingTable

INPUTS = 8
EAGER_CALLS = 20


def candidates(route: Route) -> list[Candidate]:
    """The baseline, the winner, and the other backends' best, each once."""
    found = {c.digest: c for c in (route.baseline, route.winner)}
    for other in route.alternatives:
        if other.candidate.servable:
            found.setdefault(other.candidate.digest, other.candidate)
    return list(found.values())


def route_at(table: RoutingTable, tokens: int) -> Route:
    """The route of a token count, or of the nearest count that the table measured."""
    holding = [r for r in table.routes if r.first <= tokens <= r.last]
    return holding[0] if holding else min(table.routes, key=lambda r: abs(r.tokens - tokens))


def measure(bench: Bench, tokens: int, candidate: Candidate) -> dict[str, Any]:
    """One row.

    Raises:
        NoResult: if the backend does not run here.
    """
    import torch

    from autotune.kernels.weights import make_inputs
    from autotune.measure.timing import capture, time_pairs

    inputs = [make_inputs(bench.problem, tokens, 100 + n, "uniform", bench.device) for n in range(INPUTS)]
    backend, calls = bench.calls(candidate)
    for call in calls:  # compiles, tunes and allocates what stays
        call(inputs[0])
    torch.cuda.synchronize()
    host = []
    for number in range(EAGER_CALLS):
        start = time.perf_counter()
        calls[number % len(calls)](inputs[number % INPUTS])
        host.append((time.perf_counter() - start) * 1e6)
        torch.cuda.synchronize()
    total = len(calls)
    one = capture([(calls[0], inputs[n % INPUTS]) for n in range(total)], backend.scratch)
    many = capture([(calls[n], inputs[n % INPUTS]) for n in range(total)], backend.scratch)
    pairs = time_pairs(one, many, blocks=4, replays=4)
    return {
        "tokens": tokens, "backend": candidate.backend, "candidate": candidate.model_dump(mode="json"),
        "one_us": pairs.baseline_p50_us, "many_us": pairs.p50_us,
        "host_us": round(statistics.median(host), 1),
    }  # fmt: skip


def line(row: dict[str, Any], baseline: str) -> str:
    """A row as text."""
    name = row["backend"] + (" (baseline)" if row["backend"] == baseline else "")
    ratio = row["many_us"] / row["one_us"]
    return (
        f"{row['tokens']:>7}  {name:<30}{row['one_us']:>10.1f}{row['many_us']:>10.1f}"
        f"{ratio:>8.3f}{row['host_us']:>10.1f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", default="fp8_tensor", choices=["fp8_tensor", "fp8_block128"])
    parser.add_argument("--tokens", default="1,8,32,128,1024,2048,8192")
    parser.add_argument("--layers", type=int, default=24, help="layers whose weights are read in turn")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of layer_calls.json")
    given = parser.parse_args()
    # transformers looks for a package `kernels`: the file of that name beside this one must not answer.
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]
    from autotune.cli.lab_plan import starter_table
    from autotune.cli.problems import parse_numbers
    from autotune.lab.tables import read_table
    from autotune.measure.detect import detect_environment, driver_version
    from autotune.measure.gpu_state import wait_until_ready
    from autotune.vocabulary.errors import AutotuneError, UsageError
    from autotune.vocabulary.out_folder import out_folder

    try:
        counts = parse_numbers("--tokens", given.tokens)
        if not 1 <= given.layers <= 96:
            raise UsageError(f"--layers {given.layers}: 1 to 96 are possible.", "Leave --layers out.")
        out_folder(given.out)
        environment = detect_environment()
        wait_until_ready(5.0, tell=lambda text: print(text, file=sys.stderr))
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    from autotune.kernels.weights import make_weights
    from autotune.measure.bench import Bench, classify, is_fatal
    from autotune.measure.outcome import NoResult

    table = read_table(starter_table(given.scheme))
    bench = Bench(table.problem, environment, seed=1)
    bench.weights = [make_weights(table.problem, 1 + n, bench.device) for n in range(given.layers)]
    print(f"{table.problem}; {environment}; driver {driver_version()}; {given.layers} layers in turn")
    print(f"{'tokens':>7}  {'backend':<30}{'one us':>10}{'many us':>10}{'many/one':>8}{'host us':>10}")
    rows: list[dict[str, Any]] = []
    path = given.out / "layer_calls.json"
    for tokens in counts:
        route = route_at(table, tokens)
        for candidate in candidates(route):
            try:
                row = measure(bench, tokens, candidate)
            except NoResult as ended:
                print(f"{tokens:>7}  {candidate.backend:<30}{ended.reason}", flush=True)
                continue
            except Exception as error:
                if is_fatal(error):
                    raise
                print(f"{tokens:>7}  {candidate.backend:<30}{': '.join(classify(error))}", flush=True)
                continue
            rows.append(row)
            print(line(row, route.baseline.backend), flush=True)
            kept = {
                "problem": str(table.problem), "environment": environment.model_dump(mode="json"),
                "driver": driver_version(), "layers": given.layers, "rows": rows,
            }  # fmt: skip
            path.write_text(json.dumps(kept, indent=1) + "\n")  # each row, lest a crash takes them all
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
