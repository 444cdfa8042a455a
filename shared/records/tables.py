"""The tables (SQLAlchemy Core). Alembic's first migration makes exactly these."""

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
_Auto = BigInteger().with_variant(Integer(), "sqlite")


def _text(name: str, **more: object) -> Column[str]:
    return Column(name, Text, nullable=False, server_default="", **more)  # type: ignore[arg-type]


connectors = Table(
    "connectors",
    metadata,
    Column("connector_id", String(256), primary_key=True),
    _text("card_id"),
    Column("seen_at", Float(53), nullable=False, index=True),
)
channels = Table(
    "channels",
    metadata,
    Column("channel_id", String(256), primary_key=True),
    _text("card_id"),
    _text("connector_id", index=True),
    _text("edge_id"),
    _text("session_id", index=True),
    _text("status"),
    _text("target"),
    Column("sealed", LargeBinary, nullable=False),
    _text("reason"),
    Column("created_at", Float(53), nullable=False),
)
ledger = Table(
    "ledger",
    metadata,
    Column("channel", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    _text("state"),
    _text("fingerprint"),
    _text("receipts"),
    Column("intent", Integer, nullable=False),
    _text("preview"),
    Column("shown", Integer, nullable=False),
    _text("code"),
    _text("detail"),
    Column("updated_at", Float(53), nullable=False),
    Index("ledger_age", "updated_at"),
    Index(
        "ledger_preview",
        "updated_at",
        postgresql_where=text("state = 'preview'"),
        sqlite_where=text("state = 'preview'"),
    ),
)
parked = Table(
    "parked",
    metadata,
    Column("id", _Auto, primary_key=True, autoincrement=True),
    _text("channel"),
    Column("partition", Integer, nullable=False),
    _text("card"),
    Column("item", LargeBinary, nullable=False),
    Column("due_at", Float(53), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("first_at", Float(53), nullable=False),
    _text("reason"),
    _text("kind"),
    Index("parked_lane", "partition", "channel", "id"),
)
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Text, primary_key=True),
    _text("channel"),
    _text("card"),
    _text("message_id"),
    _text("direction"),
    _text("code"),
    _text("detail"),
    Column("body", LargeBinary, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("at", Float(53), nullable=False, index=True),
)
outbox = Table(
    "outbox",
    metadata,
    Column("seq", _Auto, primary_key=True, autoincrement=True),
    _text("channel"),
    _text("card"),
    _text("message_id"),
    Column("payload", LargeBinary, nullable=False),
    Column("accepted_at", Float(53), nullable=False),
    Column("expires_at", Float(53), nullable=False),
    _text("state"),
    Column("attempts", Integer, nullable=False),
    _text("code"),
    UniqueConstraint("channel", "message_id"),
    Index("outbox_due", "state", "channel", "seq"),
    Index("outbox_age", "state", "expires_at"),
)
files = Table(
    "files",
    metadata,
    Column("ref", Text, primary_key=True),
    _text("channel"),
    _text("card"),
    _text("direction"),
    _text("filename"),
    _text("mime_type"),
    _text("file_type"),
    Column("byte_size", BigInteger, nullable=False),
    _text("storage_key"),
    Column("expires_at", Float(53), nullable=False, index=True),
)
auth_sessions = Table(
    "auth_sessions",
    metadata,
    Column("session_id", Text, primary_key=True),
    _text("channel"),
    _text("flow_id"),
    _text("status"),
    _text("message"),
    Column("expires_at", Float(53), nullable=False),
)
transcript = Table(
    "transcript",
    metadata,
    Column("seq", _Auto, primary_key=True, autoincrement=True),
    _text("channel"),
    _text("message_id"),
    _text("author"),
    _text("text"),
    Column("files", LargeBinary, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("revision", Integer, nullable=False),
    UniqueConstraint("channel", "message_id"),
)
attempts = Table(
    "attempts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("at", Float(53), nullable=False),
)
