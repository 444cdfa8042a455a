"""Names and types of files, made safe. Pure (field reports 17, 28, 29)."""

import re
import unicodedata
from typing import Final, Literal
from urllib.parse import quote

import filetype
from msgspec import Struct

FileType = Literal["image", "video", "audio", "file"]
MOST_BYTES: Final = 255
_BAD: Final = re.compile(r'[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069<>:"|?*]')
_RESERVED: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_MARKUP: Final = re.compile(rb"^\s*(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|script|svg|\?xml)", re.IGNORECASE)
_DECLARED: Final = re.compile(r"[a-z0-9.+-]+/[a-z0-9.+-]+")


class SniffedType(Struct, frozen=True):
    """What the bytes are."""

    mime_type: str
    file_type: FileType


def clean_filename(name: str, fallback: str) -> str:
    """A name that is only a name, of at most 255 bytes, its extension kept."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    name = _BAD.sub("", name.replace("\\", "/").rsplit("/", 1)[-1]).strip(" .")
    if not name:
        return fallback
    if _RESERVED.match(name):
        name = f"_{name}"
    stem, dot, extension = name.rpartition(".")
    if not dot or len(extension) > 16:  # noqa: PLR2004 - longer is no extension
        stem, extension = name, ""
    tail = f".{extension}" if extension else ""
    room = MOST_BYTES - len(tail.encode())
    cut = stem.encode()[:room].decode("utf-8", "ignore")
    return cut + tail


def sniff(head: bytes, declared: str, filename: str) -> SniffedType:
    """What a file is by its first bytes; what is declared counts only where they say nothing, and never for markup."""
    del filename
    if _MARKUP.match(head[:512]):
        return SniffedType("text/html" if b"<svg" not in head[:512].lower() else "image/svg+xml", "file")
    found = filetype.guess(head)
    if found is not None:
        return SniffedType(found.mime, _family(found.mime))
    declared = declared.split(";", 1)[0].strip().lower()
    family = _family(declared)
    if family != "file" or not _DECLARED.fullmatch(declared) or declared in ("text/html", "image/svg+xml"):
        return SniffedType("application/octet-stream", "file")
    return SniffedType(declared, "file")


def content_disposition(name: str, inline_ok: bool) -> str:  # noqa: FBT001 - the one question there is
    """RFC 6266, with the UTF-8 form beside the plain one."""
    plain = name.encode("ascii", "replace").decode().replace("?", "_").replace('"', "_").replace("\\", "_")
    kind = "inline" if inline_ok else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _family(mime: str) -> FileType:
    if mime.startswith("image/") and "svg" not in mime:
        return "image"
    if mime.startswith("video/"):
        return "video"
    return "audio" if mime.startswith("audio/") else "file"
