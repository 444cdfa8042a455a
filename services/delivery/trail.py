"""The steps of a delivery, told to whoever watches: the recording target's crash points, and later the spans."""

from typing import Literal, Protocol

DeliveryStep = Literal["before_call", "after_call", "after_receipt", "before_settle"]


class Trail(Protocol):
    """Watches deliveries."""

    async def reached(self, step: DeliveryStep, card: str, channel: str, message_id: str) -> None:
        """A delivery has come to this step."""
        ...


class NoTrail:
    """Nobody watches."""

    async def reached(self, step: DeliveryStep, card: str, channel: str, message_id: str) -> None:
        """See `Trail.reached`."""
