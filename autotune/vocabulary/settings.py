"""Everything read from the process environment (`AUTOTUNE_*`), in one place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from autotune.vocabulary.errors import UnknownNameError, UsageError

DEFAULT_DB = "sqlite:///autotune.db"
T = TypeVar("T", int, float)
Mode = Literal["off", "observe", "tiles", "static", "route"]


def default_cache(env: Mapping[str, str] | None = None) -> Path:
    """The folder `moe-autotune` in `XDG_CACHE_HOME`, else in `~/.cache`.

    A relative `XDG_CACHE_HOME` counts as unset, as the XDG Base Directory Specification asks: it would be
    another folder for every working folder. A user without a home, as in many containers, gets a folder among
    temporary files.
    """
    base = (os.environ if env is None else env).get("XDG_CACHE_HOME", "").strip()
    try:
        if base and (given := Path(base).expanduser()).is_absolute():
            return given / "moe-autotune"
        return Path("~/.cache/moe-autotune").expanduser()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"moe-autotune-{os.getuid()}"


@dataclass(frozen=True)
class Settings:
    """What a user set.

    Args:
        db: SQLAlchemy URL (`AUTOTUNE_DB`).
        table: explicit table file or folder; wins over everything (`AUTOTUNE_TABLE`).
        url: the routing service (`AUTOTUNE_URL`).
        channel: `AUTOTUNE_CHANNEL`.
        match: `AUTOTUNE_MATCH`, exact or compatible.
        mode: what the vLLM plugin does (`AUTOTUNE_MODE`).
        timeout_s: total time in which a table is resolved, seconds (`AUTOTUNE_TIMEOUT`).
        concurrency: traffic for the static choice (`AUTOTUNE_CONCURRENCY`).
        unspecialize: keep vLLM's Triton MoE kernel from compiling again for new token counts
            (`AUTOTUNE_UNSPECIALIZE`, 0 or 1).
        gate: take a single token from the gate on, where its route is `fused_decode`
            (`AUTOTUNE_GATE`, 0 or 1).
        warmup_s: how long a starting vLLM worker may compile what the table can reach, seconds; 0 leaves
            every variant to its first use (`AUTOTUNE_WARMUP_SECONDS`).
        cache: folder of last known good tables (`AUTOTUNE_CACHE`, else as `default_cache` says).
        metrics: count in vLLM which route serves each step, for its /metrics (`AUTOTUNE_METRICS`, 0 or 1).
        telemetry: send these counts to the service at `url` (`AUTOTUNE_TELEMETRY`, 0 or 1).
        telemetry_token: what the service asks for that (`AUTOTUNE_TELEMETRY_TOKEN`).
    """

    db: str = DEFAULT_DB
    table: Path | None = None
    url: str | None = None
    channel: str = "stable"
    match: Literal["exact", "compatible"] = "exact"
    mode: Mode = "route"
    timeout_s: float = 2.0
    concurrency: int = 8
    unspecialize: bool = True
    gate: bool = True
    warmup_s: float = 120.0
    cache: Path = field(default_factory=default_cache)
    metrics: bool = True
    telemetry: bool = False
    telemetry_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read `AUTOTUNE_*`; empty values count as unset.

        Raises:
            UsageError: for a value that does not fit, naming the variable.
        """
        source = os.environ if env is None else env

        def get(name: str) -> str | None:
            return source.get(f"AUTOTUNE_{name}", "").strip() or None

        match = get("MATCH") or "exact"
        if match not in ("exact", "compatible"):
            raise UnknownNameError("AUTOTUNE_MATCH", match, ("exact", "compatible"))
        mode = get("MODE") or "route"
        if mode not in get_args(Mode):
            raise UnknownNameError("AUTOTUNE_MODE", mode, get_args(Mode))
        cache = get("CACHE")
        table = get("TABLE")
        return cls(
            db=get("DB") or DEFAULT_DB,
            table=_path("AUTOTUNE_TABLE", table) if table else None,
            url=get("URL"),
            channel=get("CHANNEL") or "stable",
            match=match,  # type: ignore[arg-type]
            mode=mode,  # type: ignore[arg-type]
            timeout_s=_positive("AUTOTUNE_TIMEOUT", get("TIMEOUT"), 2.0, float),
            concurrency=_positive("AUTOTUNE_CONCURRENCY", get("CONCURRENCY"), 8, int),
            unspecialize=_switch("AUTOTUNE_UNSPECIALIZE", get("UNSPECIALIZE"), cls.unspecialize),
            gate=_switch("AUTOTUNE_GATE", get("GATE"), cls.gate),
            warmup_s=_seconds_or_none("AUTOTUNE_WARMUP_SECONDS", get("WARMUP_SECONDS"), cls.warmup_s),
            cache=_path("AUTOTUNE_CACHE", cache) if cache else default_cache(source),
            metrics=_switch("AUTOTUNE_METRICS", get("METRICS"), cls.metrics),
            telemetry=_switch("AUTOTUNE_TELEMETRY", get("TELEMETRY"), cls.telemetry),
            telemetry_token=get("TELEMETRY_TOKEN"),
        )


_NAMES = (
    "CACHE", "CHANNEL", "CONCURRENCY", "DB", "GATE", "MATCH", "METRICS", "MODE", "TABLE", "TELEMETRY",
    "TELEMETRY_TOKEN", "TIMEOUT", "TOKENS", "UNSPECIALIZE", "URL", "WARMUP_SECONDS",
)  # fmt: skip
_HANDED_DOWN = ("RUN", "SNAPSHOT", "SNAPSHOT_DATA", "SNAPSHOT_DIGEST", "VLLM_VERSIONS")
"""Not settings: what a process tells its children, and the tests."""


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """A sentence for each `AUTOTUNE_*` variable that nothing reads, such as a misspelt one."""
    known = {f"AUTOTUNE_{name}" for name in (*_NAMES, *_HANDED_DOWN)}
    said = []
    for name in sorted(name for name in env if name.startswith("AUTOTUNE_") and name not in known):
        nearest = UnknownNameError("variable", name, [f"AUTOTUNE_{known}" for known in _NAMES]).nearest
        said.append(f"{name} is set and read by nothing{f': did you mean {nearest}?' if nearest else ''}")
    return said


_SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _switch(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    on = _SWITCH.get(text.casefold())
    if on is None:
        raise UsageError(f"{name} must be 0 or 1, not {text!r}.", f"Without it {int(default)} is taken.")
    return on


def _seconds_or_none(name: str, text: str | None, default: float) -> float:
    """A time limit in which 0 stands for: not at all."""
    try:
        return 0.0 if text is not None and float(text) == 0 else _positive(name, text, default, float)
    except (ValueError, UsageError) as error:
        raise UsageError(
            f"{name} must be 0 or a positive number, not {text!r}.", f"Without it {default:g} is taken."
        ) from error


def _path(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{name}: {text!r} names no home folder: {error}", "Give a whole path.") from error


def _positive(name: str, text: str | None, default: T, kind: Callable[[str | int], T]) -> T:
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not 0 < value < 1e9:
        raise UsageError(
            f"{name} must be a positive number, not {text!r}.", f"Without it {default} is taken."
        )
    return value
