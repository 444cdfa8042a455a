"""`im.telegram`, outbound: finals, previews, files and typing through the Bot API (docs/telegram.md)."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from services.delivery.targets.port import (
    Binding,
    Gone,
    OutFile,
    Part,
    Refused,
    SignedIn,
    SignInError,
    Traits,
    Unknown,
)
from services.delivery.targets.telegram.api import BotApi, BotRefused
from services.delivery.targets.telegram.shapes import TelegramPart, first_message, shape, simpler
from shared.cards.card import Card
from shared.records.model import Receipt
from shared.wire.packets import MessagePayload

T = TypeVar("T")
Rebind = Callable[[Binding, dict[str, str]], Awaitable[None]]
"""Stores another credential of a channel. What cannot be stored now is no failure: Telegram will say it again."""

LONG_TEXT: Final = 16 * 1024
"""Code points from which a text is parsed off the event loop."""

PRIVATE_SECONDS: Final = 1.0
GROUP_SECONDS: Final = 3.0
NO_LINK_PREVIEW: Final = {"is_disabled": True}
"""Else Telegram's servers fetch whatever URL an agent was talked into writing, before anybody has seen it."""

_TOKEN: Final = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{20,100}")
_CHAT: Final = re.compile(r"-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,31}")
_BAD_REQUEST: Final = 400


class _Chat(Struct, frozen=True):
    id: int
    title: str = ""
    first_name: str = ""
    username: str = ""


class _Sent(Struct, frozen=True):
    message_id: int
    chat: _Chat


class _Bot(Struct, frozen=True):
    username: str = ""


