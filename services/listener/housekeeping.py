"""Lifetimes, kept by one process of the fleet at a time (invariants 5 and 6).

Connectors whose lease is over are unregistered, persons' messages expire, refs and receipts are forgotten, and what
the broker gave up is filed where an operator finds it.
"""

import asyncio
import contextlib
import hashlib
import logging

from shared.bus.outgoing import Outgoing
from shared.bus.port import Bus, BusError, Done, Message, Outcome, QueueKind, Subscription
from shared.clock import Clock
from shared.config import Settings
from shared.files.port import FileStore, MissingFileError
from shared.records.errors import RecordsUnavailable
from shared.records.model import DeadLetter
from shared.records.records import Records
from shared.state.client import StateUnavailable
from shared.state.leases import Leases
from shared.telemetry.metrics import FleetMetrics
from shared.wire import notes
from shared.wire.ids import DEAD_QUEUE, delivery_queue, namer, partition_of, stream_queue
from shared.wire.items import Item

log = logging.getLogger(__name__)

LEASE = "listener:housekeeping"
LEASE_SECONDS = 15.0
BEAT_SECONDS = 5.0
STEP = 500
DEAD_LETTER_SECONDS = 30 * 86400.0


class Housekeeping:
    """The periodic work of the fleet.

    Args:
        settings: lifetimes and partitions.
        bus: where the broker's dead letters are.
        outgoing: the way to the lanes of channels that go.
        records: what is kept.
        files: whose bytes expire.
        leases: so that one process does it.
        clock: time.
        metrics: what waits, as the one that leads sees it.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        outgoing: Outgoing,
        records: Records,
        files: FileStore,
        leases: Leases,
        clock: Clock,
        metrics: FleetMetrics,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._bus = bus
        self._outgoing = outgoing
        self._records = records
        self._files = files
        self._leases = leases
        self._clock = clock
        self._metrics = metrics
        self._me = namer("listener")()
        self._leading_since: float | None = None
        self._subscription: Subscription | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens the broker's dead letters and starts the beat."""
        await self._bus.declare(DEAD_QUEUE, QueueKind.DEAD)
        self._subscription = await self._bus.subscribe(DEAD_QUEUE, self._file, prefetch=16, on_lost=None)
        self._loop = asyncio.create_task(self._run(), name="housekeeping")

    async def stop(self) -> None:
        """Ends the beat."""
        if self._loop is not None:
            self._loop.cancel()
        if self._subscription is not None:
            await self._subscription.stop()

    async def beat(self) -> None:
        """One round, if this process leads."""
        if await self._leases.acquire(LEASE, self._me, LEASE_SECONDS) is None:
            self._leading_since = None
            self._metrics.silence()
            return
        now = self._clock.now()
        if self._leading_since is None:
            self._leading_since = now
        await self._measure(now)
        await self._expire_messages(now)
        await self._expire_files(now)
        await self._records.ledger.purge(now - self._limits.receipts_seconds)
        await self._records.outbox.purge(now - self._limits.receipts_seconds)
        await self._records.auth.purge(now)
        await self._records.attempts.purge(now - 86400.0)
        await self._records.dead.purge(now - DEAD_LETTER_SECONDS)
        await self._unregister(now)

    async def _measure(self, now: float) -> None:
        backlog = await self._records.backlog(now)
        self._metrics.outbox.set(backlog.outbox)
        self._metrics.outbox_age.set(backlog.outbox_age)
        self._metrics.parked.set(backlog.parked)
        self._metrics.parked_age.set(backlog.parked_age)
        self._metrics.dead.set(backlog.dead_letters)
        for group, queue_of in (("delivery", delivery_queue), ("stream", stream_queue)):
            for partition in range(self._settings.partitions):
                with contextlib.suppress(BusError):  # not declared yet, or the broker is away: readiness says so
                    depth = await self._bus.depth(queue_of(partition))
                    self._metrics.depth.labels(group, str(partition)).set(depth)

    async def _run(self) -> None:
        while True:
            try:
                await self.beat()
            except (RecordsUnavailable, StateUnavailable) as error:
                log.info("housekeeping waits for a dependency: %s", error)
            await self._clock.sleep(BEAT_SECONDS)

    async def _expire_messages(self, now: float) -> None:
        for channel, message_id in await self._records.outbox.expire(now, STEP):
            log.warning("a person's message expired: channel=%s message_id=%s", channel, message_id)

    async def _expire_files(self, now: float) -> None:
        rows = await self._records.files.expired(now, STEP)
        for row in rows:
            try:
                await self._files.delete(row.storage_key)
            except MissingFileError:
                continue
        if rows:
            await self._records.files.remove([row.ref for row in rows])

    async def _unregister(self, now: float) -> None:
        """An hour without a socket ends a connector; after a start of the fleet everyone has an hour to return."""
        lease = self._limits.lease_seconds
        if self._leading_since is None or now - self._leading_since < lease:
            return
        for card, connector_id, channels in await self._records.connectors.stale(now - lease, STEP):
            for channel in channels:
                queue = delivery_queue(partition_of(channel, self._settings.partitions))
                while not self._outgoing.offer(queue, Item(notes.UNREGISTER, card, channel, b"{}", "", now)):
                    await self._outgoing.drain(queue)
            if not channels:
                await self._records.connectors.remove(connector_id)
            log.info("a connector's lease is over: card=%s channels=%d", card, len(channels))

    async def _file(self, message: Message) -> Outcome:
        code = message.headers.get("x-reason", "dead_letter")
        queue = message.headers.get("x-queue", "")
        letter = DeadLetter(
            id=f"bus:{hashlib.blake2b(message.body + queue.encode(), digest_size=12).hexdigest()}",
            channel="",
            card="",
            message_id="",
            direction="bus",
            code=code,
            detail=f"{queue}: {message.headers.get('x-detail', '')}"[:300],
            body=message.body,
            attempts=message.deliveries,
            at=self._clock.now(),
        )
        await self._records.dead.bury([letter])
        return Done()
