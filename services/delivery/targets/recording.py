"""`im.recording`: a platform that writes down every call and does what a script says (docs/recording.md).

An instrument that ships: it behaves the same for every worker, for script and calls are in the shared state.
"""

import os
import signal
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.delivery.targets.port import (
    Binding,
    Failed,
    NeverLeft,
    OutFile,
    Part,
    Refused,
    SignedIn,
    SignInError,
    Throttled,
    Traits,
    Unknown,
)
from services.delivery.trail import DeliveryStep
from shared.batcher import Batcher
from shared.cards.card import Card
from shared.clock import Clock
from shared.records.model import Receipt
from shared.state.script_board import Board
from shared.text.split import split_text
from shared.wire.packets import MessagePayload
from shared.wire.recording import TRUSTED_SECONDS, Call, Script, Step

NO_LIMIT = 1 << 30


class RecordingTarget:
    """The scripted platform.

    Args:
        card: the Connector Card.
        board: script and calls.
        clock: for latencies and times of calls.
    """

    def __init__(self, card: Card, board: Board, clock: Clock) -> None:
        self.card = card
        self._board = board
        self._clock = clock
        self.script = Script()
        self._source = b""
        self._read_at = float("-inf")

        async def refresh(asked: list[None]) -> Sequence[None]:
            at = clock.monotonic()
            source = await board.get_script() or b"{}"
            self._read_at = at
            if source != self._source:
                self.script, self._source = msgspec.json.decode(source, type=Script), source
            return [None] * len(asked)

        async def record(calls: list[tuple[bytes, str | None]]) -> Sequence[tuple[int, bool]]:
            return await board.record([call for call, _ in calls], [key for _, key in calls])

        self._refreshes: Batcher[None, None] = Batcher(refresh)
        self._records: Batcher[tuple[bytes, str | None], tuple[int, bool]] = Batcher(record)
        self._ordinals: Batcher[str, int] = Batcher(board.next_ordinals)

    async def traits(self, binding: Binding) -> Traits:
        """What the script says."""
        del binding
        if self._clock.monotonic() - self._read_at > TRUSTED_SECONDS:
            await self._refreshes.add(None)
        return Traits(keyed=self.script.keyed, edits=self.script.edits)

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """Text parts of at most the script's `text_limit` code points, then one part a file."""
        limit = self.script.text_limit or NO_LIMIT
        texts = split_text(message.text, limit, "points") if message.text else []
        key = f"{binding.channel}:{message.message_id}"
        parts = [Part(message.message_id, n, f"{key}:{n}", text) for n, text in enumerate(texts)]
        for file in files:
            parts.append(Part(message.message_id, len(parts), f"{key}:{len(parts)}", files=(file,)))
        return tuple(parts)

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """See `Target.send`."""
        return await self._perform("send", binding, part, None)

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """See `Target.edit`."""
        return await self._perform("edit", binding, part, shown)

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """See `Target.remove`."""
        await self._perform("remove", binding, Part("", 0, ""), shown)

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """Written down like every call."""
        await self._perform("activity", binding, Part("", 0, "", f"{status}:{tool_name}".rstrip(":")), None)

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """Takes a chat name; its absence means the channel's own id."""
        del flow_id
        chat = values.get("chat", "") or channel
        if not isinstance(chat, str) or len(chat) > 256:  # noqa: PLR2004 - as long as any id
            raise SignInError("chat: a text of at most 256 characters is required")
        return SignedIn({"chat": chat}, {"display_name": chat, "label": chat})

    async def sign_out(self, binding: Binding) -> None:
        """Nothing to forget."""

    async def _perform(
        self, kind: Literal["send", "edit", "remove", "activity"], binding: Binding, part: Part, shown: Receipt | None
    ) -> Receipt:
        chat = binding.credential.get("chat", binding.channel)
        step = await self._step(kind, chat, part.message_id)
        if step is not None:
            await self._clock.sleep(step.latency_ms / 1000) if step.latency_ms else None
            if step.refusal:
                await self._write(kind, chat, binding, part, shown, step.refusal)
                _refuse(step)
        ordinal = await self._write(kind, chat, binding, part, shown, "stored")
        if step is not None and step.stall_ms:
            await self._clock.sleep(step.stall_ms / 1000)
            raise Unknown("the answer was lost")
        if shown is not None:
            return shown
        handle = f"{chat}/{part.key}" if self.script.keyed else f"{chat}/{ordinal}"
        return Receipt(part.ordinal, handle, len(part.text))

    async def _write(
        self, kind: str, chat: str, binding: Binding, part: Part, shown: Receipt | None, outcome: str
    ) -> int:
        call = Call(
            kind=kind,
            chat=chat,
            channel=binding.channel,
            message_id=part.message_id,
            part=part.ordinal,
            text=part.text,
            files=tuple(file.row.filename for file in part.files),
            key=part.key,
            handle=shown.id if shown is not None else "",
            at=self._clock.now(),
            outcome=outcome,
        )
        key = part.key if kind == "send" and outcome == "stored" and self.script.keyed else None
        ordinal, _ = await self._records.add((msgspec.json.encode(call), key))
        return ordinal

    async def _step(self, kind: str, chat: str, message_id: str) -> Step | None:
        for index, step in enumerate(self.script.steps):
            if step.crash or not step.matches(kind, chat, message_id):
                continue
            if step.counts(await self._ordinals.add(f"step:{index}")):
                return step
        return None


class RecordingTrail:
    """Kills the process at the crash points of the script.

    Args:
        target: whose script.
        board: where occurrences are counted over all processes.
    """

    def __init__(self, target: RecordingTarget, board: Board) -> None:
        self._target = target
        self._board = board

    async def reached(self, step: DeliveryStep, card: str, channel: str, message_id: str) -> None:
        """See `Trail.reached`."""
        if card != self._target.card.card_id:
            return
        for index, scripted in enumerate(self._target.script.steps):
            if scripted.crash == step and scripted.matches("", channel, message_id):
                (ordinal,) = await self._board.next_ordinals([f"step:{index}"])
                if scripted.counts(ordinal):
                    os.kill(os.getpid(), signal.SIGKILL)


def _refuse(step: Step) -> None:
    match step.refusal:
        case "throttled":
            raise Throttled(step.retry_after)
        case "failed":
            raise Failed("scripted failure")
        case "never_left":
            raise NeverLeft("scripted: connection refused")
        case "unknown":
            raise Unknown("scripted: no answer")
        case _:
            raise Refused(step.message or "scripted refusal", revoked=step.refusal == "revoked")
