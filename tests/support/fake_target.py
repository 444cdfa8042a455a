"""A platform in a few lines, for tests of what is above the port: scripted, and it writes all down."""

import asyncio
from typing import Any

from msgspec import Struct

from services.delivery.targets.port import Binding, OutFile, Part, SignedIn, TargetError, Traits
from shared.cards.card import Build, Card
from shared.clock import Clock
from shared.records.model import Receipt
from shared.wire.packets import MessagePayload

CARD = Card(
    card_id="im.test",
    version="1.0.0",
    name="Test",
    description="A platform in a few lines",
    provider="test",
    label="Test",
    build=Build(version="1.0.0"),
)


class Call(Struct, frozen=True):
    """A part that was to be sent, and whether it landed."""

    channel: str
    message_id: str
    ordinal: int
    text: str
    at: float
    landed: bool


class FakeTarget:
    """Parts are what "|" separates in the text.

    Args:
        clock: for the times of calls.
        keyed: see `Traits`.

    Attributes:
        calls: every send, in order.
        planned: the times at which each message_id was planned.
        errors: raised by the next sends of a text, one each.
        bugs: message_ids at which planning raises what no target should.
        hangs: message_ids at which planning never ends.
    """

    def __init__(self, clock: Clock, *, keyed: bool = False) -> None:
        self.card = CARD
        self.calls: list[Call] = []
        self.planned: dict[str, list[float]] = {}
        self.errors: dict[str, list[TargetError]] = {}
        self.bugs: set[str] = set()
        self.hangs: set[str] = set()
        self._clock = clock
        self._keyed = keyed

    def landed(self, channel: str = "") -> list[str]:
        """The texts that landed, of one channel or of all, in order."""
        return [call.text for call in self.calls if call.landed and channel in ("", call.channel)]

    async def traits(self, binding: Binding) -> Traits:
        """See `Target.traits`."""
        del binding
        return Traits(keyed=self._keyed, edits=False)

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """See `Target.plan`."""
        del files
        name = message.message_id
        self.planned.setdefault(name, []).append(self._clock.monotonic())
        if name in self.bugs:
            raise ZeroDivisionError(name)
        if name in self.hangs:
            await asyncio.Event().wait()
        texts = message.text.split("|")
        return tuple(Part(name, n, f"{binding.channel}:{name}:{n}", text) for n, text in enumerate(texts))

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """See `Target.send`."""
        errors = self.errors.get(part.text)
        at = self._clock.now()
        self.calls.append(Call(binding.channel, part.message_id, part.ordinal, part.text, at, landed=not errors))
        if errors:
            raise errors.pop(0)
        return Receipt(part.ordinal, f"{binding.channel}/{len(self.calls)}", len(part.text))

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """Nothing is streamed here."""
        raise NotImplementedError

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """Nothing is streamed here."""
        raise NotImplementedError

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """Shown to nobody."""

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """Everybody is signed in."""
        raise NotImplementedError

    async def sign_out(self, binding: Binding) -> None:
        """Nothing to forget."""
