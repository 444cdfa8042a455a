"""What an operator looks at and decides: channels, outbox, parked work, dead letters. Works on the records alone."""

from datetime import UTC, datetime
from typing import Literal

from rich.console import Console as Screen
from rich.table import Table

from services.conformance import Report
from shared.clock import SystemClock
from shared.records import open_records
from shared.records.model import DeadLetter, OutboxRow, Parked
from shared.wire.ids import partition_of

Action = Literal["list", "show", "retry", "drop"]
COLOURS = {"pass": "green", "fail": "bold red", "skip": "yellow"}


class OperateError(Exception):
    """What was named is not there; the message says what to do."""


async def channels(records_url: str, card: str, limit: int, screen: Screen) -> None:
    """Lists channels."""
    table = _table("channel", "card", "status", "open at", "shown as", "since", "reason")
    async with open_records(records_url) as records:
        for row in await records.channels.find(limit, card):
            label = row.target.get("label", "")
            table.add_row(
                row.channel_id, row.card_id, row.status, row.edge_id or "-", label, _when(row.created_at), row.reason
            )
    screen.print(table)


async def newest_channel(records_url: str, card: str) -> str:
    """The channel that was made last.

    Raises:
        OperateError: there is none.
    """
    async with open_records(records_url) as records:
        rows = await records.channels.find(1000, card)
    if not rows:
        raise OperateError(f"no channel on {card} yet: an agent has to open one (try `sluice up --demo`)")
    return max(rows, key=lambda row: row.created_at).channel_id


async def outbox(records_url: str, action: Action, item: str, channel: str, limit: int, screen: Screen) -> None:
    """Messages of people that xAgent has not taken."""
    async with open_records(records_url) as records:
        if action == "list":
            table = _table("item", "card", "state", "attempts", "accepted", "expires", "code")
            for row in await records.outbox.find(limit, channel):
                name = f"{row.channel}/{row.message_id}"
                times = _when(row.accepted_at), _when(row.expires_at)
                table.add_row(name, row.card, row.state, str(row.attempts), *times, row.code)
            screen.print(table)
            return
        where, _, message_id = item.partition("/")
        found: OutboxRow | None = await records.outbox.get(where, message_id)
        if found is None:
            raise OperateError(f"no such message: {item!r}; `sluice outbox` lists them as channel/message_id")
        if action == "show":
            screen.print(found)
        elif action == "retry":
            await records.outbox.retry(where, message_id)
            screen.print("pending again")
        else:
            await records.outbox.drop(where, message_id)
            screen.print("dropped")


async def parked(records_url: str, action: Action, item: str, channel: str, limit: int, screen: Screen) -> None:
    """Deliveries that wait."""
    async with open_records(records_url) as records:
        if action == "list":
            table = _table("id", "channel", "card", "due", "attempts", "since", "reason")
            for row in await records.parked.find(limit, channel):
                due, since = _when(row.due_at), _when(row.first_at)
                table.add_row(str(row.id), row.channel, row.card, due, str(row.attempts), since, row.reason)
            screen.print(table)
            return
        found: Parked | None = await records.parked.get(int(item)) if item.isdecimal() else None
        if found is None:
            raise OperateError(f"no parked row {item!r}; `sluice parked` lists them")
        if action == "show":
            screen.print(found)
        elif action == "retry":
            await records.parked.retry(found.id)
            screen.print("due now; a running worker takes it within a second")
        else:
            await _drop_parked(records_url, found)
            screen.print("dropped; it is among the dead letters")


async def _drop_parked(records_url: str, row: Parked) -> None:
    async with open_records(records_url) as records:
        letter = DeadLetter(
            id=f"dropped:{row.id}",
            channel=row.channel,
            card=row.card,
            message_id="",
            direction="bus",
            code="dropped",
            detail=f"by an operator; it was parked: {row.reason}",
            body=row.item,
            attempts=row.attempts,
            at=SystemClock().now(),
        )
        await records.dead.bury([letter])
        await records.parked.remove([row.id])


async def dead_letters(
    records_url: str, action: Action, item: str, channel: str, limit: int, partitions: int, screen: Screen
) -> None:
    """Messages given up."""
    async with open_records(records_url) as records:
        if action == "list":
            table = _table("id", "channel", "direction", "code", "attempts", "at", "detail")
            for row in await records.dead.find(limit, channel):
                when = _when(row.at)
                table.add_row(row.id, row.channel, row.direction, row.code, str(row.attempts), when, row.detail)
            screen.print(table)
            return
        found: DeadLetter | None = await records.dead.get(item)
        if found is None:
            raise OperateError(f"no dead letter {item!r}; `sluice dead-letters` lists them")
        if action == "show":
            screen.print(found)
        elif action == "retry":
            if found.direction == "bus":
                raise OperateError("this one has no channel to go to; `show` prints it, `drop` removes it")
            now = SystemClock().now()
            await records.dead.retry(item, lambda name: partition_of(name, partitions), now)
            screen.print("sent once more; a running worker takes it within a second")
        else:
            await records.dead.remove(item)
            screen.print("dropped")


def print_report(report: Report, screen: Screen) -> None:
    """The conformance report: a line a rule, and the count."""
    table = _table("result", "rule", "section", "what", "detail")
    for result in report.results:
        colour = COLOURS[result.status]
        table.add_row(f"[{colour}]{result.status}[/]", result.rule_id, result.section, result.title, result.detail)
    screen.print(table)
    counts = {status: sum(r.status == status for r in report.results) for status in COLOURS}
    screen.print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