class TelegramTarget:
    """A bot in a chat.

    Args:
        card: the Connector Card.
        api: the Bot API.
        rebind: where a chat that has moved is remembered.
    """

    def __init__(self, card: Card, api: BotApi, rebind: Rebind) -> None:
        self.card = card
        self._api = api
        self._rebind = rebind

    async def traits(self, binding: Binding) -> Traits:
        """Nothing is deduped; messages can be edited, in groups less often (platform-limits.md)."""
        is_group = binding.credential["chat_id"].startswith("-")
        return Traits(keyed=False, edits=True, preview_seconds=GROUP_SECONDS if is_group else PRIVATE_SECONDS)

    async def plan(self, binding: Binding, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[Part, ...]:
        """See `shape`."""
        if len(message.text) < LONG_TEXT:
            return shape(binding.channel, message, files)
        return await asyncio.to_thread(shape, binding.channel, message, files)

    async def send(self, binding: Binding, part: Part) -> Receipt:
        """See `Target.send`; a chat that has moved is followed once."""
        shaped, token, chat = first_message(part), binding.credential["bot_token"], binding.credential["chat_id"]
        try:
            return await self._put(token, chat, shaped)
        except BotRefused as error:
            if not error.moved_to:
                raise
            chat = error.moved_to
        await self._rebind(binding, {**binding.credential, "chat_id": chat})
        return await self._put(token, chat, shaped)

    async def edit(self, binding: Binding, shown: Receipt, part: Part) -> Receipt:
        """See `Target.edit`; what reads so already is done."""
        shaped = first_message(part)
        if shaped.files:  # a text cannot become a file in place
            await self._clear_away(binding, shown)
            raise Gone("the preview makes room for a file")
        try:
            await self._change(binding, shown, shaped)
        except BotRefused as error:
            if error.says("not modified"):
                pass
            elif error.moved_to:
                await self._rebind(binding, {**binding.credential, "chat_id": error.moved_to})
                raise Gone("the chat has moved; its messages have other ids there") from error
            elif error.says("message to edit not found", "message_id_invalid"):
                raise Gone("somebody has deleted the preview") from error
            elif error.says("can't be edited", "no text in the message"):
                await self._clear_away(binding, shown)
                raise Gone("the preview cannot be edited any more") from error
            else:
                raise
        return Receipt(part.ordinal, shown.id, len(shaped.text))

    async def remove(self, binding: Binding, shown: Receipt) -> None:
        """See `Target.remove`; what is not there needs no removing."""
        chat, _, message = shown.id.partition("/")
        try:
            await self._api.call(
                binding.credential["bot_token"], "deleteMessage", chat_id=chat, message_id=int(message)
            )
        except BotRefused as error:
            if not error.says("message to delete not found", "message_id_invalid"):
                raise

    async def activity(self, binding: Binding, status: str, tool_name: str) -> None:
        """Typing, which lapses by itself after five seconds and cannot be cleared."""
        if status != "idle":
            chat = binding.credential["chat_id"]
            await self._api.call(binding.credential["bot_token"], "sendChatAction", chat_id=chat, action="typing")

    async def sign_in(self, channel: str, flow_id: str, values: dict[str, Any]) -> SignedIn:
        """Asks Telegram who the bot is and whether it knows the chat."""
        del channel, flow_id
        token, chat = _text(values.get("bot_token")), _text(values.get("chat_id"))
        if not _TOKEN.fullmatch(token):
            raise SignInError("bot_token: a token as @BotFather gives it is required (123456:ABC…)")
        if not _CHAT.fullmatch(chat):
            raise SignInError("chat_id: a number or an @username is required")
        bot = await self._who(token)
        found = await self._where(token, chat)
        name = found.title or found.first_name or found.username or str(found.id)
        shown = {"display_name": name, "label": name, "account_hint": f"@{bot.username}"}
        return SignedIn({"bot_token": token, "chat_id": str(found.id)}, shown)

    async def sign_out(self, binding: Binding) -> None:
        """A token stays valid until its owner revokes it; there is nothing to forget at Telegram."""

    async def _who(self, token: str) -> _Bot:
        try:
            return _as(_Bot, await self._api.call(token, "getMe"))
        except BotRefused as error:
            raise SignInError(f"bot_token: {error}") from error

    async def _where(self, token: str, chat: str) -> _Chat:
        try:
            return await self._find(token, chat)
        except BotRefused as error:
            if not error.moved_to:
                raise SignInError(f"chat_id: {error}") from error
            chat = error.moved_to
        try:
            return await self._find(token, chat)
        except BotRefused as error:
            raise SignInError(f"chat_id: {error}") from error

    async def _find(self, token: str, chat: str) -> _Chat:
        return _as(_Chat, await self._api.call(token, "getChat", chat_id=chat))

    async def _put(self, token: str, chat: str, part: TelegramPart) -> Receipt:
        try:
            sent = _as(_Sent, await self._call(token, chat, part))
        except BotRefused as error:
            rest = simpler(part, error) if error.code == _BAD_REQUEST else None
            if rest is None:
                raise
            return await self._put(token, chat, rest)
        return Receipt(part.ordinal, f"{sent.chat.id}/{sent.message_id}", len(part.text))

    async def _call(self, token: str, chat: str, part: TelegramPart) -> Any:
        if not part.files:
            return await self._api.call(
                token, part.method, chat_id=chat, link_preview_options=NO_LINK_PREVIEW, **part.styled()
            )
        fields = part.styled("caption", "caption_entities")
        if part.entities:
            fields["caption_entities"] = msgspec.json.encode(part.entities).decode()
        return await self._api.upload(token, part.method, part.field, part.files[0].row, chat_id=chat, **fields)

    async def _change(self, binding: Binding, shown: Receipt, part: TelegramPart) -> None:
        chat, _, message = shown.id.partition("/")
        try:
            await self._api.call(
                binding.credential["bot_token"],
                "editMessageText",
                chat_id=chat,
                message_id=int(message),
                link_preview_options=NO_LINK_PREVIEW,
                **part.styled(),
            )
        except BotRefused as error:
            rest = simpler(part, error) if error.code == _BAD_REQUEST else None
            if rest is None:
                raise
            await self._change(binding, shown, rest)

    async def _clear_away(self, binding: Binding, shown: Receipt) -> None:
        """Best effort: what cannot be removed stays beside the final, which matters more."""
        try:
            await self.remove(binding, shown)
        except Refused:
            return


def _as(kind: type[T], result: Any) -> T:
    """A result in its shape; Telegram said yes, so what cannot be read has been done all the same."""
    try:
        return msgspec.convert(result, kind)
    except msgspec.ValidationError as error:
        raise Unknown("Telegram answered in a shape that is not known") from error


def _text(value: object) -> str:
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
