"""What a server's `/metrics` says of the plugin, kept before the server ends."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

from autotune.vocabulary.files import read_bytes

PREFIX = "autotune_"
TIMEOUT_S = 5.0
_STEPS = re.compile(
    r"^autotune_steps_total\{(?P<labels>.*)\} (?P<value>[0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def keep(port: int, file: Path) -> None:
    """Write the plugin's samples to the file; nothing where the server has none or does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, urllib.error.URLError, ValueError):
        return  # a server that is ending: its log says at the end what served, too
    lines = [line for line in text.splitlines() if line.startswith(PREFIX)]
    if lines:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")


def steps(file: Path) -> dict[str, int]:
    """Engine steps by what served them, such as `25..32 fused_decode, FULL graph`; most first."""
    try:
        text = read_bytes(file).decode(errors="replace")
    except OSError:
        return {}
    found: dict[str, int] = {}
    for sample in _STEPS.finditer(text):
        label = dict(_LABEL.findall(sample["labels"]))
        how = "no graph" if label.get("graph") == "NONE" else f"{label.get('graph', 'unknown')} graph"
        why = f" ({label['reason']})" if label.get("reason") else ""
        name = f"{label.get('tokens')} {label.get('backend')}{why}, {how}"
        found[name] = found.get(name, 0) + round(float(sample["value"]))
    return dict(sorted(found.items(), key=lambda item: -item[1]))
