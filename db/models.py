"""The tables. Evidence and revisions are only ever added; channels are pointers that move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, aware in Python on both databases (SQLite keeps no time zone itself)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored moment needs a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# SQLite counts rows only in a column that is declared INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")
Digest = String(64)
GpuName = String(128)


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class MeasurementRow(Base):
    """One measurement; `content` is the whole of it, the columns beside it are for searching."""

    __tablename__ = "measurements"
    __table_args__ = (
        Index(None, "problem", "environment_digest", "checkpoint"),
        Index(None, "problem", "recorded_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    digest: Mapped[str] = mapped_column(Digest, unique=True)
    problem: Mapped[str] = mapped_column(String(256))
    gpu: Mapped[str] = mapped_column(GpuName)
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)
    environment_digest: Mapped[str] = mapped_column(Digest)
    checkpoint: Mapped[str] = mapped_column(String(32))
    tokens: Mapped[int] = mapped_column(BigInteger)
    routing: Mapped[str] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(64))
    candidate_digest: Mapped[str] = mapped_column(Digest)
    stage: Mapped[str] = mapped_column(String(32))
    status: Mapped[str] = mapped_column(String(32))
    run: Mapped[str] = mapped_column(Text, index=True)
    recorded_at: Mapped[datetime] = mapped_column(UtcDateTime)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)


class RoutingTableRow(Base):
    """A routing table by its digest; several revisions may share one."""

    __tablename__ = "routing_tables"

    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)


class RevisionRow(Base):
    """A published table, or "none" (`table_digest` is null). Numbers are global and never reused."""

    __tablename__ = "revisions"
    __table_args__ = (
        Index(None, "problem", "environment_digest", "checkpoint"),
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    problem: Mapped[str] = mapped_column(String(256))
    gpu: Mapped[str] = mapped_column(GpuName, index=True)
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)
    environment_digest: Mapped[str] = mapped_column(Digest)
    checkpoint: Mapped[str] = mapped_column(String(32))
    table_digest: Mapped[str | None] = mapped_column(Digest, ForeignKey("routing_tables.digest"))
    author: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class ChannelRow(Base):
    """Where a channel of one problem, environment and checkpoint points now."""

    __tablename__ = "channels"
    __table_args__ = (UniqueConstraint("problem", "environment_digest", "checkpoint", "channel"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    problem: Mapped[str] = mapped_column(String(256))
    environment_digest: Mapped[str] = mapped_column(Digest)
    checkpoint: Mapped[str] = mapped_column(String(32))
    channel: Mapped[str] = mapped_column(String(64))
    revision: Mapped[int] = mapped_column(RowId, ForeignKey("revisions.number"), index=True)


class ChannelMoveRow(Base):
    """One move of a channel: who, why, from where to where; null is nowhere."""

    __tablename__ = "channel_history"
    __table_args__ = (
        Index("ix_channel_history_key", "problem", "environment_digest", "checkpoint", "channel"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    problem: Mapped[str] = mapped_column(String(256))
    environment_digest: Mapped[str] = mapped_column(Digest)
    checkpoint: Mapped[str] = mapped_column(String(32))
    channel: Mapped[str] = mapped_column(String(64))
    from_revision: Mapped[int | None] = mapped_column(RowId, ForeignKey("revisions.number"))
    to_revision: Mapped[int | None] = mapped_column(RowId, ForeignKey("revisions.number"))
    author: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    moved_at: Mapped[datetime] = mapped_column(UtcDateTime)


class TelemetryRow(Base):
    """How often a serving process asked for something, as it reported it."""

    __tablename__ = "telemetry"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    received_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    instance: Mapped[str] = mapped_column(Text)
    gpu: Mapped[str] = mapped_column(GpuName)
    problem: Mapped[str] = mapped_column(String(256), index=True)
    revision: Mapped[int | None] = mapped_column(BigInteger)
    tokens: Mapped[int] = mapped_column(BigInteger)
    answer: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(64))
    count: Mapped[int] = mapped_column(BigInteger)
