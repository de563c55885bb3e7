"""A sweep over a slow simulated runner into a real database, to be killed. Started by test_sweeping.py.

    python slow_sweep.py URL SECONDS_PER_MEASUREMENT [RUN]

Prints the digest of each measurement once `append` has returned.
"""

from __future__ import annotations

import sys
import time

from autotune.choose.sweep import Sweep, SweepPlan
from autotune.db.engine import open_database
from autotune.db.store import DatabaseStore
from autotune.vocabulary.measurement import Measurement
from tests.choose.simulated import Quiet, SimulatedRunner
from tests.factories import PROBLEM


class Telling(DatabaseStore):
    """Says what is committed."""

    def append(self, measurement: Measurement) -> bool:
        new = super().append(measurement)
        print(measurement.digest, new, flush=True)
        time.sleep(float(sys.argv[2]))
        return new


if __name__ == "__main__":
    plan = SweepPlan(
        problem=PROBLEM, checkpoint="fp8", tokens=(1, 8, 64), trials=12, budget_s=None,
        run=sys.argv[3] if len(sys.argv) > 3 else "killed",
    )  # fmt: skip
    runner = SimulatedRunner(lambda candidate, tokens: 1.2 if "swap" in str(candidate) else 0.9)
    result = Sweep(plan, runner, Telling(open_database(sys.argv[1])), Quiet()).execute()
    print("finished", result.new, flush=True)
