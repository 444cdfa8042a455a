"""`sluice doctor`: asks every dependency, and says what is wrong and what to do."""

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from rich.console import Console as Screen
from rich.table import Table

from shared.bus.open import open_bus
from shared.clock import SystemClock
from shared.config import Settings
from shared.crypto import Keyring
from shared.files import open_files
from shared.net.guard import AllowList
from shared.records import migrate, open_records
from shared.state.client import open_state

AGAIN_SECONDS: Final = 1.0


async def examine_until(settings: Settings, screen: Screen, seconds: float) -> bool:
    """Looks again, unseen, until all is well or the time is up; prints the last look."""
    clock = SystemClock()
    until, unseen = clock.monotonic() + seconds, Screen(file=io.StringIO())
    while clock.monotonic() < until and not await examine(settings, unseen):
        await clock.sleep(AGAIN_SECONDS)
    return await examine(settings, screen)


async def examine(settings: Settings, screen: Screen) -> bool:
    """Prints a line a check and every limit; returns whether all is well."""
    checks: list[tuple[str, Callable[[], Awaitable[str]], str]] = [
        ("secret key", lambda: _key(settings), "SLUICE_SECRET_KEY: make one with `sluice keys`"),
        ("bus", lambda: _bus(settings), "SLUICE_BUS_URL: is RabbitMQ up, and the user allowed on the vhost?"),
        ("state", lambda: _state(settings), "SLUICE_STATE_URL: is Redis up?"),
        ("records", lambda: _records(settings), "SLUICE_RECORDS_URL: is the database up, and the role allowed?"),
        ("files", lambda: _files(settings), "SLUICE_FILES_URL: is the folder writable, or the bucket there?"),
        ("private targets", lambda: _allow(settings), "SLUICE_ALLOW_PRIVATE_TARGETS: CIDRs or true"),
    ]
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "found"):
        table.add_column(column, overflow="fold")
    well = True
    for name, check, advice in checks:
        try:
            found, mark = await check(), "[green]ok[/]"
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator reads it
            found, mark, well = f"{type(error).__name__}: {error}\n{advice}", "[bold red]wrong[/]", False
        table.add_row(mark, name, found)
    for name, value in msgspec.structs.asdict(settings.limits).items():
        table.add_row("", f"limit {name}", str(value))
    table.add_row("", "partitions", str(settings.partitions))
    screen.print(table)
    return well


async def _key(settings: Settings) -> str:
    Keyring.parse(settings.secret_key)
    return "usable"


async def _bus(settings: Settings) -> str:
    async with open_bus(settings.bus_url, SystemClock()) as bus:
        if not bus.ready():
            raise ConnectionError("not connected")
    return settings.bus_url.split(":", 1)[0]


async def _state(settings: Settings) -> str:
    async with open_state(settings.state_url) as state:
        await state.ping()
    return settings.state_url.split(":", 1)[0]


async def _records(settings: Settings) -> str:
    await migrate(settings.records_url)
    async with open_records(settings.records_url) as records:
        await records.check()
    return settings.records_url.split(":", 1)[0]


async def _files(settings: Settings) -> str:
    store = open_files(settings.files_url)
    stored = await store.put(_probe(), 16)
    await store.delete(stored.key)
    return settings.files_url.split(":", 1)[0]


async def _probe() -> AsyncIterator[bytes]:
    yield b"probe"


async def _allow(settings: Settings) -> str:
    AllowList.parse(settings.allow_private_targets)
    return settings.allow_private_targets or "none"
