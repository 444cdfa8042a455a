"""The first tables."""

from alembic import op

from shared.records.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes them."""
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Drops them."""
    metadata.drop_all(op.get_bind())
