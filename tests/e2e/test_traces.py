"""One packet is one trace, over every process (field report 39)."""

import secrets
from pathlib import Path

import aiohttp

from shared.agent.client import AgentClient
from tests.e2e.fleets import fleet_of
from tests.support.otlp import Receiver, SeenSpan, receiving
from tests.support.process import API_KEY, Recording, until

TRACE = "aaaabbbbccccddddeeeeffff00001111"
OTHER = "11110000ffffeeeeddddccccbbbbaaaa"


def settings(receiver: Receiver) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def named(spans: list[SeenSpan], name: str) -> list[SeenSpan]:
    return [span for span in spans if span.name == name]


async def test_a_final_and_a_stream_are_each_one_trace_over_all_processes(
    tmp_path: Path, rabbitmq_url: str, redis_url: str, postgres_url: str
) -> None:
    """The sender's context is kept: edge, queue, delivery, a failed call and its retry, receipt, ack, edge again."""
    async with (
        receiving() as receiver,
        fleet_of(tmp_path, rabbitmq_url, redis_url, postgres_url, **settings(receiver)) as fleet,
        aiohttp.ClientSession() as http,
    ):
        edge = await fleet.add("edge")
        for role in ("delivery", "aggregator"):
            await fleet.add(role)
        recording = Recording(http, edge.url)
        await recording.script(steps=[{"kind": "send", "message_id": "m1", "refusal": "failed"}])
        secret = "s" + secrets.token_hex(8)
        async with AgentClient.connect(f"{edge.url}/im.recording", API_KEY) as agent:
            channel = (await agent.open()).channel_id
            context = f"00-{TRACE}-1234567890abcdef-01"
            payload = {"message_id": "m1", "text": secret}
            answer = await agent.request("chat.message", channel, payload, traceparent=context)
            assert answer["payload"]["status"] == "accepted"
            for n in range(1, 6):
                delta = {"message_id": "m2", "sequence": n, "text": f"{secret} "}
                await agent.send("chat.message.delta", channel, delta, traceparent=f"00-{OTHER}-1234567890abcdef-01")
            for bad in ("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "nonsense", "00-" + TRACE + "-1234567890abcdef-00"):
                payload = {"message_id": secrets.token_hex(4), "text": secret}
                untraced = await agent.request("chat.message", channel, payload, traceparent=bad)
                assert untraced["payload"]["status"] == "accepted"

        async def whole() -> bool:
            return bool(named(receiver.of(TRACE), "edge send")) and bool(named(receiver.of(OTHER), "preview"))

        await until(whole)
        final, stream = receiver.of(TRACE), receiver.of(OTHER)
    (received,) = named(final, "edge receive")
    assert received.parent_id == "1234567890abcdef"
    assert received.service == "sluice-edge"
    (delivered,) = named(final, "deliver")
    assert (delivered.service, delivered.parent_id) == ("sluice-delivery", received.span_id)
    assert delivered.attributes["messaging.message.id"] == "m1"
    assert delivered.attributes["sluice.outcome"] == "accepted"
    assert "receipts durable" in delivered.events
    calls = named(final, "target call")
    assert [call.attributes["sluice.outcome"] for call in calls] == ["Failed", "receipt"]
    assert {call.parent_id for call in calls} == {delivered.span_id}
    (sent,) = named(final, "edge send")
    assert (sent.service, sent.parent_id) == ("sluice-edge", delivered.span_id)
    (queued,) = named(final, "bus queue")
    assert queued.end >= queued.start
    assert {"sluice-edge", "sluice-delivery"} <= {span.service for span in named(final, "bus batch")}
    assert len(named(stream, "edge receive")) == 5
    assert {span.service for span in named(stream, "stream flush")} == {"sluice-aggregator"}
    assert {span.service for span in named(stream, "preview")} == {"sluice-delivery"}
    assert {span.trace_id for span in receiver.spans} == {TRACE, OTHER}
    for hidden in (secret, channel, API_KEY):
        assert hidden.encode() not in receiver.raw
    assert "detach" not in fleet.logs()
