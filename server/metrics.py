"""Prometheus metrics of one service: requests, latency, and what was decided."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.vocabulary.table import Decision

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """Counters in a registry of their own, so that two services in one process stay apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "autotune_http_requests", "HTTP requests.", ("method", "route", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "autotune_http_request_seconds",
            "Seconds from the request's first byte to the answer's last.",
            ("route",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.decisions = Counter(
            "autotune_decisions",
            "Answers of GET /routing; reason is empty for a route.",
            ("answer", "reason"),
            registry=self.registry,
        )
        self.measurements = Counter(
            "autotune_measurements", "Measurements received.", ("result",), registry=self.registry
        )
        self.telemetry = Counter(
            "autotune_telemetry_answers",
            "Look-ups that serving processes reported.",
            ("answer", "reason"),
            registry=self.registry,
        )
        self.compiled = Counter(
            "autotune_telemetry_compiled",
            "Triton variants that serving processes reported to have compiled after they were ready.",
            registry=self.registry,
        )

    def decided(self, decision: Decision) -> None:
        """Count one answer."""
        self.decisions.labels(decision.answer, decision.reason.value if decision.reason else "").inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)


class Observed:
    """ASGI middleware that counts and times requests, by route template rather than by path."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            # Paths and methods come from outside; only known ones may become labels, or memory grows.
            route = getattr(scope.get("route"), "path", None) or "unmatched"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.latency.labels(route).observe(time.perf_counter() - started)
