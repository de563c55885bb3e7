"""The servers of an experiment: each arm's command, environment, caches and table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from autotune.lab import logs
from autotune.lab.children import note_running
from autotune.lab.machine import Place, gpu_memory_mib
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
_SHOWN = ("VLLM_", "AUTOTUNE_", "TRITON_", "CUDA_")


@dataclass
class Hosted:
    """A server that is ready, and where its log stood then."""

    server: Server
    start: Start
    ready_at: int


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
        command = self._command(arm)
        caches = self.folder.path / "cache" / arm.name
        if self.plan.cache == "cold":
            shutil.rmtree(caches, ignore_errors=True)
        kept = (caches / "triton").is_dir()
        env = self._environment(arm, caches)
        log = self.folder.new_log(arm.name)
        alone = not self.running
        memory_before = gpu_memory_mib()
        self.tell(f"starting {arm.name} ({'kept' if kept else 'empty'} caches; log {log})")
        server = start(arm.name, command, env, self.port + self.plan.arms.index(arm), log)
        try:
            self._note(server)
            ready_s = server.wait_ready(self.start_limit_s)
        except BaseException:
            server.stop()
            raise
        memory_now = gpu_memory_mib()
        text = logs.text_from(log, 0)
        record = Start(
            arm=arm.name,
            log=log.name,
            place=self.place,
            ready_s=round(ready_s, 2),
            alone=alone,
            cache="kept" if kept else "empty",
            command=tuple(command),
            environment={k: v for k, v in sorted(env.items()) if k.startswith(_SHOWN)},
            memory_mib=None if memory_before is None or memory_now is None else memory_now - memory_before,
            memory=logs.memory(text),
            lines=logs.kept_lines(text),
        )
        if self.keep_starts:
            self.folder.save_start(record)
        self.tell(f"{arm.name} is ready after {ready_s:.0f} s{'' if alone else ', beside others'}")
        hosted = self.running[arm.name] = Hosted(server, record, log.stat().st_size)
        return hosted

    def stop(self, arm: Arm) -> None:
        """Stop an arm's server if it runs."""
        hosted = self.running.pop(arm.name, None)
        if hosted is not None:
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

    def _note(self, starting: Server) -> None:
        processes = [hosted.server.process for hosted in self.running.values()]
        note_running(self.folder.path / "running.json", [*processes, starting.process])

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
        for folder in (caches / "triton", caches / "vllm"):
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
