"""An OTLP receiver on the loopback: what a collector would get."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class SeenSpan(Struct, frozen=True):
    """A span as it arrived; ids in hex."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: dict[str, str]
    events: tuple[str, ...]
    start: int
    end: int


class Receiver:
    """What has arrived.

    Attributes:
        url: for OTEL_EXPORTER_OTLP_ENDPOINT.
        raw: every body, for a search.
    """

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[SeenSpan] = []
        self.raw = b""

    def of(self, trace_id: str) -> list[SeenSpan]:
        """The spans of a trace, in the order of their beginning."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start)

    async def take(self, request: web.Request) -> web.Response:
        """POST /v1/traces."""
        body = await request.read()
        self.raw += body
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        SeenSpan(
                            service,
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            tuple(link.trace_id.hex() for link in span.links),
                            {a.key: a.value.string_value or str(a.value.int_value) for a in span.attributes},
                            tuple(event.name for event in span.events),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                        )
                    )
        return web.Response(body=b"", content_type="application/x-protobuf")


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver for the length of a block."""
    receiver = Receiver()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.post("/v1/traces", receiver.take)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
