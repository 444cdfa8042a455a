"""What a file is called and what it is: pure rules on names and first bytes (field reports 17, 28, 29)."""

import re
import unicodedata
from typing import Final, Literal
from urllib.parse import quote

import filetype
from msgspec import Struct

from shared.text.graphemes import last_boundary
from shared.text.policy import clean_text

FileType = Literal["image", "video", "audio", "file"]

NAME_BYTES: Final = 255
_EXTENSION_BYTES: Final = 32
_EDGES: Final = re.compile(r"\A[\s.]+|(?<![\s.])[\s.]+\Z")
_SEPARATORS: Final = re.compile(r"[/\\]")
_BIDI: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_RESERVED: Final = re.compile(
    r"(con|prn|aux|nul|com[0-9\u00b9\u00b2\u00b3]|lpt[0-9\u00b9\u00b2\u00b3]|con(in|out)\$)\s*(\.|$)", re.IGNORECASE
)
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_OCTETS: Final = "application/octet-stream"
_BEGINNINGS: Final = (
    (
        re.compile(rb"<(!doctype html|html|head|body|script|iframe|meta|title|style|table|div|a |p>)", re.IGNORECASE),
        "text/html",
    ),
    (re.compile(rb"<(svg|!doctype svg)", re.IGNORECASE), "image/svg+xml"),
)
_PROLOGUE: Final = re.compile(rb"(?:\s+|<\?xml[^>]{0,512}>|<!--.{0,2048}?-->)", re.DOTALL)
_MARKUP: Final = frozenset({"text/html", "application/xhtml+xml", "image/svg+xml", "text/xml", "application/xml"})
_EXTENSIONS: Final = {
    "csv": "text/csv", "css": "text/css", "htm": "text/html", "html": "text/html", "js": "text/javascript",
    "json": "application/json", "log": "text/plain", "md": "text/markdown", "svg": "image/svg+xml",
    "txt": "text/plain", "xhtml": "application/xhtml+xml", "xml": "application/xml", "yaml": "application/yaml",
}  # fmt: skip


class SniffedType(Struct, frozen=True):
    """What a file is.

    Attributes:
        mime_type: for a Content-Type.
        file_type: for the wire (IM v2 §5).
    """

    mime_type: str
    file_type: FileType


def clean_filename(name: str, fallback: str) -> str:
    """Returns a name that is only a name: no path, no control, no override of direction, at most 255 bytes.

    Args:
        name: what somebody called the file; anything.
        fallback: for a name of which nothing is left.
    """
    shown = "".join(char for char in clean_text(name.replace("\0", "")) if not _is_unwanted(char))
    base = _SEPARATORS.split(shown)[-1]
    base = _EDGES.sub("", unicodedata.normalize("NFC", base))
    if _RESERVED.match(base):
        base = "_" + base
    return _shorten(base) or fallback


def sniff(head: bytes, declared: str, filename: str) -> SniffedType:
    """Tells a file's type by its bytes first: a page that is declared an image stays a page (field report 28).

    Args:
        head: the first bytes of the file.
        declared: the Content-Type it came with; may be empty or a lie.
        filename: may be empty.
    """
    mime = _markup(head) or _known(head)
    if mime is None:
        mime = _unproven(_bare(declared)) or _unproven(_by_name(filename)) or _OCTETS
    return SniffedType(mime, _kind(mime))


def content_disposition(name: str, inline_ok: bool) -> str:  # noqa: FBT001 - the contract's signature
    """The header's value (RFC 6266): an ASCII name for old readers and the true one as `filename*`.

    Args:
        name: a cleaned name.
        inline_ok: whether a browser may show the file in place.
    """
    how = "inline" if inline_ok else "attachment"
    safe = clean_filename(name, "file")
    plain = re.sub(r'[^ -~]|["\\%]', "_", safe)
    return f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(safe, safe='')}"


def _is_unwanted(char: str) -> bool:
    return char in _BIDI or unicodedata.category(char) in ("Cc", "Zl", "Zp")


def _shorten(name: str) -> str:
    if len(name.encode()) <= NAME_BYTES:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = dot + extension
    if not stem or len(tail.encode()) > _EXTENSION_BYTES:
        stem, tail = name, ""
    room = len(stem.encode()[: NAME_BYTES - len(tail.encode())].decode(errors="ignore"))
    cut = stem[: last_boundary(stem, 0, room)]
    return _EDGES.sub("", cut) + tail


def _markup(head: bytes) -> str | None:
    start = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    is_xml = head.startswith(b"<?xml", start)
    while match := _PROLOGUE.match(head, start):
        is_xml = is_xml or match.group().startswith(b"<?xml")
        start = match.end()
    for beginning, mime in _BEGINNINGS:
        if beginning.match(head, start):
            return mime
    return "application/xml" if is_xml else None


def _known(head: bytes) -> str | None:
    kind = filetype.guess(head) if head else None
    return str(kind.mime) if kind is not None else None


def _bare(declared: str) -> str:
    mime = declared.split(";", 1)[0].strip().lower()
    return mime if _MIME.fullmatch(mime) else ""


def _by_name(filename: str) -> str:
    extension = filename.rpartition(".")[2].lower()
    if extension in _EXTENSIONS:
        return _EXTENSIONS[extension]
    kind = filetype.get_type(ext=extension)
    return str(kind.mime) if kind is not None else ""


def _unproven(mime: str) -> str:
    """A claim that the bytes do not bear out is believed of text and unknown formats, never of shown media."""
    return "" if mime == _OCTETS or (_kind(mime) != "file" and not _is_unsniffable(mime)) else mime


def _is_unsniffable(mime: str) -> bool:
    return filetype.get_type(mime=mime) is None


def _kind(mime: str) -> FileType:
    if mime in _MARKUP or mime.endswith("+xml"):
        return "file"
    match mime.split("/", 1)[0]:
        case "image":
            return "image"
        case "video":
            return "video"
        case "audio":
            return "audio"
        case _:
            return "file"
