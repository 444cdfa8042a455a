"""Messages as the calls of the Bot API: what each part is, and what is simpler when it is refused. Pure.

Source: https://core.telegram.org/bots/api#sendmessage to #sendvoice (which formats, which sizes).
"""

from typing import Any, Final

from msgspec.structs import replace

from services.delivery.targets.port import OutFile, Part, Refused
from services.delivery.targets.telegram.api import BotRefused
from services.delivery.targets.telegram.entities import (
    CAPTION_LIMIT,
    TEXT_LIMIT,
    Entity,
    TelegramText,
    telegram_texts,
)
from shared.records.model import FileRow
from shared.wire.packets import MessagePayload

PREVIEW_SOURCE: Final = 4 * TEXT_LIMIT
"""As much of a running stream as its first message can be made of; the rest comes with the final."""

PHOTO_BYTES: Final = 10 * 1000 * 1000
_MESSAGE: Final = "sendMessage"
_DOCUMENT: Final = "sendDocument"
_METHODS: Final = {
    ("image", "image/jpeg"): "sendPhoto",
    ("image", "image/png"): "sendPhoto",
    ("image", "image/webp"): "sendPhoto",
    ("video", "video/mp4"): "sendVideo",
    ("audio", "audio/mpeg"): "sendAudio",
    ("audio", "audio/mp4"): "sendAudio",
    ("audio", "audio/m4a"): "sendAudio",
    ("audio", "audio/x-m4a"): "sendAudio",
    ("audio", "audio/ogg"): "sendVoice",
}
_FIELDS: Final = {
    "sendPhoto": "photo",
    "sendVideo": "video",
    "sendAudio": "audio",
    "sendVoice": "voice",
    _DOCUMENT: "document",
}
_UNFIT_MEDIA: Final = ("photo", "image", "video", "audio", "voice", "wrong type", "wrong file")


class TelegramPart(Part, frozen=True):
    """A part as it is sent: `text` is what is shown, or the caption of its file.

    Attributes:
        method: that puts it on the platform.
        entities: the styles of the text.
        plain: the text for when they are refused.
    """

    method: str = _MESSAGE
    entities: tuple[Entity, ...] = ()
    plain: str = ""

    @property
    def field(self) -> str:
        """What its method calls the file."""
        return _FIELDS[self.method]

    def styled(self, text: str = "text", entities: str = "entities") -> dict[str, Any]:
        """The fields for its text; empty where it has none."""
        told: dict[str, Any] = {text: self.text} if self.text else {}
        return told | ({entities: self.entities} if self.entities else {})


def shape(channel: str, message: MessagePayload, files: tuple[OutFile, ...]) -> tuple[TelegramPart, ...]:
    """The parts of a message: its text is the caption of the first file where it fits, else it goes before.

    Raises:
        Refused: it would show nothing, which Telegram takes for no message.
    """
    texts = telegram_texts(message.text)
    captions = telegram_texts(message.text, CAPTION_LIMIT) if files and len(texts) == 1 else []
    made: list[TelegramPart] = []

    def add(text: TelegramText | None, file: OutFile | None) -> None:
        at, said = len(made), text or TelegramText("", (), "")
        key = f"{channel}:{message.message_id}:{at}"
        method, carried = (method_for(file.row), (file,)) if file else (_MESSAGE, ())
        made.append(
            TelegramPart(
                message.message_id,
                at,
                key,
                said.text,
                carried,
                message.created_at,
                method,
                said.entities,
                said.plain,
            )
        )

    caption = captions[0] if len(captions) == 1 else None
    for text in texts if caption is None else ():
        add(text, None)
    for file in files:
        add(caption, file)
        caption = None
    if not made:
        raise Refused("the text shows nothing, so Telegram has no message for it")
    return tuple(made)


def first_message(part: Part) -> TelegramPart:
    """A part as it is sent; of the Markdown of a preview, what its first message shows.

    Raises:
        Refused: it shows nothing yet.
    """
    if isinstance(part, TelegramPart):
        return part
    texts = telegram_texts(part.text[:PREVIEW_SOURCE])
    if not texts:
        raise Refused("the text shows nothing yet")
    text = texts[0]
    return TelegramPart(part.message_id, part.ordinal, part.key, text.text, entities=text.entities, plain=text.plain)


def simpler(part: TelegramPart, error: BotRefused) -> TelegramPart | None:
    """The part without what was refused: its styles, or the special treatment of its file; None if that is not it."""
    if part.entities and error.says("entit"):
        return replace(part, text=part.plain, entities=())
    if part.files and part.method != _DOCUMENT and error.says(*_UNFIT_MEDIA):
        return replace(part, method=_DOCUMENT)
    return None


def method_for(row: FileRow) -> str:
    """How a file is sent: as what it is, if Telegram shows such files, else as a document."""
    method = _METHODS.get((row.file_type, row.mime_type), _DOCUMENT)
    return _DOCUMENT if method == "sendPhoto" and row.byte_size > PHOTO_BYTES else method
