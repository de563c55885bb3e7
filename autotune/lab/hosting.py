"""The servers of an experiment: each arm's command, environment, caches and table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.lab import deep_gemm, logs, metrics
from autotune.lab.children import note_running
from autotune.lab.machine import Place, gpu_memory_mib, gpu_memory_of
from autotune.lab.model import WEIGHTS_PLUGIN, install_random_weights
from autotune.lab.plan import Arm, Plan
from autotune.lab.results import Folder, Start
from autotune.lab.servers import Server, refuse_taken, start
from autotune.lab.service import service
from autotune.lab.tables import read_table, restricted, write_table

VLLM_SERVE = (
    "{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--load-format", "dummy",
    "--port", "{port}", "--gpu-memory-utilization", "{memory}", "--no-enable-prefix-caching",
    "--jit-monitor-verbose",
)  # fmt: skip
"""Everything else is vLLM's default. Verbose: else the JIT monitor logs a kernel's first time only."""
READY = "ready"
"""The file in an arm's caches that says that a server has got ready with them."""
_SHOWN = ("VLLM_", "AUTOTUNE_", "TRITON_", "CUDA_", "DG_")


@dataclass
class Hosted:
    """A server that is ready, where its log stood then, and what DeepGEMM had compiled by then."""

    server: Server
    start: Start
    ready_at: int
    deep_gemm_cache: Path
    deep_gemm_kernels: frozenset[str]


@dataclass
class _Starting:
    """A server on its way, what it began with, and how many others ran or started beside it."""

    server: Server
    command: list[str]
    env: dict[str, str]
    log: Path
    kept: bool
    amid: int
    memory_before: int | None


