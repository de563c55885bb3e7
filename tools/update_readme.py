"""Write the starter tables' figures into the README, between its markers.

    python tools/update_readme.py [--check]

With --check nothing is written and the exit code is 1 if the README differs.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from autotune.choose.floor import Floor, floors_of
from autotune.vocabulary.table import Route, RoutingTable, Verdict

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "autotune" / "data" / "tables"
MARKERS = re.compile(r"(<!-- figures:(?P<name>[\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def figures(table: RoutingTable) -> str:
    """A table's routes in Markdown, with where they come from."""
    recording = table.recording
    lines = [
        "| tokens | baseline | us | chosen | us | faster (at least) | floor, us | reached |",
        "| ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |",
        *map(_row, table.routes, floors_of(table)),
        "",
        f"{table.problem}; {table.environment}; driver {recording.driver}; {recording.first:%Y-%m-%d}; "
        f"table `{table.digest[:12]}`, from {recording.measurements} measurements.",
    ]
    return "\n".join(lines)


def _row(route: Route, least: Floor | None) -> str:
    tokens = str(route.last) if route.first == route.last else f"{route.first} to {route.last}"
    baseline = f"| {tokens} | {route.baseline.backend} | {route.baseline_timing.p50_us:.1f} "
    reached = f"{least.reached(route.winner_timing.p50_us):.0%} of {least.bound}" if least else ""
    floor = f"| {least.us:.1f} | {reached} |" if least else "| | |"
    if route.verdict is Verdict.NO_BENEFIT or route.speedup is None:
        return baseline + f"| no benefit, baseline kept | | {floor}"
    gain = f"{route.speedup.median:.3f} ({route.speedup.low:.3f})"
    return baseline + f"| {route.winner.backend} | {route.winner_timing.p50_us:.1f} | {gain} {floor}"


def render(text: str) -> str:
    """The README with every marked section filled from its starter table."""

    def fill(match: re.Match[str]) -> str:
        data = json.loads((TABLES / f"{match['name']}.json").read_text())
        return f"{match[1]}\n{figures(RoutingTable.from_json_data(data))}\n\n{match[3]}"

    return MARKERS.sub(fill, text)


def main() -> int:
    readme = ROOT / "README.md"
    before = readme.read_text()
    after = render(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("README.md differs from the starter tables; run tools/update_readme.py", file=sys.stderr)
        return int(before != after)
    readme.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
