"""The ledger's rows. Every call is one statement whose one parameter is a JSON array: a batch costs a round trip."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import text

from shared.records import tables as t
from shared.records.database import Database
from shared.records.errors import RecordsUnavailable
from shared.records.model import Claim, Claimed, Intent, LedgerEntry, LedgerUpdate, Receipt
from shared.records.sql import purge
from shared.text.policy import clean_text

Key = tuple[str, str]
_COLUMNS: Final = "channel, message_id, state, fingerprint, receipts, intent, preview, shown, code, detail, updated_at"
_OLD: Final = ", ".join(f"l.{name}" for name in _COLUMNS.split(", "))
_KEY: Final = {"c": "text", "m": "text"}
_CLAIM: Final = {**_KEY, "f": "text", "t": "float8"}
_UPDATE: Final = {
    **_CLAIM, "s": "text", "r": "text", "i": "int", "p": "text", "w": "int", "k": "text", "d": "text", "h": "text"
}  # fmt: skip
_INTENT: Final = {**_KEY, "i": "int", "r": "text", "h": "text", "t": "float8"}
_CLAIM_ATTEMPTS: Final = 5
_receipts = msgspec.json.Decoder(tuple[Receipt, ...])

# S608 below: the pieces are names of our own, and every value travels in the parameter.
_INSERT_CLAIMS: Final = (
    f"INSERT INTO ledger ({_COLUMNS}) SELECT r.c, r.m, 'open', r.f, '[]', -1, '[]', 0, '', '', r.t FROM {{rows}} "  # noqa: S608
    "WHERE true ON CONFLICT (channel, message_id) DO UPDATE SET state = 'open', fingerprint = excluded.fingerprint, "
    "updated_at = excluded.updated_at, code = '', detail = '' WHERE ledger.state = 'preview' "
    f"RETURNING {_COLUMNS}"
)
# A worker that was away writes what was true when it left. So "done" is the end, "open" changes nothing that has ended
# or is another's intent, and receipts, with them their text, only grow.
_UPSERT: Final = (
    f"INSERT INTO ledger ({_COLUMNS}, holder) "  # noqa: S608
    "SELECT r.c, r.m, r.s, r.f, r.r, r.i, r.p, r.w, r.k, r.d, r.t, r.h FROM {rows} "
    "WHERE true ON CONFLICT (channel, message_id) DO UPDATE SET state = excluded.state, receipts = "
    "CASE WHEN length(excluded.receipts) < length(ledger.receipts) THEN ledger.receipts ELSE excluded.receipts END, "
    "intent = excluded.intent, preview = excluded.preview, shown = excluded.shown, code = excluded.code, "
    "detail = excluded.detail, updated_at = excluded.updated_at, fingerprint = "
    "CASE WHEN excluded.fingerprint = '' THEN ledger.fingerprint ELSE excluded.fingerprint END "
    "WHERE CASE excluded.state WHEN 'preview' THEN ledger.state = 'preview' "
    "WHEN 'open' THEN ledger.state = 'preview' OR (ledger.state = 'open' "
    "AND (ledger.intent = -1 OR ledger.holder = excluded.holder)) "
    "WHEN 'rejected' THEN ledger.state <> 'done' ELSE true END"
)
_INTEND: Final = (
    "UPDATE ledger SET intent = r.i, holder = r.h, updated_at = r.t FROM {rows} WHERE channel = r.c "
    "AND message_id = r.m AND state = 'open' AND receipts = r.r AND (intent = -1 OR (intent = r.i AND holder = r.h)) "
    "RETURNING channel, message_id"
)
_SELECT: Final = f"SELECT {_OLD} FROM {{rows}} JOIN ledger AS l ON l.channel = r.c AND l.message_id = r.m"  # noqa: S608


def _table(fields: dict[str, str]) -> str:
    """The parameter's rows as a table `r` of PostgreSQL."""
    columns = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    return f"json_to_recordset($1::json) AS r({columns})"


def _lite_table(fields: dict[str, str]) -> str:
    """The parameter's rows as a table `r` of SQLite."""
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in fields)
    return f"(SELECT {columns} FROM json_each(?1)) AS r"  # noqa: S608


def _claim_once() -> str:
    """Claims, and tells what stood there already; a row that another committed meanwhile is in neither half."""
    return (
        f"WITH made AS ({_INSERT_CLAIMS.format(rows=_table(_CLAIM))}) "  # noqa: S608
        f"SELECT true AS fresh, {_COLUMNS} FROM made UNION ALL SELECT false, {_OLD} FROM {_table(_KEY)} "
        "JOIN ledger AS l ON l.channel = r.c AND l.message_id = r.m WHERE NOT EXISTS "
        "(SELECT FROM made WHERE made.channel = r.c AND made.message_id = r.m)"
    )


def _claim_lite() -> str:
    inserted = _INSERT_CLAIMS.format(rows=_lite_table(_CLAIM))
    return inserted.replace("RETURNING ", "RETURNING 1, ")