@dataclass
class Host:
    """Starts and stops the servers of one experiment; as a context manager it leaves none behind.

    Args:
        model: folder of the model.
        table: file of the routing table, or None if no arm uses one.
        port: the first arm's; the others and the service take the next ones.
        start_limit_s: seconds for one server to get ready.
        keep_starts: store what each start took.
    """

    plan: Plan
    folder: Folder
    place: Place
    model: Path
    table: Path | None
    port: int
    start_limit_s: float
    tell: Callable[[str], None]
    keep_starts: bool = True
    running: dict[str, Hosted] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._site = self.folder.path / "site"
        self._url = ""
        install_random_weights(self._site)
        try:
            for number in range(len(self.plan.arms)):
                refuse_taken(self.port + number)
            if self.table is not None and any(arm.table == "published" for arm in self.plan.arms):
                port = self.port + len(self.plan.arms)
                self._url = self._stack.enter_context(service(self.table, self.folder.path, port)).address
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_all()
        finally:
            self._stack.close()

    def ready(self, arm: Arm) -> Hosted:
        """The arm's server, started if it does not run.

        Raises:
            AutotuneError: if it ends or is not ready in time; the error names its log.
        """
        found = self.running.get(arm.name)
        if found is not None:
            found.server.check()
            return found
        self.ready_at_once([arm])
        return self.running[arm.name]

    def ready_at_once(self, arms: Sequence[Arm]) -> None:
        """Start the servers of these arms side by side, and wait for all.

        vLLM tells its own memory from that of others by what the GPU has free before and after: give it
        `--kv-cache-memory-bytes`, so that it need not.

        Raises:
            AutotuneError: if one ends or is not ready in time; the error names its log. None is left then.
        """
        begun: dict[str, _Starting] = {}
        wanted = [arm for arm in arms if arm.name not in self.running]
        amid = len(self.running) + len(wanted) - 1
        try:
            for arm in wanted:
                begun[arm.name] = self._begin(arm, amid)
                servers = [hosted.server for hosted in self.running.values()]
                servers += [starting.server for starting in begun.values()]
                note_running(self.folder.path / "running.json", [server.process for server in servers])
            for arm in wanted:
                self.running[arm.name] = self._await(arm, begun[arm.name], len(wanted))
                del begun[arm.name]
        except BaseException:
            for starting in begun.values():
                starting.server.stop()
            raise

    def _begin(self, arm: Arm, amid: int) -> _Starting:
        command = self._command(arm)
        caches = self.folder.path / "cache" / arm.name
        if self.plan.cache == "cold":
            shutil.rmtree(caches, ignore_errors=True)
        kept = (caches / READY).exists()
        env = self._environment(arm, caches)
        log = self.folder.new_log(arm.name)
        memory_before = gpu_memory_mib()
        self.tell(f"starting {arm.name} ({'kept' if kept else 'empty'} caches; log {log})")
        server = start(arm.name, command, env, self.port + self.plan.arms.index(arm), log)
        return _Starting(server, command, env, log, kept, amid, memory_before)

    def _await(self, arm: Arm, starting: _Starting, at_once: int) -> Hosted:
        log, before, alone = starting.log, starting.memory_before, starting.amid == 0
        ready_s = starting.server.wait_ready(self.start_limit_s)
        memory = gpu_memory_of(starting.server.process.pid)
        if memory is None and at_once == 1:  # of servers that start at once the difference is everybody's
            memory_now = gpu_memory_mib()
            memory = None if before is None or memory_now is None else memory_now - before
        text = logs.text_from(log, 0)
        record = Start(
            arm=arm.name,
            log=log.name,
            place=self.place,
            ready_s=round(ready_s, 2),
            alone=alone,
            cache="kept" if starting.kept else "empty",
            command=tuple(starting.command),
            environment={
                _readable(k): _readable(v) for k, v in sorted(starting.env.items()) if k.startswith(_SHOWN)
            },
            memory_mib=memory,
            memory={k: v for k, v in logs.memory(text).items() if at_once == 1 or k != "graphs_gib"},
            lines=logs.kept_lines(text),
        )
        if self.keep_starts:
            self.folder.save_start(record)
        self.tell(f"{arm.name} is ready after {ready_s:.0f} s{'' if alone else ', beside others'}")
        (self.folder.path / "cache" / arm.name / READY).touch()
        cache = Path(starting.env[deep_gemm.CACHE_VARIABLE])
        return Hosted(starting.server, record, log.stat().st_size, cache, deep_gemm.kernels(cache))

    def rehearsed(self, arm: Arm, point: str) -> Path:
        """The file that is there once the arm has served a point with the caches that it has now."""
        return self.folder.path / "cache" / arm.name / f"rehearsed-{point}"

    def stop(self, arm: Arm) -> None:
        """Stop an arm's server if it runs."""
        hosted = self.running.pop(arm.name, None)
        if hosted is not None:
            metrics.keep(hosted.server.port, self.folder.metrics_of(hosted.server.log.name))
            hosted.server.stop()

    def stop_all(self) -> None:
        """Stop every server."""
        for arm in self.plan.arms:
            self.stop(arm)

    def check(self) -> None:
        """Raises:
        AutotuneError: if a server has ended.
        """
        for hosted in self.running.values():
            hosted.server.check()

    def _command(self, arm: Arm) -> list[str]:
        share = len(self.plan.arms) if self.plan.servers == "together" else 1
        filled = {
            "{python}": sys.executable,
            "{model}": str(self.model),
            "{port}": str(self.port + self.plan.arms.index(arm)),
            "{memory}": f"{self.plan.gpu_memory / share:.3f}",
        }
        words = []
        for word in self.plan.server or VLLM_SERVE:
            for name, value in filled.items():
                word = word.replace(name, value)
            words.append(word)
        return [*words, *arm.serve_args]

    def _environment(self, arm: Arm, caches: Path) -> dict[str, str]:
        # What the user's shell says about the plugin must not reach an arm unseen.
        env = {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._site), env.get("PYTHONPATH", ""))))
        env["VLLM_PLUGINS"] = f"{WEIGHTS_PLUGIN},autotune" if arm.plugin else WEIGHTS_PLUGIN
        env["TRITON_CACHE_DIR"] = str(caches / "triton")
        env["VLLM_CACHE_ROOT"] = str(caches / "vllm")
        env[deep_gemm.CACHE_VARIABLE] = str(caches / "deep_gemm")
        for folder in (caches / "triton", caches / "vllm", caches / "deep_gemm"):
            folder.mkdir(parents=True, exist_ok=True)
        if arm.plugin:
            env["AUTOTUNE_CACHE"] = str(caches / "tables")
        if arm.table == "published":
            env["AUTOTUNE_URL"] = self._url
        elif arm.table is not None and self.table is not None:
            file = self.folder.path / "tables" / f"{arm.table}.json"
            write_table(restricted(read_table(self.table), arm.table), file)
            env["AUTOTUNE_TABLE"] = str(file)
        return {**env, **self.plan.env, **arm.env}


def _readable(text: str) -> str:
    """What of the user's environment is no UTF-8, as escapes: JSON cannot hold it."""
    return text.encode(errors="backslashreplace").decode()
