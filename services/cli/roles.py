"""Wiring: each role is built here from the same parts, whether alone in a process or all in one (design.md)."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry

from services.aggregator.service import AggregatorService
from services.cli.admin import Probe, Probes, admin_routes
from services.cli.listen import Listening, listen
from services.delivery.activity import ActivityBoard
from services.delivery.answers import Answers
from services.delivery.channels import Channels
from services.delivery.control import Control
from services.delivery.desk import Desk
from services.delivery.finals import Finals
from services.delivery.previews import Previews
from services.delivery.service import DeliveryService
from services.delivery.targets.console import ConsoleTarget
from services.delivery.targets.port import Target
from services.delivery.targets.recording import RecordingTarget, RecordingTrail
from services.delivery.targets.telegram.api import BotApi, bot_session
from services.delivery.targets.telegram.target import TelegramTarget
from services.delivery.targets.webhook import WebhookTarget
from services.delivery.tools import Tools
from services.delivery.trail import NoTrail, Trail
from services.delivery.work import LaneWorker
from services.edge.console import Console
from services.edge.http import EdgeHttp
from services.edge.inbound_files import InboundFiles
from services.edge.intake import Intake
from services.edge.platforms import RecordingControl, WebhookInbound
from services.edge.service import EdgeService
from services.listener.housekeeping import Housekeeping
from shared.bus.open import open_bus
from shared.bus.outgoing import Outgoing
from shared.bus.port import Bus
from shared.cards import build_of, cards, telegram_card
from shared.clock import Clock, SystemClock
from shared.config import SettingError, Settings
from shared.crypto import Keyring
from shared.files import open_files
from shared.files.port import FileStore
from shared.net.guard import AllowList, Guard, guarded_session
from shared.partitions import PartitionOwner
from shared.records import migrate, open_records
from shared.records.records import Records
from shared.state.client import State, open_state
from shared.state.leases import Leases
from shared.state.script_board import Board
from shared.state.streams import Streams
from shared.telemetry.metrics import (
    BusMetrics,
    DeliveryMetrics,
    EdgeMetrics,
    FleetMetrics,
    ProcessMetrics,
    StreamMetrics,
)
from shared.telemetry.traces import Traces, traces_of
from shared.wire.ids import namer

log = logging.getLogger(__name__)

Role = Literal["edge", "delivery", "aggregator", "listener"]
COLLECT_EVERY = 20_000
LAG_SECONDS = 0.5
ALL_ROLES: tuple[Role, ...] = ("edge", "delivery", "aggregator", "listener")


@dataclass
class Parts:
    """What every role is built from."""

    settings: Settings
    clock: Clock
    registry: CollectorRegistry
    bus: Bus
    state: State
    records: Records
    files: FileStore
    keyring: Keyring
    guard: Guard
    bus_metrics: BusMetrics
    probes: Probes
    traces: Traces

    def outgoing(self, role: Role) -> Outgoing:
        """A batched way onto the bus."""
        outgoing = Outgoing(self.bus, self.clock, traces=self.traces)
        self.bus_metrics.watch(role, outgoing)
        return outgoing


@dataclass
class Running:
    """What is up: where the main port and the admin port listen."""

    settings: Settings
    main: Listening | None
    admin: Listening | None


def complete(settings: Settings) -> Settings:
    """Fills in what follows from the rest; embedded, what is missing is made once and kept in the data folder."""
    data = Path(settings.data_dir).absolute()
    if settings.bus_url == "memory://" or settings.state_url == "memory://":
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    return msgspec.structs.replace(
        settings,
        data_dir=str(data),
        records_url=settings.records_url or f"sqlite:///{data / 'sluice.db'}",
        files_url=settings.files_url or f"file://{data / 'files'}",
        secret_key=settings.secret_key or _kept(data / "secret_key", Keyring.generate),
        api_key=settings.api_key or _kept(data / "api_key", lambda: "sk_" + secrets.token_urlsafe(24)),
    )


def require_fleet(settings: Settings) -> None:
    """A role alone in its process needs servers and a key that others share (contract.md, Running it).

    Raises:
        SettingError: one is missing.
    """
    if settings.bus_url.startswith("memory:"):
        raise SettingError("SLUICE_BUS_URL: a role of the fleet needs amqp://…; memory:// is for `sluice up`")
    if settings.state_url.startswith("memory:"):
        raise SettingError("SLUICE_STATE_URL: a role of the fleet needs redis://…; memory:// is for `sluice up`")
    if not settings.secret_key:
        raise SettingError("SLUICE_SECRET_KEY: is missing; make one with `sluice keys`")
    if not settings.records_url.startswith("postgresql"):
        raise SettingError("SLUICE_RECORDS_URL: a role of the fleet needs postgresql://…")
    if not settings.api_key:
        raise SettingError("SLUICE_API_KEY: is missing")


@contextlib.asynccontextmanager
async def run(settings: Settings, roles: tuple[Role, ...]) -> AsyncIterator[Running]:
    """Runs the roles; leaving it shuts them down in order, finishing or handing back what is under way."""
    keyring = Keyring.parse(settings.secret_key)
    allow = AllowList.parse(settings.allow_private_targets)
    clock = SystemClock()
    if "edge" in roles and settings.port == 0:  # the public URL must be known before anything is sent
        settings = msgspec.structs.replace(settings, port=free_port(settings.host))
    await migrate(settings.records_url)
    async with contextlib.AsyncExitStack() as stack:
        records = await stack.enter_async_context(open_records(settings.records_url))
        state = await stack.enter_async_context(open_state(settings.state_url))
        bus = await stack.enter_async_context(open_bus(settings.bus_url, clock))
        files = open_files(settings.files_url)
        traces = stack.enter_context(traces_of(roles[0] if len(roles) == 1 else "up", os.environ))
        registry = CollectorRegistry()
        metrics, probes = BusMetrics(registry), Probes(clock)
        guard = Guard(allow)
        parts = Parts(settings, clock, registry, bus, state, records, files, keyring, guard, metrics, probes, traces)
        parts.probes.add("bus", _bus_probe(bus))
        parts.probes.add("state", state.ping)
        parts.probes.add("records", records.check)
        await stack.enter_async_context(parts.probes.watching())
        main = await _start(stack, parts, roles)
        admin = await _admin(stack, parts, main)
        _quiet_collector()
        lag = asyncio.create_task(_measure_lag(ProcessMetrics(registry), clock), name="event-loop lag")
        stack.push_async_callback(_end, lag)
        yield Running(settings, main, admin)


async def _measure_lag(metrics: ProcessMetrics, clock: Clock) -> None:
    while True:
        due = clock.monotonic() + LAG_SECONDS
        await clock.sleep(LAG_SECONDS)
        metrics.lag.set(max(clock.monotonic() - due, 0.0))


def _quiet_collector() -> None:
    """What is there by now stays, so the collector need not look at it again; and it comes less often.

    Measured: 15% of the CPU of a delivery worker under load went into collections that found next to nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 20, 50)


