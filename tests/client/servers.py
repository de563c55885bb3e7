"""Small real servers: a scripted HTTP service, and sockets that misbehave."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """What the service answers next, and what it was asked."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def says(self, data: Any, **headers: str) -> None:
        self.status, self.body = 200, json.dumps(data).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@contextlib.contextmanager
def http_service(script: Script) -> Iterator[str]:
    """A running service; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(script.status)
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(script.body)))
            self.end_headers()
            self.wfile.write(script.body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts connections and lets `behave` do as it likes with each; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_connections.append(connection)
            threading.Thread(target=_quietly, args=(behave, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in open_connections:
            connection.close()


def _quietly(behave: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        behave(connection)


def silent(connection: socket.socket) -> None:
    """Never answers."""
    time.sleep(60)


def trickle(connection: socket.socket) -> None:
    """Sends one byte of a promised body every 50 ms, so that no single read times out."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
    for _ in range(1200):
        connection.sendall(b" ")
        time.sleep(0.05)


def endless(connection: socket.socket) -> None:
    """Sends a body without an end, as fast as it is taken."""
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    block = b" " * (1 << 20)
    while True:
        connection.sendall(block)
