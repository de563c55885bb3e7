"""`autotune serve`: the routing service."""

from __future__ import annotations

import copy
import errno
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.database import DatabaseOption, open_for_command
from autotune.vocabulary.errors import ConflictError, MissingDependencyError, UsageError
from autotune.vocabulary.installing import install_extra

if TYPE_CHECKING:
    from autotune.db.engine import Database


def add_to(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(serve)


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8765,
    starter_tables: Annotated[
        bool,
        typer.Option(
            "--starter-tables",
            help="For layers of which nothing is published answer from the tables that come with this.",
        ),
    ] = False,
    db: DatabaseOption = None,
) -> None:
    """Serve the published tables over HTTP, with a dashboard at /.

    [dim]AUTOTUNE_TOKENS=TOKEN:SCOPE+SCOPE,... (or the path of a file with one a line) lets others write;
    scopes are measure, publish and telemetry. Without it the service only answers.[/]
    """
    _require_server_packages()
    import uvicorn

    from autotune.client.sources import starter
    from autotune.server.app import create_app
    from autotune.server.settings import ServerSettings

    settings = ServerSettings.from_env()
    # The port first: a second service on the same one must not upgrade or lock anything.
    listener = _listen(host, port)
    with listener, open_for_command(db) as database:
        app = create_app(database, settings, starter().tables if starter_tables else ())
        address = _address(host, listener.getsockname()[1])
        typer.echo(
            f"Serving {database.name} at {address} (dashboard: {address}/). Ctrl-C stops it.", err=True
        )
        for note in _notes(database, host, writable=bool(settings.tokens), starters=starter_tables):
            typer.echo(note, err=True)
        # A client that keeps its connection open must not keep the service from ending.
        config = uvicorn.Config(app, log_config=_log_config(), timeout_graceful_shutdown=5)
        with _sigterm_is_the_end():
            uvicorn.Server(config).run(sockets=[listener])


@contextmanager
def _sigterm_is_the_end() -> Iterator[None]:
    """Leave with exit code 0 once a SIGTERM has shut the service down: systemd and Kubernetes send it.

    Uvicorn finishes its requests first, and then raises the signal again for whoever handled it before.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _require_server_packages() -> None:
    packages = ("sqlalchemy", "alembic", "fastapi", "uvicorn", "jinja2", "prometheus_client")
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"The service needs packages that are not installed: {', '.join(missing)}.",
            install_extra("server"),
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"{host!r} is no address of this machine: {error}.", "Use --host 127.0.0.1."
        ) from error
    listener = socket.socket(family, kind, protocol)
    # Otherwise a service that was just stopped blocks its port for a minute.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                f"Port {port} on {host} is taken.", "Stop what listens there, or choose another with --port."
            ) from error
        if error.errno == errno.EACCES:
            raise UsageError(f"You may not listen on port {port}.", "Choose one above 1023.") from error
        raise UsageError(
            f"Cannot listen on {host}:{port}: {error.strerror}.", "Use --host 127.0.0.1."
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _notes(database: Database, host: str, *, writable: bool, starters: bool) -> list[str]:
    from autotune.db.revisions import RevisionRepository

    notes = []
    with database.read() as session:
        published = RevisionRepository(session).count()
    if starters:
        notes.append("Layers of which nothing is published are answered from the starter tables.")
    elif not published:
        notes.append(
            "No table is published in this database, so every answer will be `fallback`. "
            'Publish one: autotune publish TABLE.json --reason "..."'
        )
    if writable and not _is_loopback(host):
        notes.append("Tokens travel unencrypted over HTTP: put a proxy that speaks TLS in front.")
    return notes


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_config() -> dict[str, Any]:
    from uvicorn.config import LOGGING_CONFIG

    config: dict[str, Any] = copy.deepcopy(LOGGING_CONFIG)
    # Uvicorn logs requests to stdout, which belongs to results here.
    config["handlers"]["access"]["stream"] = "ext://sys.stderr"
    return config