async def _start(stack: contextlib.AsyncExitStack, parts: Parts, roles: tuple[Role, ...]) -> Listening | None:
    """Workers first and the edge last, so that leaving stops taking before it stops working."""
    if "listener" in roles:
        await _housekeeping(stack, parts)
    if "delivery" in roles:
        await _delivery(stack, parts)
    if "aggregator" in roles:
        await _aggregator(stack, parts)
    return await _edge(stack, parts) if "edge" in roles else None


async def _housekeeping(stack: contextlib.AsyncExitStack, parts: Parts) -> None:
    outgoing = parts.outgoing("listener")
    stack.push_async_callback(outgoing.close)
    service = Housekeeping(
        parts.settings,
        parts.bus,
        outgoing,
        parts.records,
        parts.files,
        Leases(parts.state),
        parts.clock,
        FleetMetrics(parts.registry),
    )
    await service.start()
    stack.push_async_callback(service.stop)


async def _delivery(stack: contextlib.AsyncExitStack, parts: Parts) -> None:
    settings, clock = parts.settings, parts.clock
    outgoing = parts.outgoing("delivery")
    stack.push_async_callback(outgoing.close)
    session = await stack.enter_async_context(guarded_session(parts.guard))
    bots = await stack.enter_async_context(bot_session())
    metrics = DeliveryMetrics(parts.registry)
    channels = Channels(parts.records, parts.keyring)
    telegram = _telegram(parts, bots, channels)
    targets, trail = _targets(parts, outgoing, session, telegram)
    desk = Desk(parts.records, _streams(parts), clock)
    answers = Answers(outgoing, parts.records)
    outgoing.on_unroutable = answers.unroutable
    worker_id = namer("delivery")()
    url, traces = public_url(settings), parts.traces
    finals = Finals(worker_id, targets, channels, desk, answers, trail, settings.limits, url, clock, metrics, traces)
    activity = ActivityBoard(settings.limits.activity_seconds, clock, metrics)
    worker = LaneWorker(
        settings.limits,
        parts.records,
        desk,
        answers,
        finals,
        Previews(targets, channels, desk, activity, clock, metrics, parts.traces),
        activity,
        Control(targets, channels, parts.records, answers, clock),
        Tools(targets, finals, desk, answers),
        clock,
        metrics,
        parts.traces,
    )
    service = DeliveryService(settings, parts.bus, parts.records, targets, channels, worker, activity, clock, metrics)
    await service.start()
    stack.push_async_callback(service.stop)
    await _own(stack, parts, "delivery", worker_id, service)


async def _aggregator(stack: contextlib.AsyncExitStack, parts: Parts) -> None:
    outgoing = parts.outgoing("aggregator")
    stack.push_async_callback(outgoing.close)
    service = AggregatorService(
        parts.settings, parts.bus, outgoing, _streams(parts), parts.clock, StreamMetrics(parts.registry), parts.traces
    )
    await service.start()
    stack.push_async_callback(service.stop)
    await _own(stack, parts, "stream", namer("stream")(), service)


