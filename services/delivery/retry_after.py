"""How long a platform asks to be left alone, in every shape they say it. Pure; one reader a platform.

Sources: RFC 9110 §10.2.3 (Retry-After) and §5.6.7 (its dates); Telegram `ResponseParameters.retry_after`; Discord's
429 body and header; Slack's header; Matrix `M_LIMIT_EXCEEDED` (`retry_after_ms`, and since v1.10 the header). Each
reader gives seconds, 0 to `LONGEST_WAIT`, or None where the answer does not say or says nonsense: then the caller
backs off by itself (field report 22).
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

LONGEST_WAIT: Final = 24 * 3600.0
"""A platform that asks for more is asked again after a day; the message's own age ends it sooner."""

#: A header is in whole seconds, so it may say up to this much more than the body means.
_ROUNDING: Final = 1.0
#: Matrix bridges wrap one error into the text of another; deeper than this it is no error but an attack.
_DEEPEST: Final = 3
_LONGEST_TEXT: Final = 8192

_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def sane(seconds: float | None) -> float | None:
    """Absent, negative and not finite mean "you choose"; more than a day is a day."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds, LONGEST_WAIT)


def of_header(headers: Mapping[str, str], now: float) -> float | None:
    """The standard header, of Slack and of web servers: seconds or a date.

    Args:
        headers: those of the answer, in any case.
        now: wall time in seconds since the epoch. The answer's own Date is taken where it has one, so that it does
            not matter how wrong the clock of this host is (field report 40).
    """
    said = {name.lower(): value for name, value in headers.items() if name.lower() in {"retry-after", "date"}}
    value = said.get("retry-after", "").strip()
    if (seconds := _number(value)) is not None:
        return sane(seconds)
    if (then := _moment(value)) is None:
        return None
    sent = _moment(said.get("date", ""))
    return sane(then - (now if sent is None else sent))


def of_telegram(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """`parameters.retry_after` in seconds, else the header."""
    return _agreed(_number(_field(_field(body, "parameters"), "retry_after")), of_header(headers, now))


def of_discord(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """`retry_after` in seconds, with a fraction, else the header."""
    return _agreed(_number(_field(body, "retry_after")), of_header(headers, now))


def of_matrix(headers: Mapping[str, str], body: object, now: float) -> float | None:
    """`retry_after_ms`, also of an error that stands as JSON in the text of another, else the header."""
    return _agreed(_matrix(body, _DEEPEST), of_header(headers, now))


def _matrix(body: object, depth: int) -> float | None:
    milliseconds = _number(_field(body, "retry_after_ms"))
    if sane(milliseconds) is not None or depth == 0:
        return None if milliseconds is None else milliseconds / 1000
    inner = _field(body, "error")
    return _matrix(_json(inner) if isinstance(inner, str) else inner, depth - 1)


def _agreed(body: float | None, header: float | None) -> float | None:
    """The body, which is exact, unless the header asks for more than rounding explains: nobody may call too early."""
    exact = sane(body)
    if exact is None or header is None:
        return header if exact is None else exact
    return exact if header <= exact + _ROUNDING else header


def _field(body: object, name: str) -> object:
    return body.get(name) if isinstance(body, dict) else None


def _json(text: str) -> object:
    begin, end = text.find("{"), text.rfind("}") + 1
    if not 0 <= begin < end <= _LONGEST_TEXT:
        return None
    try:
        return msgspec.json.decode(text[begin:end].encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _number(value: object) -> float | None:
    """A number, or a text that is one; True is none."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _moment(date: str) -> float | None:
    """An HTTP-date, in seconds since the epoch; one without a zone is in UTC, as all of them are."""
    try:
        moment: datetime = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
