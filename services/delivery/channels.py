"""What a worker knows of the channels of its partitions.

Everything that changes a binding runs in the lane of its channel, so what is remembered here is true for as long as
the partition is owned.
"""

import logging
from collections import OrderedDict

import msgspec
from msgspec import Struct

from services.delivery.targets.port import Binding, SignedIn
from shared.crypto import Keyring
from shared.records.errors import RecordsUnavailable
from shared.records.model import Channel
from shared.records.records import Records

log = logging.getLogger(__name__)

MOST_REMEMBERED = 20_000


class Known(Struct, frozen=True):
    """A channel and its binding, credential opened."""

    channel: Channel
    binding: Binding

    @property
    def is_connected(self) -> bool:
        """Whether messages can be delivered."""
        return self.channel.status in ("connected", "degraded")


class Channels:
    """Channels by id, remembered within bounds.

    Args:
        records: where they are kept.
        keyring: opens and seals the credentials.
    """

    def __init__(self, records: Records, keyring: Keyring) -> None:
        self._records = records
        self._keyring = keyring
        self._known: OrderedDict[str, Known] = OrderedDict()

    async def get(self, channel_id: str) -> Known | None:
        """The channel, or None when it is not registered."""
        known = self._known.get(channel_id)
        if known is not None:
            return known
        channel = await self._records.channels.get(channel_id)
        if channel is None:
            return None
        known = Known(channel, self._bind(channel))
        self._known[channel_id] = known
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return known

    async def fresh(self, channel_id: str) -> Known | None:
        """Like `get`, as the records have it now (who has it open changes without us)."""
        self.forget(channel_id)
        return await self.get(channel_id)

    async def bind(self, channel_id: str, status: str, signed_in: SignedIn) -> Known | None:
        """Stores what a sign-in yielded."""
        sealed = b""
        if signed_in.credential:
            sealed = self._keyring.seal(msgspec.json.encode(signed_in.credential), channel_id)
        await self._records.channels.bind(channel_id, status, signed_in.shown, sealed)
        return await self.fresh(channel_id)

    async def rebind(self, binding: Binding, credential: dict[str, str]) -> None:
        """The platform says that the place of a channel has changed; best effort, since it will say so again."""
        known = await self.get(binding.channel)
        if known is None:
            return
        try:
            await self.bind(binding.channel, known.channel.status, SignedIn(credential, known.channel.target))
        except RecordsUnavailable as error:
            log.warning("a channel's new place is not stored: channel=%s: %s", binding.channel, error)

    async def set_status(self, channel_id: str, status: str, reason: str) -> Known | None:
        """Changes the status, with its reason."""
        await self._records.channels.set_status(channel_id, status, reason)
        return await self.fresh(channel_id)

    def forget(self, channel_id: str) -> None:
        """It is read again at the next use."""
        self._known.pop(channel_id, None)

    def forget_all(self) -> None:
        """A partition has come or gone: others may have changed what is known here."""
        self._known.clear()

    def _bind(self, channel: Channel) -> Binding:
        credential: dict[str, str] = {}
        if channel.sealed:
            credential = msgspec.json.decode(
                self._keyring.open(channel.sealed, channel.channel_id), type=dict[str, str]
            )
        return Binding(channel.channel_id, channel.card_id, credential)
