"""A GPU process: takes tasks over a pipe, answers with outcomes, may be killed and replaced at any time."""

from __future__ import annotations

import os
import traceback
from multiprocessing.connection import Connection
from typing import Any

from autotune.measure.task import Task

BENCH_SEED = 7


def main(pipe: Connection, log: str = os.devnull) -> None:
    """Serve tasks until the pipe closes; everything printed goes to the file `log`.

    Messages are tuples whose first item says what they are.

    Sent: ("machine", Environment, driver, cores, absent libraries), then per task ("begin", index),
    ("outcome", index, Outcome) and ("done",); for questions ("baseline", Candidate) and ("triton", Candidate
    or None); ("failed", text) if the task as a whole cannot run, and ("fatal", text) before the process ends
    because its CUDA context is lost.
    """
    # Libraries print progress of their own; the sweep's display must stay readable.
    with open(log, "ab", buffering=0) as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Our plugin must not route the very kernels that are being measured.
    os.environ["AUTOTUNE_MODE"] = "off"
    try:
        from autotune.measure.detect import absent_libraries, detect_environment, driver_version

        environment = detect_environment()
        absent = absent_libraries(environment)
        pipe.send(("machine", environment, driver_version(), os.cpu_count() or 1, absent))
    except BaseException as error:
        pipe.send(("unable", error))
        return
    benches: dict[Any, Any] = {}
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            if message[0] == "task":
                _run_task(pipe, message[1], environment, benches)
            elif message[0] == "baseline":
                from autotune.kernels.backends.registry import baseline_candidate

                pipe.send(("baseline", baseline_candidate(*message[1:])))
            elif message[0] == "triton":
                from autotune.kernels.backends.registry import vllm_triton_config

                pipe.send(("triton", vllm_triton_config(*message[1:]) if environment.vllm else None))
        except KeyboardInterrupt:
            return
        except Exception as error:
            from autotune.measure.bench import is_fatal

            text = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            if is_fatal(error):
                pipe.send(("fatal", text))
                os._exit(3)
            pipe.send(("failed", text))


def _run_task(pipe: Connection, task: Task, environment: Any, benches: dict[Any, Any]) -> None:
    from autotune.measure.bench import Bench

    bench = benches.get(task.problem)
    if bench is None:
        benches.clear()  # one problem's weights at a time
        bench = benches[task.problem] = Bench(task.problem, environment, BENCH_SEED + task.process)
    outcomes = bench.run(
        task.tokens,
        task.routing,
        task.seed,
        task.stage,
        task.baseline,
        list(task.candidates),
        begin=lambda index: pipe.send(("begin", index)),
    )
    for index, outcome in outcomes:
        pipe.send(("outcome", index, outcome))
    pipe.send(("done",))
