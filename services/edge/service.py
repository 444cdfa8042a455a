"""The edge service: which socket has which channel, and the traffic between sockets and the bus."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from aiohttp import web

from services.edge.connection import Connection
from services.edge.outbox import ChannelSender
from services.edge.session import Ask, Forward, Session, Settle, Step, failed
from shared.bus.outgoing import Outgoing
from shared.bus.port import Bus, Done, Message, Outcome, QueueKind, Subscription
from shared.cards.card import Card, ChannelView, descriptor
from shared.clock import Clock
from shared.config import Settings
from shared.records.errors import NotOwned, RecordsUnavailable
from shared.records.model import Channel
from shared.records.records import Records
from shared.telemetry.metrics import EdgeMetrics
from shared.telemetry.traces import Facts, SpanName, Traces, channel_hash
from shared.wire import notes, replies
from shared.wire.ids import delivery_queue, edge_queue, namer, partition_of, stream_queue
from shared.wire.items import Item, unpack
from shared.wire.packets import ChannelClose, ChannelOpen, ChatDelta, ChatMessage, DescriptorGet, Hello, Packet

log = logging.getLogger(__name__)

RESTARTING: Final = 1012
POLICY_VIOLATION: Final = 1008
PREFETCH: Final = 64
STOP_SECONDS: Final = 2.0


class EdgeService:
    """Carries packets between sockets and the bus.

    Args:
        settings: partitions and limits.
        cards: by connector_card_id.
        bus: where partitions and inboxes are.
        outgoing: the batched way onto the bus.
        records: channels, connectors, outbox.
        clock: time.
    """

    def __init__(
        self,
        settings: Settings,
        cards: dict[str, Card],
        bus: Bus,
        outgoing: Outgoing,
        records: Records,
        clock: Clock,
        metrics: EdgeMetrics,
        traces: Traces,
    ) -> None:
        self.edge_id = namer("edge")()
        self.cards = cards
        self.settings = settings
        self.metrics = metrics
        self._traces = traces
        self._bus = bus
        self._outgoing = outgoing
        self._records = records
        self._clock = clock
        self._new_session_id = namer("ws")
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, Connection] = {}
        self._senders: dict[str, tuple[ChannelSender, asyncio.Task[None]]] = {}
        self._subscription: Subscription | None = None
        self._loops: list[asyncio.Task[None]] = []
        self.show_transcript: Callable[[Item], Awaitable[None]] = _nobody
        self._delivery_queues = [delivery_queue(p) for p in range(settings.partitions)]
        self._stream_queues = [stream_queue(p) for p in range(settings.partitions)]

    async def start(self) -> None:
        """Declares the queues, opens the inbox and starts the loops."""
        for queue in (*self._delivery_queues, *self._stream_queues):
            await self._bus.declare(queue, QueueKind.PARTITION)
        inbox = edge_queue(self.edge_id)
        await self._bus.declare(inbox, QueueKind.INBOX)
        self._subscription = await self._bus.subscribe(inbox, self._take_inbox, prefetch=PREFETCH, on_lost=None)
        self._loops = [asyncio.create_task(self._watch()), asyncio.create_task(self._touch())]

    async def stop(self) -> None:
        """Closes every socket with 1012, then the inbox."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*(c.close(RESTARTING, "restarting") for c in list(self._connections.values())))
        await self._stop_senders()
        if self._subscription is not None:
            await self._subscription.stop()

    async def _stop_senders(self) -> None:
        """What was answered is written down before we go, so that no message comes again after its ack."""
        self._routes.clear()
        for sender, _ in self._senders.values():
            sender.moved()
        tasks = [task for _, task in self._senders.values()]
        if tasks:
            _, rest = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in rest:
                task.cancel()

    async def serve(self, card_id: str, socket: web.WebSocketResponse) -> None:
        """Runs one prepared socket to its end."""
        partitions = self.settings.partitions
        session = Session(card_id, lambda channel: partition_of(channel, partitions), self.settings.limits)
        connection = Connection(
            self._new_session_id(), socket, session, self._forward, self._take_step, self.settings.limits, self._clock
        )
        self._connections[connection.session_id] = connection
        self.metrics.connections.inc()
        self.metrics.sockets.set(len(self._connections))
        try:
            await connection.run()
        finally:
            await self._forget(connection)

    def is_open(self, channel: str) -> bool:
        """Whether a socket of this edge has the channel."""
        return channel in self._routes

    async def due(self, channel: str, edge_id: str) -> None:
        """Has the outbox of a channel sent by whichever edge has it open."""
        if channel in self._routes:
            self._kick(channel)
        elif edge_id:
            self._outgoing.offer(edge_queue(edge_id), Item(notes.DUE, "", channel, b""))

    def descriptor_of(self, channel: Channel) -> dict[str, object]:
        """The Connection Descriptor of a channel."""
        return descriptor(self.cards[channel.card_id], ChannelView.of(channel))

    async def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection.session_id, None)
        self.metrics.sockets.set(len(self._connections))
        for channel in list(connection.session.channels):
            if self._routes.get(channel) is connection:
                del self._routes[channel]
        with contextlib.suppress(RecordsUnavailable):  # the next open overwrites the route
            if connection.session.channels:
                await self._records.channels.close_session(self.edge_id, connection.session_id)
            if connection.session.helloed:
                await self._records.connectors.touch([connection.session.connector_id], self._clock.now())

    async def _take_step(self, connection: Connection, step: Step, packet: Packet, raw: bytes) -> None:
        match step:
            case Forward():
                await self._forward_later(connection, step, packet, raw)
            case Settle(ack):
                sender = self._senders.get(ack.connector_channel_id)
                if sender is not None:
                    sender[0].acked(ack.payload)
            case Ask(asked):
                try:
                    await self._answer(connection, asked)
                except RecordsUnavailable:
                    connection.push(failed(asked, "busy", "the records are away; try again"))
            case _:
                raise AssertionError(step)

    def _forward(self, connection: Connection, step: Forward, packet: Packet, raw: bytes) -> bool:
        queues = self._stream_queues if step.queue == "stream" else self._delivery_queues
        channel = packet.connector_channel_id
        card_id = connection.session.card_id
        span = self._traces.begin(packet.traceparent, SpanName.RECEIVE, lambda: _facts(packet, card_id))
        item = Item(notes.PACKET, card_id, channel, raw, self.edge_id, self._clock.now(), span.trace)
        taken = self._outgoing.offer(queues[step.partition], item)
        span.end("taken" if taken else "full")
        return taken

    async def _forward_later(self, connection: Connection, step: Forward, packet: Packet, raw: bytes) -> None:
        """The queue is full: a message is refused for now; for the rest the socket waits, and TCP tells its sender."""
        if isinstance(packet, ChatMessage):
            channel, text = packet.connector_channel_id, "the queue is full; send it again later"
            connection.push(
                replies.rejected(channel, packet.packet_id, packet.payload.message_id, "busy", text, retryable=True)
            )
            return
        queues = self._stream_queues if step.queue == "stream" else self._delivery_queues
        while not self._forward(connection, step, packet, raw):
            await self._outgoing.drain(queues[step.partition])

    async def _answer(self, connection: Connection, packet: Hello | ChannelOpen | ChannelClose | DescriptorGet) -> None:
        now, session = self._clock.now(), connection.session
        match packet:
            case Hello():
                connector_id = await self._records.connectors.hello(session.card_id, packet.payload.connector_id, now)
                connection.push(session.said_hello(packet, connector_id))
            case ChannelOpen():
                await self._open(connection, packet)
            case ChannelClose():
                channel = packet.connector_channel_id
                session.closed(channel)
                self._routes.pop(channel, None)
                await self._records.channels.close(channel, connection.session_id)
                self._reply(connection, packet, {"status": "ok"}, channel)
            case DescriptorGet():
                found = await self._records.channels.get(packet.connector_channel_id)
                if found is None:
                    connection.push(failed(packet, "connection_not_found", "the channel is gone"))
                else:
                    payload = {"connection_descriptor": self.descriptor_of(found)}
                    self._reply(connection, packet, payload, found.channel_id)

    async def _open(self, connection: Connection, packet: ChannelOpen) -> None:
        session = connection.session
        card = self.cards[session.card_id]
        try:
            opened = await self._records.channels.open(
                session.card_id,
                session.connector_id,
                packet.connector_channel_id,
                self.edge_id,
                connection.session_id,
                self._clock.now(),
                status="connected" if card.connected_on_open else "created",
            )
        except NotOwned:
            connection.push(failed(packet, "connector_channel_not_owned", "the channel belongs to another connector"))
            return
        channel = opened.channel.channel_id
        if opened.moved_from is not None:
            self._move(channel, *opened.moved_from)
        session.opened(channel)
        if self._routes.get(channel) is not connection and (running := self._senders.get(channel)) is not None:
            running[0].moved()
        self._routes[channel] = connection
        payload = {"connector_channel_id": channel, "connection_descriptor": self.descriptor_of(opened.channel)}
        self._reply(connection, packet, payload, channel)
        self._kick(channel)

    def _reply(self, connection: Connection, packet: Packet, payload: Mapping[str, object], channel: str) -> None:
        kind = f"{packet.__struct_config__.tag}.ack"
        connection.push(
            replies.packet(kind, payload, channel=channel, request_id=packet.request_id, reply_to=packet.packet_id)
        )

    def _move(self, channel: str, edge_id: str, session_id: str) -> None:
        if edge_id != self.edge_id:
            body = msgspec.json.encode(notes.Moved(session_id))
            self._outgoing.offer(edge_queue(edge_id), Item(notes.MOVED, "", channel, body))
        elif (other := self._connections.get(session_id)) is not None:
            other.session.closed(channel)

    async def _take_inbox(self, message: Message) -> Outcome:
        for item in unpack(message.body):
            connection = self._routes.get(item.channel)
            match item.kind:
                case notes.SEND:
                    if connection is not None:
                        connection.push(item.raw)
                        self._traces.child(item.trace, SpanName.SEND, Facts(card=item.card)).end("sent")
                    elif item.origin != self.edge_id:
                        await self._pass_on(item)
                case notes.DUE:
                    if connection is not None:
                        self._kick(item.channel)
                case notes.MOVED:
                    moved = msgspec.json.decode(item.raw, type=notes.Moved)
                    other = self._connections.get(moved.session_id)
                    if other is not None:
                        other.session.closed(item.channel)
                        if self._routes.get(item.channel) is other:
                            del self._routes[item.channel]
                case notes.TRANSCRIPT:
                    await self.show_transcript(item)
                case _:
                    log.warning("an unknown note in the inbox: kind=%s", item.kind)
        return Done()

    async def _pass_on(self, item: Item) -> None:
        """The channel has moved to another edge since the packet came; an answer nobody gets is asked for again."""
        with contextlib.suppress(RecordsUnavailable):
            channel = await self._records.channels.get(item.channel)
            if channel is not None and channel.edge_id not in ("", self.edge_id):
                forwarded = Item(item.kind, item.card, item.channel, item.raw, self.edge_id, item.at, item.trace)
                self._outgoing.offer(edge_queue(channel.edge_id), forwarded)

    def _kick(self, channel: str) -> None:
        running = self._senders.get(channel)
        if running is not None:
            running[0].kick()
            return
        sender = ChannelSender(
            channel, lambda frame: self._push(channel, frame), self._records, self.settings.limits, self._clock
        )
        task = asyncio.create_task(self._run_sender(channel, sender), name=f"outbox {channel}")
        self._senders[channel] = (sender, task)

    async def _run_sender(self, channel: str, sender: ChannelSender) -> None:
        try:
            while channel in self._routes:
                try:
                    await sender.run()
                    break
                except RecordsUnavailable:
                    await self._clock.sleep(self.settings.limits.retry_first_seconds)
        finally:
            self._senders.pop(channel, None)

    def _push(self, channel: str, frame: bytes) -> bool:
        connection = self._routes.get(channel)
        if connection is None:
            return False
        connection.push(frame)
        return True

    async def _watch(self) -> None:
        """Closes the silent: no hello in time, or no sign of life for two ping periods (field reports 32, 45)."""
        limits = self.settings.limits
        while True:
            await self._clock.sleep(min(limits.ping_seconds, limits.hello_seconds) / 4)
            now = self._clock.monotonic()
            for connection in list(self._connections.values()):
                silent = now - connection.last_heard
                if not connection.session.helloed and now - connection.opened_at > limits.hello_seconds * 0.75:
                    connection.abort(POLICY_VIOLATION, "no hello in time")
                elif silent > 2 * limits.ping_seconds:
                    connection.abort(POLICY_VIOLATION, "no sign of life")
                elif silent > limits.ping_seconds:
                    with contextlib.suppress(ConnectionError):
                        await connection.ping()

    async def _touch(self) -> None:
        """Keeps the leases of the connectors with live sockets (connector-protocol.md, Lifecycles)."""
        while True:
            await self._clock.sleep(min(30.0, self.settings.limits.lease_seconds / 4))
            ids = sorted({c.session.connector_id for c in self._connections.values() if c.session.helloed})
            with contextlib.suppress(RecordsUnavailable):
                await self._records.connectors.touch(ids, self._clock.now())


def _facts(packet: Packet, card_id: str) -> Facts:
    payload = packet.payload if isinstance(packet, ChatMessage | ChatDelta) else None
    return Facts(
        card=card_id,
        channel_hash=channel_hash(packet.connector_channel_id),
        message_id="" if payload is None else payload.message_id,
        packet_type=str(packet.__struct_config__.tag),
    )


async def _nobody(item: Item) -> None:
    """There is no console at this edge."""
