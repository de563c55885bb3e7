"""A channel may be taken back to before its first revision: a move may lead to none.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # SQLite cannot change a column: Alembic copies the table there, and would forget AUTOINCREMENT.
    with op.batch_alter_table("channel_history", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.alter_column("to_revision", existing_type=ROW_ID, nullable=True)