class LedgerRecords:
    """See `shared.records.model.LedgerEntry`."""

    def __init__(self, database: Database) -> None:
        self._db = database
        table = _lite_table if database.is_sqlite else _table
        self._claim = _claim_lite() if database.is_sqlite else _claim_once()
        self._upsert = _UPSERT.format(rows=table(_UPDATE))
        self._intend = _INTEND.format(rows=table(_INTENT))
        self._select = _SELECT.format(rows=table(_KEY))

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Claims each, in order; of several claims of one key only the first can be fresh.

        Raises:
            RecordsUnavailable: the database is away; a claim may have been made, and will not be fresh again.
        """
        waiting: dict[Key, Claim] = {}
        for claim in claims:
            waiting.setdefault((claim.channel, claim.message_id), claim)
        found: dict[Key, Claimed] = {}
        for _ in range(_CLAIM_ATTEMPTS):  # a row may be purged between the claim that met it and the look at it
            found |= await self._claim_some([waiting[key] for key in sorted(waiting.keys() - found.keys())])
            if len(found) == len(waiting):
                return [_taken(found, (claim.channel, claim.message_id)) for claim in claims]
        raise RecordsUnavailable("ledger rows come and go")

    async def update(self, updates: Sequence[LedgerUpdate]) -> None:
        """Writes each, in order; durable when it returns. What would undo what another has written is left out."""
        rows = [
            {
                "c": u.channel,
                "m": u.message_id,
                "f": u.fingerprint,
                "t": u.at,
                "s": u.state,
                "i": u.intent,
                "r": _json(u.receipts),
                "p": _json(u.preview),
                "w": u.shown,
                "k": u.code,
                "d": clean_text(u.detail),
                "h": u.holder,
            }
            for u in merged(updates)
        ]
        if rows:
            await self._db.write_rows(self._upsert, _json(rows))

    async def reopen(self, channel: str, message_id: str) -> None:
        """Opens a refused row again, with the receipts it has; nothing where it is not refused."""
        statement = text(
            "UPDATE ledger SET state = 'open', code = '', detail = '' "
            "WHERE channel = :channel AND message_id = :message_id AND state = 'rejected'"
        )
        async with self._db.writing() as connection:
            await connection.execute(statement, {"channel": channel, "message_id": message_id})

    async def intend(self, intents: Sequence[Intent]) -> list[bool]:
        """Writes down that calls are about to be made; False for one that another worker has got ahead with.

        It may be asked again by the same holder, who then gets the same answer.
        """
        rows = [
            {
                "c": intent.channel,
                "m": intent.message_id,
                "i": intent.ordinal,
                "r": _json(intent.receipts),
                "h": intent.holder,
                "t": intent.at,
            }
            for intent in sorted(intents, key=lambda intent: (intent.channel, intent.message_id))
        ]
        written = await self._db.write_rows(self._intend, _json(rows)) if rows else ()
        held = {(row[0], row[1]) for row in written}
        return [(intent.channel, intent.message_id) in held for intent in intents]

    async def get(self, keys: Sequence[Key]) -> list[LedgerEntry | None]:
        """What stands there, for each key in order."""
        found = await self._look(keys) if keys else {}
        return [found.get(key) for key in keys]

    async def stale_previews(self, before: float, limit: int) -> list[LedgerEntry]:
        """Previews whose final never came and that nobody has marked (with a code) yet, the oldest first."""
        statement = text(
            f"SELECT {_COLUMNS} FROM ledger WHERE state = 'preview' AND code = '' AND updated_at < :before "  # noqa: S608
            "ORDER BY updated_at LIMIT :limit"
        )
        async with self._db.reading() as connection:
            rows = await connection.execute(statement, {"before": before, "limit": limit})
            return [_entry(row) for row in rows]

    async def purge(self, before: float) -> int:
        """Forgets rows that have rested since `before`, in bounded steps; returns how many."""
        return await purge(self._db, t.ledger, t.ledger.c.updated_at < before)

    async def _claim_some(self, claims: Sequence[Claim]) -> dict[Key, Claimed]:
        rows = [{"c": c.channel, "m": c.message_id, "f": c.fingerprint, "t": c.at} for c in claims]
        answer = await self._db.write_rows(self._claim, _json(rows)) if rows else ()
        found = {(row[1], row[2]): Claimed(_entry(row[1:]), fresh=bool(row[0])) for row in answer}
        missing = [key for claim in claims if (key := (claim.channel, claim.message_id)) not in found]
        if missing:
            found |= {key: Claimed(entry, fresh=False) for key, entry in (await self._look(missing)).items()}
        return found

    async def _look(self, keys: Iterable[Key]) -> dict[Key, LedgerEntry]:
        rows = [{"c": channel, "m": message_id} for channel, message_id in sorted(set(keys))]
        return {(row[0], row[1]): _entry(row) for row in await self._db.read_rows(self._select, _json(rows))}


def merged(updates: Sequence[LedgerUpdate]) -> list[LedgerUpdate]:
    """What several updates come to, one a key and sorted by key, so that two batches never wait for one another."""
    last: dict[Key, LedgerUpdate] = {}
    for update in updates:
        key = (update.channel, update.message_id)
        before = last.get(key)
        if before is None:
            last[key] = update
        elif update.state != "preview" or before.state == "preview":
            kept = update.fingerprint or before.fingerprint
            last[key] = msgspec.structs.replace(update, fingerprint=kept)
    return [last[key] for key in sorted(last)]


def _taken(found: dict[Key, Claimed], key: Key) -> Claimed:
    claimed = found[key]
    if claimed.fresh:
        found[key] = Claimed(claimed.entry, fresh=False)
    return claimed


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _entry(row: Any) -> LedgerEntry:
    channel, message_id, state, print_, receipts, intent, preview, shown, code, detail, at = row
    landed, seen = _receipts.decode(receipts), _receipts.decode(preview)
    return LedgerEntry(channel, message_id, state, print_, landed, intent, seen, shown, code, detail, at)
