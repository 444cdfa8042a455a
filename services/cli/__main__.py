"""The command `sluice`."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import uvloop
from cyclopts import App, Parameter
from rich.console import Console as Screen

from services.cli import chat as chatting
from services.cli import doctor as doctoring
from services.cli import operate
from services.cli.roles import ALL_ROLES, Role, complete, require_fleet
from services.cli.serve import serve
from services.cli.smoke import carry
from services.conformance import Options, check
from shared.config import SettingError, Settings, load
from shared.crypto import Keyring
from shared.records import migrate as migrate_records
from shared.telemetry.traces import current_ids

app = App(
    name="sluice",
    help="The delivery fabric between AI agents and the places where people chat.",
    version="0.1.0",
)
out = Screen()
err = Screen(stderr=True)

Config = Annotated[Path | None, Parameter(name="--config", help="A TOML file of settings.")]
DataDir = Annotated[str | None, Parameter(name="--data-dir", help="Where embedded state is kept.")]


@app.command
def up(
    *,
    host: str | None = None,
    port: int | None = None,
    data_dir: DataDir = None,
    demo: bool = False,
    config: Config = None,
) -> None:
    """Run everything in one process: nothing to install.

    With --demo an echoing agent dials in, and on a terminal you chat with it.

    Examples:
        sluice up
        sluice up --demo --port 0
        SLUICE_RECORDING=1 sluice up --data-dir /tmp/try

    Args:
        host: address to listen on (127.0.0.1).
        port: port to listen on (8080); 0 picks a free one.
        data_dir: where secrets, records and files are kept (.sluice).
        demo: start the demo agent.
        config: a TOML file of settings.
    """
    settings = complete(_settings({"host": host, "port": port, "data_dir": data_dir}, config))
    _logging(embedded=True)
    uvloop.run(serve(settings, ALL_ROLES, demo=demo, screen=out))


@app.command
def run(role: Literal["edge", "delivery", "aggregator", "listener"], *, config: Config = None) -> None:
    """Run one role of the fleet, against RabbitMQ, Redis and PostgreSQL.

    Examples:
        SLUICE_BUS_URL=amqp://… SLUICE_STATE_URL=redis://… SLUICE_RECORDS_URL=postgresql://… sluice run edge

    Args:
        role: which one.
        config: a TOML file of settings.
    """
    settings = _settings({}, config)
    require_fleet(settings)
    roles: tuple[Role, ...] = (role,)
    _logging(embedded=False)
    uvloop.run(serve(complete(settings), roles, demo=False, screen=out))


@app.command
def send(channel: str, text: str, *, url: str | None = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Send one line as the person on a console channel.

    Examples:
        sluice send cch_… "hello"

    Args:
        channel: the connector_channel_id.
        text: what to say.
        url: root of a running Sluice (from the settings).
        data_dir: where the embedded API key is kept.
        config: a TOML file of settings.
    """
    settings = complete(_settings({"data_dir": data_dir}, config))
    status = asyncio.run(chatting.send_line(_root(settings, url), settings.api_keys[0], channel, text))
    out.print(status)
    if status not in ("added", "duplicate"):
        raise SystemExit(1)


@app.command
def chat(channel: str = "", *, url: str | None = None, data_dir: DataDir = None, config: Config = None) -> None:
    """Chat on the terminal, as the person on a console channel.

    Examples:
        sluice chat
        sluice chat cch_… --url http://127.0.0.1:8080

    Args:
        channel: the connector_channel_id; the newest console channel when left out.
        url: root of a running Sluice (from the settings).
        data_dir: where the embedded API key is kept.
        config: a TOML file of settings.
    """
    settings = complete(_settings({"data_dir": data_dir}, config))
    channel = channel or asyncio.run(operate.newest_channel(settings.records_url, "im.console"))
    asyncio.run(chatting.chat(_root(settings, url), settings.api_keys[0], channel, out))


@app.command
def channels(*, card: str = "", limit: int = 100, data_dir: DataDir = None, config: Config = None) -> None:
    """List the channels.

    Args:
        card: only of this Card.
        limit: how many.
        data_dir: where the embedded records are.
        config: a TOML file of settings.
    """
    asyncio.run(operate.channels(_records_url(data_dir, config), card, limit, out))


