"""In-process client: reads routing tables from a file or the service and answers look-ups in memory."""

from __future__ import annotations

from autotune.client.client import RoutingClient
from autotune.client.snapshot import Snapshot

__all__ = ["RoutingClient", "Snapshot"]
