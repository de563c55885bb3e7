"""The faults that `test_faults.py` looks at, as scenarios for `inside.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from autotune.vocabulary.candidate import FusedTritonCandidate
from autotune.vocabulary.table import RoutingTable
from autotune.vocabulary.wire import encode_tables
from tests.client.servers import Script, http_service
from tests.factories import make_published, triton

TOO_LARGE = triton(128, 256, 128, num_warps=8, num_stages=6)
"""(128 + 256) * 128 bytes of FP8 in each of six buffers: 294,912, and an H200 has 232,448 for a block."""
TOO_LARGE_OWN = FusedTritonCandidate(gate_up=TOO_LARGE.tile, down=TOO_LARGE.tile)
NOWHERE = "http://127.0.0.1:9"
"""The discard port: nobody listens."""
READ_ONLY = "/sys/moe-autotune"
"""Linux lets nobody make a folder there, root neither."""


def add_faults(
    add: Callable[..., None],
    table: Callable[..., dict[str, str]],
    main: RoutingTable,
    large: RoutingTable,
    large_route: RoutingTable,
    stack: contextlib.ExitStack,
) -> None:
    """Hand every scenario to `add`.

    Args:
        main: a table that applies.
        large: one whose tile is `TOO_LARGE`.
        large_route: one in which `TOO_LARGE_OWN` wins for 9..16.
    """

    def fault(name: str, function: str, env: dict[str, str], **given: Any) -> None:
        add(name, f"{function}@fault_scenarios", {}, env, **given)

    def service() -> dict[str, str]:
        script = Script()
        script.says(body, etag='"x"')
        return {"AUTOTUNE_URL": stack.enter_context(http_service(script)), "AUTOTUNE_TIMEOUT": "5"}

    body = encode_tables([make_published(main, revision=7)])
    add("service_down", "quiet", {"AUTOTUNE_URL": NOWHERE}, counts=[8])
    one, unfit = table("fault", main), table("large", large)
    fault("too_large", "too_large", unfit, counts=[8, 100])
    fault("too_large_lines", "too_large_lines", unfit)
    fault("too_large_route", "too_large_routes", table("large-route", large_route))
    fault("full_disk", "full_disk", service())
    fault("read_only_cache", "read_only_cache", {**service(), "AUTOTUNE_CACHE": READ_ONLY})
    fault("clock_back", "clock_back", {"AUTOTUNE_URL": NOWHERE}, body=body)
    fault("excluded", "plugins", {**one, "VLLM_PLUGINS": "another"})
    fault("included", "plugins", {**one, "VLLM_PLUGINS": "another,autotune"})
    fault("another_first", "another_first", one)
    fault("loaded_twice", "twice", {**one, "VLLM_PLUGINS": "autotune"})
