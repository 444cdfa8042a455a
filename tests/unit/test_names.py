import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.names import clean_filename, content_disposition, sniff

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("../../x", "x"),
        ("..\\..\\a.txt", "a.txt"),
        ("a\0.png", "a.png"),
        ("CON.txt", "_CON.txt"),
        ("lpt9", "_lpt9"),
        ("console.txt", "console.txt"),
        ("\u62a5\u544a (\u7ec8\u7248)\u201c1\u201d.pdf", "\u62a5\u544a (\u7ec8\u7248)\u201c1\u201d.pdf"),
        ("e\u0301.txt", "\xe9.txt"),
        (".env", "env"),
        ("", "file"),
        ("..", "file"),
        ("a/b.txt", "b.txt"),
        ("x\r\nContent-Type: text\u2028", "xContent-Type: text"),
        ("invoice\u202egnp.exe", "invoicegnp.exe"),
        ("a\ud800.txt", "a\ufffd.txt"),
        ("trailing. . ", "trailing"),
    ],
)
def test_a_name_is_only_a_name(name: str, cleaned: str) -> None:
    """Field reports 17 and 29."""
    assert clean_filename(name, "file") == cleaned


@pytest.mark.parametrize("char", ["\xe9", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u5831", "a"])
def test_a_long_name_is_cut_between_characters_and_keeps_its_extension(char: str) -> None:
    cleaned = clean_filename(char * 300 + ".pdf", "file")
    assert len(cleaned.encode()) <= 255
    assert len(cleaned.encode()) > 255 - len(char.encode())
    assert cleaned.endswith(".pdf")
    assert cleaned.removesuffix(".pdf").replace(char, "") == ""


@given(st.text(), st.booleans())
def test_any_name_is_safe_and_clean_already(name: str, padded: bool) -> None:  # noqa: FBT001 - drawn
    cleaned = clean_filename(name * 40 if padded else name, "file")
    assert 0 < len(cleaned.encode()) <= 255
    assert not set(cleaned) & set("/\\\0\r\n\u202e")
    assert not cleaned.startswith(".")
    assert clean_filename(cleaned, "file") == cleaned


@given(st.text())
def test_no_name_injects_a_header(name: str) -> None:
    value = content_disposition(name, inline_ok=False)
    assert value.isascii()
    assert value.isprintable()
    assert value.count('"') == 2


def test_the_header_has_a_plain_name_and_the_true_one() -> None:
    value = content_disposition('\xe9 "1%".pdf', inline_ok=True)
    assert value == "inline; filename=\"_ _1__.pdf\"; filename*=UTF-8''%C3%A9%20%221%25%22.pdf"


@pytest.mark.parametrize(
    ("head", "declared", "filename", "mime_type", "file_type"),
    [
        (PNG, "", "", "image/png", "image"),
        (PNG, "text/html", "a.html", "image/png", "image"),
        (b"<html><body>", "image/png", "a.png", "text/html", "file"),
        (b"\xef\xbb\xbf \n<!DOCTYPE HTML>", "", "", "text/html", "file"),
        (b"<!-- x --><Script>", "image/png", "", "text/html", "file"),
        (b"<?xml version='1.0'?><!-- a --><svg>", "image/svg+xml", "", "image/svg+xml", "file"),
        (b"<?xml version='1.0'?><a/>", "image/png", "", "application/xml", "file"),
        (b"?", "image/svg+xml", "", "image/svg+xml", "file"),
        (b"no picture", "image/png", "a.png", "application/octet-stream", "file"),
        (b"plain", "text/plain; charset=utf-8", "", "text/plain", "file"),
        (b"plain", "", "a.md", "text/markdown", "file"),
        (b"plain", "x\r\ny: z", "", "application/octet-stream", "file"),
        (b"", "", "", "application/octet-stream", "file"),
        (b"%PDF-1.7", "", "", "application/pdf", "file"),
        (b"ID3\x03\0\0", "", "", "audio/mpeg", "audio"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "", "", "video/mp4", "video"),
    ],
)
def test_the_type_is_told_by_the_bytes(
    head: bytes, declared: str, filename: str, mime_type: str, file_type: str
) -> None:
    """Field report 28 (c)."""
    kind = sniff(head, declared, filename)
    assert (kind.mime_type, kind.file_type) == (mime_type, file_type)
