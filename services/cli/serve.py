"""Runs roles until SIGTERM or SIGINT, or until the chat on the terminal ends."""

import asyncio
import contextlib
import signal
import sys

from rich.console import Console as Screen

from services.cli import chat as chatting
from services.cli.demo import demo_agent
from services.cli.roles import Role, Running, run
from shared.config import Settings

CARDS = ("im.console", "im.webhook", "im.telegram")


async def serve(settings: Settings, roles: tuple[Role, ...], *, demo: bool, screen: Screen) -> None:
    """Returns when it is told to stop, everything finished or handed back."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with run(settings, roles) as running:
        if "edge" in roles and len(roles) > 1:
            _introduce(running, screen)
        elif running.main is not None or running.admin is not None:
            _print_ports(running, screen)
        if demo and running.main is not None:
            await _with_demo(running, settings, stop, screen)
        else:
            await stop.wait()


async def _with_demo(running: Running, settings: Settings, stop: asyncio.Event, screen: Screen) -> None:
    assert running.main is not None  # noqa: S101 - the caller has looked
    url = running.main.url
    async with demo_agent(f"{url}/im.console", settings.api_keys[0], settings.data_dir) as channel:
        if not sys.stdin.isatty():
            screen.print(f"demo agent    channel {channel}")
            screen.print(f'say something sluice send {channel} "hello" --url {url}', soft_wrap=True)
            await stop.wait()
            return
        talk = asyncio.create_task(chatting.chat(url, settings.api_keys[0], channel, screen))
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait([talk, waiting], return_when=asyncio.FIRST_COMPLETED)
        for task in (talk, waiting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _introduce(running: Running, screen: Screen) -> None:
    settings = running.settings
    assert running.main is not None  # noqa: S101 - only called with an edge
    shown = (*CARDS, "im.recording") if settings.recording else CARDS
    for card in shown:
        screen.print(f"{card:<13} {running.main.url}/{card}", soft_wrap=True, highlight=False)
    screen.print(f"API key       {settings.api_keys[0]}", soft_wrap=True, highlight=False)
    screen.print(f"data folder   {settings.data_dir}", soft_wrap=True, highlight=False)
    _print_ports(running, screen)
    screen.print("next          register a base URL and the API key with xAgent, or chat: sluice chat", soft_wrap=True)


def _print_ports(running: Running, screen: Screen) -> None:
    if running.main is not None:
        screen.print(f"listening     {running.main.url}", soft_wrap=True, highlight=False)
    admin = running.admin or running.main
    if admin is not None:
        screen.print(f"health        {admin.url}/healthz /readyz /metrics", soft_wrap=True, highlight=False)
