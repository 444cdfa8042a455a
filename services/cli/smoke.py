"""`sluice smoke`: one message the whole way, as xAgent would send it; what `helm test` runs."""

import time

from msgspec import Struct

from shared.agent.client import AgentClient
from shared.agent.errors import AgentError

TEXT = "Sluice says hello to itself."


class Carried(Struct, frozen=True):
    """How far one message came.

    Attributes:
        status: of its ack; empty when none came.
        detail: the channel it went to, or what was wrong.
        seconds: from dialling to the ack.
    """

    status: str
    detail: str
    seconds: float


async def carry(url: str, api_key: str, timeout: float) -> Carried:  # noqa: ASYNC109 - of each answer, not of the whole
    """Says hello, opens a channel, streams two deltas and sends the final.

    Args:
        url: the base URL of a Card that needs no signing in.
        api_key: the system key.
        timeout: seconds to wait for one answer.
    """
    began = time.monotonic()
    try:
        async with AgentClient.connect(url.rstrip("/"), api_key, timeout=timeout) as agent:
            channel = (await agent.open()).channel_id
            message_id = f"smoke_{channel}"
            half = len(TEXT) // 2
            await agent.send_delta(channel, message_id, 1, TEXT[:half])
            await agent.send_delta(channel, message_id, 2, TEXT[half:])
            ack = await agent.send_message(channel, TEXT, message_id=message_id)
    except (AgentError, TimeoutError) as error:
        return Carried("", str(error) or type(error).__name__, time.monotonic() - began)
    status = str(ack.get("status", ""))
    detail = f"channel {channel}" if status == "accepted" else str(ack.get("code", "no code"))
    return Carried(status, detail, time.monotonic() - began)
