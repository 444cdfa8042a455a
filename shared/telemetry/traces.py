"""Spans of packets (OpenTelemetry). One packet is one trace, from the edge to the platform and back.

The decision falls where a packet enters; from there its W3C traceparent travels in its item, and an empty one costs
nothing. What is said of a packet is in `Facts`, and nothing else ever is: no text, no name, no token, no URL.
"""

import contextlib
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Token
from enum import StrEnum
from typing import Final, Self

from msgspec import Struct
from opentelemetry import context as ot_context
from opentelemetry import trace as ot
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class SpanName(StrEnum):
    """What a span stands for."""

    RECEIVE = "edge receive"
    BATCH = "bus batch"
    QUEUE = "bus queue"
    DELIVER = "deliver"
    PREVIEW = "preview"
    CALL = "target call"
    FLUSH = "stream flush"
    SEND = "edge send"


_KINDS: Final = {
    SpanName.RECEIVE: ot.SpanKind.SERVER,
    SpanName.BATCH: ot.SpanKind.PRODUCER,
    SpanName.DELIVER: ot.SpanKind.CONSUMER,
    SpanName.PREVIEW: ot.SpanKind.CONSUMER,
    SpanName.FLUSH: ot.SpanKind.CONSUMER,
    SpanName.CALL: ot.SpanKind.CLIENT,
}


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes of a span; the names follow the semantic conventions for messaging where these have one."""

    card: str = ""
    channel_hash: str = ""
    message_id: str = ""
    packet_type: str = ""
    queue: str = ""
    items: int = 0
    part: int = -1
    attempt: int = 0

    def attributes(self) -> dict[str, str | int]:
        """As OpenTelemetry takes them."""
        named: dict[str, str | int] = {
            "sluice.card": self.card,
            "sluice.channel_hash": self.channel_hash,
            "messaging.message.id": self.message_id,
            "sluice.packet_type": self.packet_type,
            "messaging.destination.name": self.queue,
            "messaging.batch.message_count": self.items,
            "sluice.attempt": self.attempt,
        }
        given = {name: value for name, value in named.items() if value}
        if self.part >= 0:
            given["sluice.part"] = self.part
        return given


class Span:
    """A span under way, or nothing where the packet is not traced.

    Attributes:
        trace: its traceparent, for what follows from it; empty where there is none.
    """

    __slots__ = ("_span", "_token", "trace")

    def __init__(self, span: ot.Span | None) -> None:
        self._span = span
        self._token: Token[ot_context.Context] | None = None
        self.trace = "" if span is None else _text(span.get_span_context())

    def event(self, name: str) -> None:
        """Something happened within it."""
        if self._span is not None:
            self._span.add_event(name)

    def end(self, outcome: str = "") -> None:
        """It is over; a span that has ended stays as it is."""
        if self._span is None or not self._span.is_recording():
            return
        if outcome:
            self._span.set_attribute("sluice.outcome", outcome)
        self._span.end()

    def __enter__(self) -> Self:
        """Log lines of the block carry its ids."""
        if self._span is not None:
            self._token = ot_context.attach(ot.set_span_in_context(self._span))
        return self

    def __exit__(self, *_: object) -> None:
        """Log lines carry them no more; the span goes on until `end`."""
        if self._token is not None:
            ot_context.detach(self._token)
            self._token = None


NO_SPAN: Final = Span(None)


class Traces:
    """Makes spans.

    Args:
        tracer: of OpenTelemetry; None switches tracing off.
        ratio: the share of packets without a context of their sender's that are traced.
        follows_sender: a sender's own decision is kept.
    """

    def __init__(self, tracer: ot.Tracer | None = None, ratio: float = 0.0, *, follows_sender: bool = True) -> None:
        self._tracer = tracer
        self._ratio = ratio
        self._follows_sender = follows_sender

    def begin(self, parent: str, name: SpanName, facts: Callable[[], Facts]) -> Span:
        """The first span of a packet, or `NO_SPAN`; a context that is no context is as good as none.

        The facts are asked for only where the packet is traced, for this is on the way of every packet.
        """
        if self._tracer is None:
            return NO_SPAN
        context = _context(parent) if parent else None
        if context is not None and self._follows_sender:
            sampled = bool(context.trace_flags & ot.TraceFlags.SAMPLED)
        else:
            sampled = random.random() < self._ratio  # noqa: S311 - a sample, no secret
        return self._start(context, name, facts()) if sampled else NO_SPAN

    def child(self, parent: str, name: SpanName, facts: Facts, links: Sequence[str] = (), since: float = 0.0) -> Span:
        """A span within a trace; `NO_SPAN` where the parent is none.

        Args:
            parent: a traceparent, or empty.
            name: what it stands for.
            facts: its attributes.
            links: other packets that it is about.
            since: when it began, seconds since the epoch; now when 0.
        """
        if self._tracer is None or not parent or (context := _context(parent)) is None:
            return NO_SPAN
        return self._start(context, name, facts, links, since)

    def _start(
        self,
        context: ot.SpanContext | None,
        name: SpanName,
        facts: Facts,
        links: Sequence[str] = (),
        since: float = 0.0,
    ) -> Span:
        assert self._tracer is not None  # noqa: S101 - both callers have looked
        parent = ot_context.Context()
        if context is not None:
            parent = ot.set_span_in_context(ot.NonRecordingSpan(context), parent)
        linked = [ot.Link(found) for link in links if (found := _context(link)) is not None]
        return Span(
            self._tracer.start_span(
                name,
                parent,
                _KINDS.get(name, ot.SpanKind.INTERNAL),
                facts.attributes(),
                linked,
                int(since * 1e9) if since else None,
            )
        )


NO_TRACES: Final = Traces()


@contextlib.contextmanager
def traces_of(role: str, environment: Mapping[str, str]) -> Iterator[Traces]:
    """Tracing as the standard `OTEL_*` settings want it: off without an OTLP endpoint.

    Args:
        role: names the service where OTEL_SERVICE_NAME does not.
        environment: os.environ; the exporter reads it by itself, too.

    Raises:
        ValueError: a sampler that is not known.
    """
    if environment.get("OTEL_SDK_DISABLED") == "true" or not any(environment.get(name) for name in _ENDPOINTS):
        yield NO_TRACES
        return
    ratio, follows_sender = _sampler(environment)
    resource = Resource.create({"service.name": environment.get("OTEL_SERVICE_NAME") or f"sluice-{role}"})
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield Traces(provider.get_tracer("sluice"), ratio, follows_sender=follows_sender)
    finally:
        provider.shutdown()


def channel_hash(channel: str) -> str:
    """Names a channel in a span without its id: enough to tell channels apart."""
    return hashlib.blake2b(channel.encode(), digest_size=6).hexdigest()


def current_ids() -> tuple[str, str]:
    """Trace id and span id for a log line; empty outside of a span."""
    context = ot.get_current_span().get_span_context()
    if not context.is_valid:
        return "", ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def _sampler(environment: Mapping[str, str]) -> tuple[float, bool]:
    name = environment.get("OTEL_TRACES_SAMPLER", "parentbased_always_on")
    kind = name.removeprefix("parentbased_")
    try:
        ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
        if kind == "traceidratio":
            ratio = float(environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))
        if ratio is None or not 0.0 <= ratio <= 1.0:
            raise ValueError  # noqa: TRY301 - said below
    except ValueError:
        raise ValueError(
            "OTEL_TRACES_SAMPLER: always_on, always_off, traceidratio (OTEL_TRACES_SAMPLER_ARG from 0 to 1), "
            "or one of them after parentbased_"
        ) from None
    return ratio, kind != name


def _context(text: str) -> ot.SpanContext | None:
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    flags = ot.TraceFlags(int(found[3], 16) & ot.TraceFlags.SAMPLED)
    context = ot.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None


def _text(context: ot.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
