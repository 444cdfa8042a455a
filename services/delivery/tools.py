"""Tools of the Cards: a send asked for by the agent's tool call, idempotent by tool_call_id (contract.md, Tools)."""

from typing import Any

import msgspec

from services.delivery.answers import Answers
from services.delivery.desk import Desk
from services.delivery.finals import Attempt, Finals
from services.delivery.targets.port import Target
from shared.wire import replies
from shared.wire.items import Item
from shared.wire.packets import ChatMessage, File, MessagePayload, ToolInvoke


class ToolError(Exception):
    """The arguments are wrong; the message says which and why."""


class Tools:
    """Performs `tool.invoke`.

    Args:
        targets: by connector_card_id.
        finals: a tool's send takes the same road as a final, ledger and all.
        desk: the ledger, for the result of a call that is repeated.
        answers: the way back.
    """

    def __init__(self, targets: dict[str, Target], finals: Finals, desk: Desk, answers: Answers) -> None:
        self._targets = targets
        self._finals = finals
        self._desk = desk
        self._answers = answers

    async def invoke(self, item: Item, packet: ToolInvoke) -> None:
        """Performs one call and answers it."""
        call_id = packet.payload.context.tool_call_id or packet.packet_id
        try:
            message = self._message(item, packet, f"tool:{call_id}")
        except ToolError as error:
            await self._answer(item, packet, None, str(error))
            return
        chat = ChatMessage(
            schema=packet.schema, packet_id=packet.packet_id, connector_channel_id=item.channel, payload=message
        )
        raw = msgspec.json.encode(chat)
        quiet = Item(item.kind, item.card, item.channel, raw, "", item.at, item.trace)
        wait = await self._finals.deliver(Attempt(quiet, chat, answered=False))
        entry = await self._desk.find(item.channel, message.message_id)
        if wait is None and entry is not None and entry.state == "done":
            receipts = [receipt.id for receipt in entry.receipts]
            await self._answer(item, packet, {"status": "sent", "receipts": receipts}, "")
        elif wait is not None:
            await self._answer(item, packet, None, f"the platform is busy; try again in {wait.seconds:.0f} s")
        else:
            why = f"{entry.code}: {entry.detail}" if entry is not None else "sign in first"
            await self._answer(item, packet, None, why)

    def _message(self, item: Item, packet: ToolInvoke, message_id: str) -> MessagePayload:
        tool_id, arguments = packet.payload.tool_id, packet.payload.arguments
        declared = {tool.tool_id for tool in self._targets[item.card].card.tools}
        if tool_id not in declared:
            raise ToolError("the Card has no such tool")
        if arguments.get("connector_channel_id") != item.channel:
            raise ToolError("connector_channel_id: must be the channel of the packet")
        if tool_id.endswith("_file_send"):
            ref = _text(arguments, "file_ref")
            caption = _text(arguments, "caption", required=False)
            return MessagePayload(message_id=message_id, text=caption, files=(File(type="file", file_ref=ref),))
        return MessagePayload(message_id=message_id, text=_text(arguments, "text"))

    async def _answer(self, item: Item, packet: ToolInvoke, result: dict[str, Any] | None, problem: str) -> None:
        payload: dict[str, Any] = {"tool_id": packet.payload.tool_id}
        if result is not None:
            payload["result"] = result
        error = replies.ErrorBody("tool_invoke_failed", problem[:300]) if problem else None
        raw = replies.packet(
            "tool.invoke.ack",
            payload,
            channel=item.channel,
            request_id=packet.request_id,
            reply_to=packet.packet_id,
            error=error,
        )
        await self._answers.reply(item, raw)


def _text(arguments: dict[str, Any], name: str, *, required: bool = True) -> str:
    value = arguments.get(name, "")
    if not isinstance(value, str) or (required and not value.strip()):
        raise ToolError(f"{name}: a text is required")
    return value
