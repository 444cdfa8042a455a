"""What Telegram keeps and what its Bot API lets a bot do with it, without any network.

Written from https://core.telegram.org/bots/api and the error texts that are known from the field. Stricter than the
real one where it is lenient in silence: unknown parameters, text that it would trim, entities that it would drop.
"""

from typing import Any, Final

import msgspec
from msgspec import Struct

from services.delivery.targets.telegram.entities import CAPTION_LIMIT, TEXT_LIMIT, Entity
from tests.support.telegram_rules import check_message

MIB: Final = 1024 * 1024
MEDIA: Final = {
    "sendPhoto": ("photo", 10 * MIB),
    "sendDocument": ("document", 50 * MIB),
    "sendVideo": ("video", 50 * MIB),
    "sendAudio": ("audio", 50 * MIB),
    "sendVoice": ("voice", 50 * MIB),
}
DOWNLOAD_LIMIT: Final = 20 * MIB
ACTIONS: Final = {
    *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice"),
    *("upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"),
}
_IN_CHAT: Final = {"chat_id", "message_thread_id", "disable_notification", "protect_content", "reply_parameters"}
_KNOWN: Final = {
    "getMe": set[str](),
    "getChat": {"chat_id"},
    "sendMessage": {*_IN_CHAT, "text", "entities", "parse_mode", "link_preview_options"},
    "editMessageText": {"chat_id", "message_id", "text", "entities", "parse_mode", "link_preview_options"},
    "deleteMessage": {"chat_id", "message_id"},
    "sendChatAction": {"chat_id", "message_thread_id", "action"},
    "getUpdates": {"offset", "limit", "timeout", "allowed_updates"},
    "setWebhook": {"url", "secret_token", "max_connections", "allowed_updates", "drop_pending_updates"},
    "deleteWebhook": {"drop_pending_updates"},
    "getFile": {"file_id"},
} | {method: {*_IN_CHAT, kind, "caption", "caption_entities", "parse_mode"} for method, (kind, _) in MEDIA.items()}


class Upload(Struct, frozen=True):
    """A file as the multipart body brought it."""

    filename: str
    mime_type: str
    data: bytes

    def __repr__(self) -> str:
        return f"Upload({self.filename!r}, {self.mime_type!r}, {len(self.data)} bytes)"


class Message(Struct):
    """A message that is in a chat now."""

    message_id: int
    text: str
    entities: tuple[Entity, ...] = ()
    kind: str = "text"
    upload: Upload | None = None
    edits: int = 0


class Chat(Struct):
    """A conversation; `refusal` is what every call into it gets."""

    id: int
    type: str = "private"
    title: str = ""
    username: str = ""
    refusal: "ApiError | None" = None
    messages: dict[int, Message] = {}
    last_id: int = 100

    def shown(self) -> dict[str, Any]:
        """As getChat tells it."""
        name = {"first_name": self.title} if self.type == "private" else {"title": self.title}
        return {"id": self.id, "type": self.type, **name} | ({"username": self.username} if self.username else {})


class Webhook(Struct, frozen=True):
    """Where updates are pushed to."""

    url: str
    secret: str


class Bot(Struct):
    """A bot; `updates` are those that nobody has confirmed."""

    id: int
    username: str
    updates: list[dict[str, Any]] = []
    next_update: int = 1
    webhook: Webhook | None = None
    polling: bool = False


