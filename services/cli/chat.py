"""The terminal as a place where a person chats: lines out, the reply growing in place."""

import asyncio
import sys

import aiohttp
import msgspec
from rich.console import Console as Screen
from rich.live import Live
from rich.text import Text

from shared.wire.notes import TranscriptEvent


class _Event(TranscriptEvent, frozen=True):
    code: str = ""


def _headers(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


async def send_line(root: str, api_key: str, channel: str, text: str) -> str:
    """Sends one line; returns added, duplicate or full, or the code of an error."""
    async with (
        aiohttp.ClientSession(headers=_headers(api_key)) as session,
        session.ws_connect(f"{root}/im.console/chat/{channel}") as socket,
    ):
        await socket.send_json({"text": text})
        async for frame in socket:
            event = msgspec.json.decode(frame.data, type=_Event)
            if event.event in ("sent", "error"):
                return event.status or event.code
    return "connection closed"


async def chat(root: str, api_key: str, channel: str, screen: Screen) -> None:
    """Runs until the input ends (Ctrl-D) or the server closes."""
    async with (
        aiohttp.ClientSession(headers=_headers(api_key)) as session,
        session.ws_connect(f"{root}/im.console/chat/{channel}") as socket,
    ):
        screen.print(f"[dim]chatting on {channel}; Ctrl-D ends[/]")
        view = _View(screen)
        shown = asyncio.create_task(_show(socket, view))
        typed = asyncio.create_task(_type(socket))
        _, pending = await asyncio.wait([shown, typed], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        view.end()


class _View:
    """One reply at a time, drawn in place until it is complete."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._live: Live | None = None

    def draw(self, text: Text) -> None:
        """Shows what there is so far."""
        if self._live is None:
            self._live = Live(console=self._screen, refresh_per_second=20, transient=True)
            self._live.start()
        self._live.update(text)

    def end(self) -> None:
        """Takes the drawing away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def print(self, text: Text) -> None:
        """Puts a line above what comes next."""
        self.end()
        self._screen.print(text)


async def _show(socket: aiohttp.ClientWebSocketResponse, view: _View) -> None:
    async for frame in socket:
        event = msgspec.json.decode(frame.data, type=_Event)
        match event.event:
            case "preview":
                view.draw(Text(f"agent  {event.text}", style="cyan"))
            case "activity" if event.status == "idle":
                view.end()
            case "activity":
                doing = f"using {event.tool_name}" if event.status == "tool" else "thinking"
                view.draw(Text(f"agent  … {doing}", style="dim"))
            case "message":
                author = "agent" if event.author == "agent" else "you  "
                view.print(Text(f"{author}  {event.text}", style="cyan" if author == "agent" else ""))
                for file in event.files:
                    view.print(Text(f"       [{file.get('filename')}] {file.get('url')}", style="cyan"))
            case "error":
                view.print(Text(f"refused: {event.code}", style="red"))
            case _:
                pass


async def _type(socket: aiohttp.ClientWebSocketResponse) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            text = line.decode(errors="replace").strip()
            if text:
                await socket.send_json({"text": text})
    finally:
        transport.close()