async def _own(
    stack: contextlib.AsyncExitStack,
    parts: Parts,
    group: str,
    worker_id: str,
    service: DeliveryService | AggregatorService,
) -> None:
    owner = PartitionOwner(group, worker_id, parts.settings.partitions, Leases(parts.state), parts.clock, service)
    task = asyncio.create_task(owner.run(), name=f"partitions of {group}")
    stack.push_async_callback(_end, task)
    stack.push_async_callback(owner.stop)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _edge(stack: contextlib.AsyncExitStack, parts: Parts) -> Listening:
    settings, clock, keys = parts.settings, parts.clock, parts.settings.api_keys
    outgoing = parts.outgoing("edge")
    stack.push_async_callback(outgoing.close)
    answers = Answers(outgoing, parts.records)
    outgoing.on_unroutable = answers.unroutable
    session = await stack.enter_async_context(guarded_session(parts.guard))
    edge = EdgeService(
        settings,
        cards(recording=settings.recording, build=build_of()),
        parts.bus,
        outgoing,
        parts.records,
        clock,
        EdgeMetrics(parts.registry),
        parts.traces,
    )
    intake = Intake(parts.records, edge, settings.limits, clock)
    leases = Leases(parts.state)
    console = Console(edge.edge_id, parts.records, leases, intake, keys, settings.limits, clock)
    edge.show_transcript = console.show
    inbound = InboundFiles(session, parts.files, parts.records, settings.limits, clock)
    app = web.Application(client_max_size=settings.limits.upload_bytes)
    app.add_routes(console.routes())
    app.add_routes(WebhookInbound(parts.records, parts.keyring, intake, inbound, settings.limits.text_bytes).routes())
    if settings.recording:
        app.add_routes(RecordingControl(Board(parts.state), parts.records, intake, keys, clock).routes())
    if settings.admin_port is None:
        app.add_routes(admin_routes(parts.registry, parts.probes))
    app.add_routes(EdgeHttp(edge, parts.records, parts.files, clock).routes())
    await edge.start()
    listening = await stack.enter_async_context(
        listen(
            app,
            settings.host,
            settings.port,
            settings.limits.handshake_seconds,
            settings.limits.idle_seconds,
            clock,
        )
    )
    stack.push_async_callback(edge.stop)
    stack.push_async_callback(console.close)
    return listening


async def _admin(stack: contextlib.AsyncExitStack, parts: Parts, main: Listening | None) -> Listening | None:
    settings = parts.settings
    if main is not None and settings.admin_port is None:
        return None
    app = web.Application()
    app.add_routes(admin_routes(parts.registry, parts.probes))
    port = 9464 if settings.admin_port is None else settings.admin_port
    return await stack.enter_async_context(
        listen(app, settings.host, port, settings.limits.handshake_seconds, settings.limits.idle_seconds, parts.clock)
    )


def _telegram(parts: Parts, session: ClientSession, channels: Channels) -> TelegramTarget:
    settings = parts.settings
    api = BotApi(settings.telegram_api_url, session, parts.files, settings.limits.call_seconds)
    return TelegramTarget(telegram_card(build_of()), api, channels.rebind)


def _targets(
    parts: Parts, outgoing: Outgoing, session: ClientSession, telegram: TelegramTarget
) -> tuple[dict[str, Target], Trail]:
    known = cards(recording=parts.settings.recording, build=build_of())
    leases = Leases(parts.state)
    targets: dict[str, Target] = {
        "im.console": ConsoleTarget(known["im.console"], parts.records, leases, outgoing, parts.clock),
        "im.webhook": WebhookTarget(
            known["im.webhook"], session, parts.guard, parts.clock, parts.settings.limits.call_seconds
        ),
        "im.telegram": telegram,
    }
    if not parts.settings.recording:
        return targets, NoTrail()
    board = Board(parts.state)
    recording = RecordingTarget(known["im.recording"], board, parts.clock)
    targets["im.recording"] = recording
    return targets, RecordingTrail(recording, board)


def _streams(parts: Parts) -> Streams:
    limits = parts.settings.limits
    return Streams(parts.state, int(limits.stream_seconds), limits.streams_per_channel)


def public_url(settings: Settings) -> str:
    """The root of the URLs that others use."""
    return settings.public_url.rstrip("/") or f"http://{settings.host}:{settings.port}"


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _bus_probe(bus: Bus) -> Probe:
    async def probe() -> None:
        if not bus.ready():
            raise ConnectionError("the bus is away")

    return probe


def _kept(path: Path, make: Callable[[], str]) -> str:
    """A secret of the data folder, made at the first start and readable by its owner only."""
    if path.exists():
        return path.read_text().strip()
    value = make()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.write_text(value + "\n")
    return value