@app.command
def outbox(
    action: operate.Action = "list",
    item: str = "",
    *,
    channel: str = "",
    limit: int = 100,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Messages of people that xAgent has not taken yet.

    Examples:
        sluice outbox
        sluice outbox drop cch_…/msg_1

    Args:
        action: list, show, retry or drop.
        item: channel/message_id, for all but list.
        channel: only of this channel.
        limit: how many.
        data_dir: where the embedded records are.
        config: a TOML file of settings.
    """
    asyncio.run(operate.outbox(_records_url(data_dir, config), action, item, channel, limit, out))


@app.command
def parked(
    action: operate.Action = "list",
    item: str = "",
    *,
    channel: str = "",
    limit: int = 100,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Deliveries that wait for a later try.

    Examples:
        sluice parked
        sluice parked retry 42

    Args:
        action: list, show, retry or drop.
        item: the number of the row, for all but list.
        channel: only of this channel.
        limit: how many.
        data_dir: where the embedded records are.
        config: a TOML file of settings.
    """
    asyncio.run(operate.parked(_records_url(data_dir, config), action, item, channel, limit, out))


@app.command(name="dead-letters")
def dead_letters(
    action: operate.Action = "list",
    item: str = "",
    *,
    channel: str = "",
    limit: int = 100,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Messages given up, with the reason; retry sends once more.

    Examples:
        sluice dead-letters
        sluice dead-letters show out:cch_…:msg_1
        sluice dead-letters retry out:cch_…:msg_1

    Args:
        action: list, show, retry or drop.
        item: the id, for all but list.
        channel: only of this channel.
        limit: how many.
        data_dir: where the embedded records are.
        config: a TOML file of settings.
    """
    settings = complete(_settings({"data_dir": data_dir}, config))
    asyncio.run(operate.dead_letters(settings.records_url, action, item, channel, limit, settings.partitions, out))


@app.command
def conformance(
    url: str,
    *,
    api_key: str = "",
    auth_flow: str = "",
    auth_input: tuple[str, ...] = (),
    timeout: float = 10.0,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Check any Connector Server against the profile and the common protocol; exits 1 when a rule fails.

    Examples:
        sluice conformance http://127.0.0.1:8080/im.console
        sluice conformance URL --api-key … --auth-flow webhook --auth-input url=https://… --auth-input secret=whsec_…

    Args:
        url: the base URL of a Card.
        api_key: the system key (from the settings).
        auth_flow: the form to sign in with, where the Card needs one.
        auth_input: name=value of a field, repeatable.
        timeout: seconds to wait for one answer.
        data_dir: where the embedded API key is kept.
        config: a TOML file of settings.
    """
    key = api_key or complete(_settings({"data_dir": data_dir}, config)).api_keys[0]
    fields = dict(pair.split("=", 1) for pair in auth_input if "=" in pair)
    report = asyncio.run(check(url, key, Options(auth_flow=auth_flow, auth_input=fields, timeout=timeout)))
    operate.print_report(report, out)
    if report.failed:
        raise SystemExit(1)


@app.command
def smoke(
    url: str,
    *,
    api_key: str = "",
    timeout: float = 10.0,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Carry one streamed message through a running Sluice, as xAgent would; exits 1 unless it is accepted.

    Examples:
        sluice smoke http://127.0.0.1:8080/im.recording
        sluice smoke https://sluice.example.org/im.console --api-key …

    Args:
        url: the base URL of a Card that needs no signing in: im.recording or im.console.
        api_key: the system key (from the settings).
        timeout: seconds to wait for one answer.
        data_dir: where the embedded API key is kept.
        config: a TOML file of settings.
    """
    key = api_key or complete(_settings({"data_dir": data_dir}, config)).api_keys[0]
    carried = asyncio.run(carry(url, key, timeout))
    status = carried.status or "failed"
    out.print(f"{status} in {carried.seconds:.2f} s: {carried.detail}", soft_wrap=True, highlight=False)
    if status != "accepted":
        raise SystemExit(1)


@app.command
def doctor(*, wait: float = 0.0, data_dir: DataDir = None, config: Config = None) -> None:
    """Check every dependency and setting, and say what is wrong; exits 1 when something is.

    Examples:
        sluice doctor
        sluice doctor --wait 120

    Args:
        wait: seconds to look again for, once a second, until all is well; the last look is printed.
        data_dir: where embedded state is kept.
        config: a TOML file of settings.
    """
    settings = complete(_settings({"data_dir": data_dir}, config))
    if not asyncio.run(doctoring.examine_until(settings, out, wait)):
        raise SystemExit(1)


@app.command
def migrate(*, data_dir: DataDir = None, config: Config = None) -> None:
    """Bring the records database up to this version.

    Args:
        data_dir: where the embedded records are.
        config: a TOML file of settings.
    """
    asyncio.run(migrate_records(_records_url(data_dir, config)))
    out.print("the records are up to date")


@app.command
def keys() -> None:
    """Make a SLUICE_SECRET_KEY. Put it before the old one, comma-separated, to rotate."""
    out.print(Keyring.generate(), soft_wrap=True)


def _settings(flags: dict[str, object], config: Path | None) -> Settings:
    return load(flags, os.environ, config)


def _records_url(data_dir: str | None, config: Path | None) -> str:
    return complete(_settings({"data_dir": data_dir}, config)).records_url


def _root(settings: Settings, url: str | None) -> str:
    return (url or settings.public_url or f"http://{settings.host}:{settings.port}").rstrip("/")


def _name_trace(record: logging.LogRecord) -> bool:
    trace_id, span_id = current_ids()
    record.ids = f" trace_id={trace_id} span_id={span_id}" if trace_id else ""
    return True


def _logging(*, embedded: bool) -> None:
    logging.basicConfig(
        level=logging.WARNING if embedded else logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s%(ids)s",
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_name_trace)
    # It logs the subprotocols that a client offers, among which some put their token (field report 45).
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)


def main() -> None:
    """Runs the command; a wrong setting or a missing server is one line, not a traceback."""
    try:
        app()
    except (SettingError, ValueError, operate.OperateError) as error:
        err.print(f"[bold red]sluice:[/] {error}", soft_wrap=True, highlight=False)
        raise SystemExit(2) from error
    except OSError as error:
        err.print(f"[bold red]sluice:[/] {error}. `sluice doctor` says more.", soft_wrap=True, highlight=False)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
