import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.telemetry.traces import NO_SPAN, Facts, SpanName, Traces, current_ids, traces_of

PARENT = "00-aaaabbbbccccddddeeeeffff00001111-1234567890abcdef-01"


def made(ratio: float = 1.0, *, follows_sender: bool = True) -> tuple[Traces, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider.get_tracer("test"), ratio, follows_sender=follows_sender), exporter


def facts() -> Facts:
    return Facts(card="im.console", message_id="m1")


def test_a_packet_that_is_not_sampled_costs_an_empty_string() -> None:
    """Its facts are not even asked for, and nothing of it is traced later."""

    def never() -> Facts:
        raise AssertionError

    traces, exporter = made(0.0)
    assert traces.begin("", SpanName.RECEIVE, never) is NO_SPAN
    assert traces.begin(PARENT[:-1] + "0", SpanName.RECEIVE, never) is NO_SPAN
    assert Traces().begin(PARENT, SpanName.RECEIVE, never) is NO_SPAN
    assert traces.child(NO_SPAN.trace, SpanName.CALL, facts()) is NO_SPAN
    NO_SPAN.event("nothing")
    NO_SPAN.end("nothing")
    with NO_SPAN:
        assert current_ids() == ("", "")
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("bad", ["nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", PARENT.upper(), PARENT + "x"])
def test_a_context_that_is_none_begins_a_trace_of_its_own(bad: str) -> None:
    """Field report 39: no crash, a new root, never an id of zeros."""
    traces, exporter = made()
    span = traces.begin(bad, SpanName.RECEIVE, facts)
    span.end("taken")
    (finished,) = exporter.get_finished_spans()
    assert finished.parent is None
    assert finished.context is not None
    assert finished.context.trace_id != 0


def test_children_and_links_keep_their_traces() -> None:
    """A batch is in the trace of its first packet and linked to the others; what ends is ended once."""
    traces, exporter = made()
    first = traces.begin(PARENT, SpanName.RECEIVE, facts)
    second = traces.begin("", SpanName.RECEIVE, facts)
    batch = traces.child(first.trace, SpanName.BATCH, Facts(queue="q", items=2), [second.trace, "nonsense"])
    with batch:
        assert current_ids()[0] == "aaaabbbbccccddddeeeeffff00001111"
    batch.end("confirmed")
    batch.end("again")
    (finished,) = exporter.get_finished_spans()
    assert finished.attributes is not None
    assert dict(finished.attributes) == {
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 2,
        "sluice.outcome": "confirmed",
    }
    assert [f"{link.context.trace_id:032x}" for link in finished.links] == [second.trace.split("-")[1]]


def test_tracing_is_off_without_an_endpoint_and_a_wrong_sampler_is_refused() -> None:
    """The standard settings; an error names its setting."""
    with traces_of("edge", {}) as traces:
        assert traces.begin(PARENT, SpanName.RECEIVE, facts) is NO_SPAN
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with traces_of("edge", endpoint | {"OTEL_SDK_DISABLED": "true"}) as traces:
        assert traces.begin(PARENT, SpanName.RECEIVE, facts) is NO_SPAN
    for wrong in (
        {"OTEL_TRACES_SAMPLER": "some"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"},
    ):
        with pytest.raises(ValueError, match="OTEL_TRACES_SAMPLER"), traces_of("edge", endpoint | wrong):
            pass
