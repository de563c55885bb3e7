"""Write a run's measurements from a database as a recording, and its routing table as a starter table.

    python tools/export_evidence.py --db sqlite:///autotune.db --model qwen-moe-fp8 \\
        --command "autotune sweep --gpu h200 --model qwen-moe-fp8" --machine "one NVIDIA H200, ..."
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from autotune.choose.routes import build_table
from autotune.db.engine import open_database
from autotune.db.store import DatabaseStore
from autotune.measure.evidence_file import RecordingHeader, write_evidence
from autotune.vocabulary.catalogue import resolve_problem

DATA = Path(__file__).parent.parent / "autotune" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--db", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--command", required=True, help="the command that made the measurements")
    parser.add_argument("--machine", required=True, help="the machine, in words")
    args = parser.parse_args()
    problem, checkpoint = resolve_problem(args.model, tp=args.tp)
    store = DatabaseStore(open_database(args.db))
    measurements = store.measurements(problem, checkpoint=checkpoint)
    environment = measurements[-1].environment
    table = build_table(measurements, problem=problem, environment=environment, checkpoint=checkpoint)
    name = f"{environment.gpu.lower()}-{args.model}{f'-tp{args.tp}' if args.tp > 1 else ''}"
    header = RecordingHeader(command=args.command, machine=args.machine)
    count = write_evidence(DATA / "evidence" / f"{name}.jsonl.gz", header, measurements)
    (DATA / "tables" / f"{name}.json").write_text(json.dumps(table.to_json_data(), indent=1) + "\n")
    print(f"{name}: {count} measurements, {len(table.routes)} routes, digest {table.digest[:12]}")


if __name__ == "__main__":
    main()
