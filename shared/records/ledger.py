"""The ledger's rows: one statement for a whole batch, its rows as one JSON parameter (docs/delivery-and-ledger.md)."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import TextClause, text

from shared.records.database import Database
from shared.records.model import Claim, Claimed, LedgerEntry, LedgerUpdate, Receipt

_COLUMNS: Final = "channel, message_id, state, fingerprint, receipts, intent, preview, shown, code, detail, updated_at"
_Receipts = msgspec.json.Decoder(tuple[Receipt, ...])
Key = tuple[str, str]


def _rows(is_sqlite: bool, fields: dict[str, str]) -> str:  # noqa: FBT001 - which of two dialects
    """The rows of the JSON parameter `:rows` as a table `r`."""
    if is_sqlite:
        columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in fields)
        return f"(SELECT key AS n, {columns} FROM json_each(:rows)) AS r"  # noqa: S608 - names of our own
    columns = ", ".join(f"{name} {kind}" for name, kind in fields.items())
    return f"json_to_recordset(CAST(:rows AS json)) AS r({columns})"


class LedgerRecords:
    """See `shared.records.model.LedgerEntry`.

    Args:
        database: where the rows are.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        lite = database.is_sqlite
        self._keys = _rows(lite, {"c": "text", "m": "text"})
        self._claim = self._claim_statement(lite)
        self._update = self._update_statement(lite)
        self._get = text(
            f"SELECT {_COLUMNS} FROM ledger WHERE (channel, message_id) IN (SELECT r.c, r.m FROM {self._keys})"  # noqa: S608
        )

    @staticmethod
    def _claim_statement(lite: bool) -> TextClause:  # noqa: FBT001
        rows = _rows(lite, {"c": "text", "m": "text", "f": "text", "t": "float8"})
        guard = "WHERE true" if lite else ""
        return text(
            f"INSERT INTO ledger ({_COLUMNS}) "  # noqa: S608 - names of our own
            f"SELECT r.c, r.m, 'open', r.f, '[]', -1, '[]', 0, '', '', r.t FROM {rows} {guard} "
            "ON CONFLICT (channel, message_id) DO UPDATE SET state = 'open', fingerprint = excluded.fingerprint, "
            "updated_at = excluded.updated_at, code = '' WHERE ledger.state = 'preview' "
            f"RETURNING {_COLUMNS}"
        )

    @staticmethod
    def _update_statement(lite: bool) -> TextClause:  # noqa: FBT001
        fields = {"c": "text", "m": "text", "s": "text", "f": "text", "r": "text", "i": "int", "p": "text", "w": "int"}
        rows = _rows(lite, {**fields, "k": "text", "d": "text", "t": "float8"})
        guard = "WHERE true" if lite else ""
        return text(
            f"INSERT INTO ledger ({_COLUMNS}) "  # noqa: S608 - names of our own
            f"SELECT r.c, r.m, r.s, r.f, r.r, r.i, r.p, r.w, r.k, r.d, r.t FROM {rows} {guard} "
            "ON CONFLICT (channel, message_id) DO UPDATE SET state = excluded.state, receipts = excluded.receipts, "
            "intent = excluded.intent, preview = excluded.preview, shown = excluded.shown, code = excluded.code, "
            "detail = excluded.detail, updated_at = excluded.updated_at, fingerprint = CASE WHEN "
            "excluded.fingerprint = '' THEN ledger.fingerprint ELSE excluded.fingerprint END "
            "WHERE NOT (excluded.state = 'preview' AND ledger.state <> 'preview')"
        )

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Claims each; of several for one key the first is fresh."""
        first: dict[Key, Claim] = {}
        for claim in claims:
            first.setdefault((claim.channel, claim.message_id), claim)
        rows = [
            {"c": c.channel, "m": c.message_id, "f": c.fingerprint, "t": c.at}
            for c in sorted(first.values(), key=lambda c: (c.channel, c.message_id))
        ]
        async with self._db.begin() as connection:
            made = (await connection.execute(self._claim, {"rows": _json(rows)})).all()
            fresh = {(row[0], row[1]): _entry(row) for row in made}
            found = dict(fresh)
            if missing := [{"c": c, "m": m} for c, m in first if (c, m) not in fresh]:
                more = (await connection.execute(self._get, {"rows": _json(missing)})).all()
                found |= {(row[0], row[1]): _entry(row) for row in more}
        claimed: list[Claimed] = []
        for claim in claims:
            key = (claim.channel, claim.message_id)
            claimed.append(Claimed(found[key], fresh=fresh.pop(key, None) is not None))
        return claimed

    async def update(self, updates: Sequence[LedgerUpdate]) -> None:
        """Writes each; of several for one key the last wins. A preview never overwrites a final."""
        last = {(u.channel, u.message_id): u for u in updates}
        if len(last) != len(updates):
            await self._update_in_rounds(updates)
            return
        await self._write(list(last.values()))

    async def get(self, keys: Sequence[Key]) -> list[LedgerEntry | None]:
        """What stands of each."""
        rows = [{"c": c, "m": m} for c, m in sorted(set(keys))]
        async with self._db.begin() as connection:
            found = (await connection.execute(self._get, {"rows": _json(rows)})).all()
        entries = {(row[0], row[1]): _entry(row) for row in found}
        return [entries.get(key) for key in keys]

    async def stale_previews(self, before: float, limit: int) -> list[LedgerEntry]:
        """Previews whose final never came, and that nobody has marked yet."""
        statement = text(
            f"SELECT {_COLUMNS} FROM ledger WHERE state = 'preview' AND code = '' AND updated_at < :before "  # noqa: S608
            "ORDER BY updated_at LIMIT :limit"
        )
        async with self._db.begin() as connection:
            return [
                _entry(row) for row in (await connection.execute(statement, {"before": before, "limit": limit})).all()
            ]

    async def purge(self, before: float, step: int = 5000) -> int:
        """Forgets rows that have rested since `before`, a bounded number at a time."""
        statement = text(
            "DELETE FROM ledger WHERE (channel, message_id) IN "
            "(SELECT channel, message_id FROM ledger WHERE updated_at < :before LIMIT :step)"
        )
        async with self._db.begin() as connection:
            return (await connection.execute(statement, {"before": before, "step": step})).rowcount

    async def _update_in_rounds(self, updates: Sequence[LedgerUpdate]) -> None:
        """Several updates of one key keep their order."""
        waiting = list(updates)
        while waiting:
            seen: set[Key] = set()
            batch: list[LedgerUpdate] = []
            rest: list[LedgerUpdate] = []
            for update in waiting:
                key = (update.channel, update.message_id)
                (rest if key in seen else batch).append(update)
                seen.add(key)
            await self._write(batch)
            waiting = rest

    async def _write(self, updates: list[LedgerUpdate]) -> None:
        updates.sort(key=lambda u: (u.channel, u.message_id))
        rows = [
            {
                "c": u.channel,
                "m": u.message_id,
                "s": u.state,
                "f": u.fingerprint,
                "r": _json(u.receipts),
                "i": u.intent,
                "p": _json(u.preview),
                "w": u.shown,
                "k": u.code,
                "d": u.detail,
                "t": u.at,
            }
            for u in updates
        ]
        async with self._db.begin() as connection:
            await connection.execute(self._update, {"rows": _json(rows)})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _entry(row: Any) -> LedgerEntry:
    channel, message_id, state, print_, receipts, intent, preview, shown, code, detail, at = row
    return LedgerEntry(
        channel,
        message_id,
        state,
        print_,
        _Receipts.decode(receipts),
        intent,
        _Receipts.decode(preview),
        shown,
        code,
        detail,
        at,
    )
