"""Run migrations on the connection that `autotune.db.schema` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from autotune.db.models import Base
from autotune.db.schema import VERSION_TABLE, is_ours

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_object=is_ours,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
