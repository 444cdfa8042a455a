"""The one text policy: NUL and lone surrogates become U+FFFD, everywhere (contract.md, Refusals)."""

REPLACEMENT = "\ufffd"


def clean_text(text: str) -> str:
    """Returns the text without NUL and lone surrogates; two halves of a character that meet become it."""
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
