"""Who wrote the intent of a call, so that a worker that was away cannot make it a second time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the column; an intent from before has no holder, and nobody may repeat its call."""
    op.add_column("ledger", sa.Column("holder", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    """Removes it."""
    op.drop_column("ledger", "holder")
