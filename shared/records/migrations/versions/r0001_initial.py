"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes them."""
    op.create_table(
        "attempts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("attempts_age", "attempts", ["at"])
    op.create_table(
        "auth_sessions",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("flow_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_index("auth_sessions_age", "auth_sessions", ["expires_at"])
    op.create_index("auth_sessions_channel", "auth_sessions", ["channel"])
    op.create_table(
        "channels",
        sa.Column("channel_id", sa.Text(), nullable=False),
        sa.Column("card_id", sa.Text(), nullable=False),
        sa.Column("connector_id", sa.Text(), nullable=False),
        sa.Column("edge_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("channel_id"),
    )
    op.create_index("channels_connector", "channels", ["connector_id"])
    op.create_index("channels_created", "channels", ["created_at"])
    op.create_index("channels_edge", "channels", ["edge_id"])
    op.create_index("channels_session", "channels", ["session_id"])
    op.create_table(
        "connectors",
        sa.Column("connector_id", sa.Text(), nullable=False),
        sa.Column("card_id", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("connector_id"),
    )
    op.create_index("connectors_seen", "connectors", ["seen_at"])
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("dead_letters_age", "dead_letters", ["at"])
    op.create_index("dead_letters_channel", "dead_letters", ["channel", "at"])
    op.create_table(
        "files",
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("file_type", sa.Text(), nullable=False),
        sa.Column("byte_size", sa.BigInteger(), nullable=False),
        sa.Column("storage_key", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("ref"),
    )
    op.create_index("files_age", "files", ["expires_at"])
    op.create_index("files_channel", "files", ["channel"])
    op.create_table(
        "ledger",
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("receipts", sa.Text(), nullable=False),
        sa.Column("intent", sa.Integer(), nullable=False),
        sa.Column("preview", sa.Text(), nullable=False),
        sa.Column("shown", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("channel", "message_id"),
    )
    op.create_index("ledger_age", "ledger", ["updated_at"])
    op.create_index(
        "ledger_previews",
        "ledger",
        ["updated_at"],
        postgresql_where=sa.text("state = 'preview'"),
        sqlite_where=sa.text("state = 'preview'"),
    )
    op.create_table(
        "outbox",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("accepted_at", sa.Float(53), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("channel", "message_id", name="outbox_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_age", "outbox", ["accepted_at"])
    op.create_index("outbox_due", "outbox", ["state", "expires_at"])
    op.create_index("outbox_lane", "outbox", ["channel", "state", "seq"])
    op.create_table(
        "parked",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("card", sa.Text(), nullable=False),
        sa.Column("item", sa.LargeBinary(), nullable=False),
        sa.Column("due_at", sa.Float(53), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.Float(53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("parked_lane", "parked", ["channel", "id"])
    op.create_index("parked_partition", "parked", ["partition", "channel", "id"])
    op.create_table(
        "transcript",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("files", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("channel", "message_id", name="transcript_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("transcript_order", "transcript", ["channel", "seq"])


def downgrade() -> None:
    """Drops them."""
    for name in (
        "attempts",
        "auth_sessions",
        "channels",
        "connectors",
        "dead_letters",
        "files",
        "ledger",
        "outbox",
        "parked",
        "transcript",
    ):
        op.drop_table(name)