class ApiError(Exception):
    """A refusal in Telegram's own shape."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        told = {"ok": False, "error_code": self.code, "description": self.description}
        return told | ({"parameters": self.parameters} if self.parameters else {})


class Platform:
    """Bots, chats, messages and files."""

    def __init__(self) -> None:
        self.bots: dict[str, Bot] = {}
        self.chats: dict[int, Chat] = {}
        self.files: dict[str, bytes] = {}

    def chat(self, chat_id: object) -> Chat:
        """The chat of a numeric id or of an @username, unless it refuses every call."""
        for chat in self.chats.values():
            if str(chat_id) in (str(chat.id), f"@{chat.username}"):
                if chat.refusal is not None:
                    raise chat.refusal
                return chat
        raise ApiError(400, "Bad Request: chat not found")

    def perform(self, bot: Bot, method: str, fields: dict[str, Any]) -> Any:
        """The result of a call that nothing waits in; raises `ApiError`."""
        if method not in _KNOWN:
            raise ApiError(404, "Not Found")
        if unknown := set(fields) - _KNOWN[method]:
            raise ApiError(400, f"Bad Request: unknown parameters {sorted(unknown)}")
        if "parse_mode" in fields:
            raise ApiError(400, "Bad Request: can't parse entities: this fake takes entities only")
        if method in MEDIA:
            return self._send_media(bot, method, fields)
        return _METHODS[method](self, bot, fields)

    def add_file(self, data: bytes, name: str) -> str:
        """A file of a person; returns its file_id."""
        self.files[f"documents/{name}"] = data
        return f"id-{name}"

    def get_me(self, bot: Bot, _: dict[str, Any]) -> dict[str, Any]:
        """See the API."""
        return {"id": bot.id, "is_bot": True, "first_name": bot.username, "username": bot.username}

    def get_chat(self, _: Bot, fields: dict[str, Any]) -> dict[str, Any]:
        """See the API."""
        return self.chat(fields.get("chat_id")).shown()

    def send_message(self, bot: Bot, fields: dict[str, Any]) -> dict[str, Any]:
        """See the API."""
        chat = self.chat(fields.get("chat_id"))
        text, entities = checked_text(fields.get("text"), fields.get("entities"))
        return self._put(bot, chat, Message(0, text, entities))

    def edit_message_text(self, bot: Bot, fields: dict[str, Any]) -> dict[str, Any]:
        """See the API."""
        chat = self.chat(fields.get("chat_id"))
        message = chat.messages.get(_number(fields, "message_id"))
        if message is None:
            raise ApiError(400, "Bad Request: message to edit not found")
        if message.kind != "text":
            raise ApiError(400, "Bad Request: there is no text in the message to edit")
        text, entities = checked_text(fields.get("text"), fields.get("entities"))
        if (text, entities) == (message.text, message.entities):
            raise ApiError(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are exactly the "
                "same as a current content and reply markup of the message",
            )
        message.text, message.entities, message.edits = text, entities, message.edits + 1
        return self._told(bot, chat, message)

    def delete_message(self, _: Bot, fields: dict[str, Any]) -> bool:
        """See the API."""
        chat = self.chat(fields.get("chat_id"))
        if chat.messages.pop(_number(fields, "message_id"), None) is None:
            raise ApiError(400, "Bad Request: message to delete not found")
        return True

    def send_chat_action(self, _: Bot, fields: dict[str, Any]) -> bool:
        """See the API."""
        self.chat(fields.get("chat_id"))
        if fields.get("action") not in ACTIONS:
            raise ApiError(400, "Bad Request: wrong parameter action in request")
        return True

    def get_updates(self, bot: Bot, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """What there is now; an offset confirms all before it."""
        offset, limit = _number(fields, "offset"), _number(fields, "limit") or 100
        if offset > 0:
            bot.updates[:] = [update for update in bot.updates if update["update_id"] >= offset]
        return bot.updates[:limit]

    def set_webhook(self, bot: Bot, fields: dict[str, Any]) -> bool:
        """See the API; loopback may do without TLS."""
        url = str(fields.get("url", ""))
        if url and not url.startswith(("https://", "http://127.0.0.1")):
            raise ApiError(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        bot.webhook = Webhook(url, str(fields.get("secret_token", ""))) if url else None
        return self._drop(bot, fields)

    def delete_webhook(self, bot: Bot, fields: dict[str, Any]) -> bool:
        """See the API."""
        bot.webhook = None
        return self._drop(bot, fields)

    def get_file(self, _: Bot, fields: dict[str, Any]) -> dict[str, Any]:
        """See the API."""
        file_id = str(fields.get("file_id", ""))
        path = f"documents/{file_id.removeprefix('id-')}"
        if path not in self.files:
            raise ApiError(400, "Bad Request: invalid file_id")
        size = len(self.files[path])
        if size > DOWNLOAD_LIMIT:
            raise ApiError(400, "Bad Request: file is too big")
        return {"file_id": file_id, "file_unique_id": f"u-{file_id}", "file_size": size, "file_path": path}

    def _send_media(self, bot: Bot, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        kind, limit = MEDIA[method]
        chat, upload = self.chat(fields.get("chat_id")), fields.get(kind)
        if not isinstance(upload, Upload):
            raise ApiError(400, f"Bad Request: there is no {kind} in the request")
        if not upload.data:
            raise ApiError(400, "Bad Request: file must be non-empty")
        if len(upload.data) > limit:
            raise ApiError(413, "Request Entity Too Large")
        text, entities = "", ()
        if fields.get("caption"):
            text, entities = checked_text(fields["caption"], fields.get("caption_entities"), CAPTION_LIMIT)
        return self._put(bot, chat, Message(0, text, entities, kind, upload))

    def _put(self, bot: Bot, chat: Chat, message: Message) -> dict[str, Any]:
        chat.last_id += 1
        message.message_id = chat.last_id
        chat.messages[chat.last_id] = message
        return self._told(bot, chat, message)

    def _told(self, bot: Bot, chat: Chat, message: Message) -> dict[str, Any]:
        told = {"message_id": message.message_id, "date": 1_760_000_000, "chat": chat.shown(), "from": {"id": bot.id}}
        return told | {"text" if message.kind == "text" else "caption": message.text}

    @staticmethod
    def _drop(bot: Bot, fields: dict[str, Any]) -> bool:
        if fields.get("drop_pending_updates"):
            bot.updates.clear()
        return True


_METHODS: Final = {
    "getMe": Platform.get_me,
    "getChat": Platform.get_chat,
    "sendMessage": Platform.send_message,
    "editMessageText": Platform.edit_message_text,
    "deleteMessage": Platform.delete_message,
    "sendChatAction": Platform.send_chat_action,
    "getUpdates": Platform.get_updates,
    "setWebhook": Platform.set_webhook,
    "deleteWebhook": Platform.delete_webhook,
    "getFile": Platform.get_file,
}


def checked_text(text: object, entities: object, limit: int = TEXT_LIMIT) -> tuple[str, tuple[Entity, ...]]:
    """The text and entities, if the rules let them pass; raises `ApiError`."""
    if not isinstance(text, str) or not text.strip():
        raise ApiError(400, "Bad Request: message text is empty")
    if len(text.encode("utf-16-le")) // 2 > limit:
        raise ApiError(400, f"Bad Request: message {'caption ' if limit == CAPTION_LIMIT else ''}is too long")
    try:
        found = msgspec.convert(entities or (), tuple[Entity, ...])
        check_message(text, found, limit)
    except (msgspec.ValidationError, AssertionError) as error:
        raise ApiError(400, f"Bad Request: can't parse entities: {error}") from error
    return text, found


def _number(fields: dict[str, Any], name: str) -> int:
    try:
        return int(fields.get(name, 0))
    except (TypeError, ValueError):
        raise ApiError(400, f"Bad Request: {name} must be an integer") from None
