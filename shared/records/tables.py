"""The tables, as queries name them. Migrations make them; a test compares the two."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()
_Serial = BigInteger().with_variant(Integer(), "sqlite")
_previews = text("state = 'preview'")


def _text(name: str, **more: Any) -> Column[str]:
    return Column(name, Text, nullable=False, **more)


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _time(name: str) -> Column[float]:
    return Column(name, Float(53), nullable=False)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _serial(name: str) -> Column[int]:
    return Column(name, _Serial, primary_key=True, autoincrement=True)


connectors = Table(
    "connectors",
    metadata,
    _text("connector_id", primary_key=True),
    _text("card_id"),
    _time("seen_at"),
    Index("connectors_seen", "seen_at"),
)
channels = Table(
    "channels",
    metadata,
    _text("channel_id", primary_key=True),
    _text("card_id"),
    _text("connector_id"),
    _text("edge_id"),
    _text("session_id"),
    _text("status"),
    _text("target"),
    _bytes("sealed"),
    _text("reason"),
    _time("created_at"),
    Index("channels_connector", "connector_id"),
    Index("channels_session", "session_id"),
    Index("channels_edge", "edge_id"),
    Index("channels_created", "created_at"),
)
ledger = Table(
    "ledger",
    metadata,
    _text("channel", primary_key=True),
    _text("message_id", primary_key=True),
    _text("state"),
    _text("fingerprint"),
    _text("receipts"),
    _number("intent"),
    _text("preview"),
    _number("shown"),
    _text("code"),
    _text("detail"),
    Column("holder", Text, nullable=False, server_default=""),
    _time("updated_at"),
    Index("ledger_age", "updated_at"),
    Index("ledger_previews", "updated_at", postgresql_where=_previews, sqlite_where=_previews),
)
parked = Table(
    "parked",
    metadata,
    _serial("id"),
    _text("channel"),
    _number("partition"),
    _text("card"),
    _bytes("item"),
    _time("due_at"),
    _number("attempts"),
    _time("first_at"),
    _text("reason"),
    _text("kind"),
    Index("parked_partition", "partition", "channel", "id"),
    Index("parked_lane", "channel", "id"),
    sqlite_autoincrement=True,  # an id that was removed is never given again
)
dead_letters = Table(
    "dead_letters",
    metadata,
    _text("id", primary_key=True),
    _text("channel"),
    _text("card"),
    _text("message_id"),
    _text("direction"),
    _text("code"),
    _text("detail"),
    _bytes("body"),
    _number("attempts"),
    _time("at"),
    Index("dead_letters_age", "at"),
    Index("dead_letters_channel", "channel", "at"),
)
outbox = Table(
    "outbox",
    metadata,
    _serial("seq"),
    _text("channel"),
    _text("card"),
    _text("message_id"),
    _bytes("payload"),
    _time("accepted_at"),
    _time("expires_at"),
    _text("state"),
    _number("attempts"),
    _text("code"),
    UniqueConstraint("channel", "message_id", name="outbox_key"),
    Index("outbox_lane", "channel", "state", "seq"),
    Index("outbox_due", "state", "expires_at"),
    Index("outbox_age", "accepted_at"),
    sqlite_autoincrement=True,  # an id that was removed is never given again
)
files = Table(
    "files",
    metadata,
    _text("ref", primary_key=True),
    _text("channel"),
    _text("card"),
    _text("direction"),
    _text("filename"),
    _text("mime_type"),
    _text("file_type"),
    Column("byte_size", BigInteger, nullable=False),
    _text("storage_key"),
    _time("expires_at"),
    Index("files_age", "expires_at"),
    Index("files_channel", "channel"),
)
auth_sessions = Table(
    "auth_sessions",
    metadata,
    _text("session_id", primary_key=True),
    _text("channel"),
    _text("flow_id"),
    _text("status"),
    _text("message"),
    _time("expires_at"),
    Index("auth_sessions_channel", "channel"),
    Index("auth_sessions_age", "expires_at"),
)
transcript = Table(
    "transcript",
    metadata,
    _serial("seq"),
    _text("channel"),
    _text("message_id"),
    _text("author"),
    _text("text"),
    _bytes("files"),
    _time("at"),
    _number("revision"),
    UniqueConstraint("channel", "message_id", name="transcript_key"),
    Index("transcript_order", "channel", "seq"),
    sqlite_autoincrement=True,  # an id that was removed is never given again
)
attempts = Table(
    "attempts",
    metadata,
    _text("key", primary_key=True),
    _number("count"),
    _time("at"),
    Index("attempts_age", "at"),
)
