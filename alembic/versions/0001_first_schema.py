"""First schema: measurements, tables, revisions, channels and telemetry.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.String(64)
MOMENT = sa.DateTime(timezone=True)
IMMUTABLE = ("measurements", "routing_tables", "revisions")


def upgrade() -> None:
    _measurements()
    _revisions()
    _channels()
    _telemetry()
    for table in IMMUTABLE:
        _forbid_updates(table)


def _measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("problem", sa.String(256), nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("environment_digest", DIGEST, nullable=False),
        sa.Column("checkpoint", sa.String(32), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("routing", sa.String(64), nullable=False),
        sa.Column("backend", sa.String(64), nullable=False),
        sa.Column("candidate_digest", DIGEST, nullable=False),
        sa.Column("stage", sa.String(32), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
        sa.UniqueConstraint("digest", name="uq_measurements_digest"),
        sqlite_autoincrement=True,
    )
    _index("measurements", "problem", "environment_digest", "checkpoint")
    _index("measurements", "problem", "recorded_at")
    _index("measurements", "run")


def _revisions() -> None:
    op.create_table(
        "routing_tables",
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_routing_tables"),
    )
    op.create_table(
        "revisions",
        sa.Column("number", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("problem", sa.String(256), nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("environment_digest", DIGEST, nullable=False),
        sa.Column("checkpoint", sa.String(32), nullable=False),
        sa.Column("table_digest", DIGEST, nullable=True),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_revisions"),
        sa.ForeignKeyConstraint(
            ["table_digest"], ["routing_tables.digest"], name="fk_revisions_table_digest_routing_tables"
        ),
        sqlite_autoincrement=True,
    )
    _index("revisions", "problem", "environment_digest", "checkpoint")
    _index("revisions", "gpu")


def _channels() -> None:
    op.create_table(
        "channels",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        *_channel_key(),
        sa.Column("revision", ROW_ID, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_channels"),
        sa.ForeignKeyConstraint(["revision"], ["revisions.number"], name="fk_channels_revision_revisions"),
        sa.UniqueConstraint(
            "problem",
            "environment_digest",
            "checkpoint",
            "channel",
            name="uq_channels_problem_environment_digest_checkpoint_channel",
        ),
    )
    _index("channels", "revision")
    op.create_table(
        "channel_history",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        *_channel_key(),
        sa.Column("from_revision", ROW_ID, nullable=True),
        sa.Column("to_revision", ROW_ID, nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("moved_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_channel_history"),
        sa.ForeignKeyConstraint(
            ["from_revision"], ["revisions.number"], name="fk_channel_history_from_revision_revisions"
        ),
        sa.ForeignKeyConstraint(
            ["to_revision"], ["revisions.number"], name="fk_channel_history_to_revision_revisions"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_channel_history_key",
        "channel_history",
        ["problem", "environment_digest", "checkpoint", "channel"],
    )


def _telemetry() -> None:
    op.create_table(
        "telemetry",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("received_at", MOMENT, nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("gpu", sa.String(128), nullable=False),
        sa.Column("problem", sa.String(256), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_telemetry"),
        sqlite_autoincrement=True,
    )
    _index("telemetry", "received_at")
    _index("telemetry", "problem")


def _channel_key() -> tuple[sa.Column[str], ...]:
    return (
        sa.Column("problem", sa.String(256), nullable=False),
        sa.Column("environment_digest", DIGEST, nullable=False),
        sa.Column("checkpoint", sa.String(32), nullable=False),
        sa.Column("channel", sa.String(64), nullable=False),
    )


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _forbid_updates(table: str) -> None:
    """Let the database itself refuse to change evidence, tables and revisions."""
    message = f"{table} are immutable"
    if op.get_context().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {table}_immutable BEFORE UPDATE ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION {table}_immutable() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_immutable BEFORE UPDATE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {table}_immutable()"
    )
