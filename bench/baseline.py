"""The baseline: the connector one would write first. websockets, json, one aio-pika message a packet, one call a delta.

It does the same job with the same guarantees of the broker (quorum queue, persistent, confirmed) and no more: it keeps
no ledger and no receipts, checks nothing but the type, and does not order, coalesce, retry or park.

    python -m bench.baseline edge --bus amqp://… --port 0
    python -m bench.baseline worker --bus amqp://… --state redis://…
"""

import argparse
import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import uvloop
from aio_pika.abc import AbstractIncomingMessage
from redis.asyncio import Redis
from websockets.asyncio.server import ServerConnection, serve

WORK = "baseline.work"


async def edge(bus: str, port: int) -> None:
    """Frames to the queue, one message each; acks from the edge's own queue back to their sockets."""
    connection = await aio_pika.connect_robust(bus)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=256)
    await channel.declare_queue(WORK, durable=True, arguments={"x-queue-type": "quorum"})
    inbox = await channel.declare_queue(exclusive=True)
    sockets: dict[str, ServerConnection] = {}

    async def answer(message: AbstractIncomingMessage) -> None:
        async with message.process():
            packet = json.loads(message.body)
            if (socket := sockets.get(packet["connector_channel_id"])) is not None:
                await socket.send(json.dumps(packet))

    async def talk(socket: ServerConnection) -> None:
        async for frame in socket:
            packet: dict[str, Any] = json.loads(frame)
            if packet["type"] == "connector.hello":
                await socket.send(json.dumps({"type": "connector.hello.ack", "payload": {"connector_id": "c"}}))
            elif packet["type"] == "channel.open":
                name = uuid.uuid4().hex
                sockets[name] = socket
                answered = {"type": "channel.open.ack", "payload": {"connector_channel_id": name}}
                await socket.send(json.dumps(answered))
            else:
                body = json.dumps(packet).encode()
                message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, reply_to=inbox.name)
                await channel.default_exchange.publish(message, WORK)

    await inbox.consume(answer)
    async with serve(talk, "127.0.0.1", port) as server:
        print(f"listening ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/ws", flush=True)
        await asyncio.Future()


async def worker(bus: str, state: str) -> None:
    """A delta is appended to its text in Redis; a final is put on the list that stands for the platform, and acked."""
    connection = await aio_pika.connect_robust(bus)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=256)
    queue = await channel.declare_queue(WORK, durable=True, arguments={"x-queue-type": "quorum"})
    redis = Redis.from_url(state)

    async def work(message: AbstractIncomingMessage) -> None:
        async with message.process():
            packet = json.loads(message.body)
            payload = packet["payload"]
            if packet["type"] == "chat.message.delta":
                key = f"{packet['connector_channel_id']}:{payload['message_id']}"
                pipe = redis.pipeline(transaction=False)
                pipe.append(f"baseline:text:{key}", payload["text"])
                pipe.set(f"baseline:seq:{key}", payload["sequence"])
                await pipe.execute()
                return
            await redis.rpush("baseline:calls", json.dumps(packet))
            ack = {
                "type": "chat.message.ack",
                "connector_channel_id": packet["connector_channel_id"],
                "reply_to": packet["packet_id"],
                "payload": {"message_id": payload["message_id"], "status": "accepted"},
            }
            await channel.default_exchange.publish(aio_pika.Message(json.dumps(ack).encode()), message.reply_to or "")

    await queue.consume(work)
    print("listening", flush=True)
    await asyncio.Future()


def main() -> None:
    """Runs one of the two."""
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # a load socket that is dropped is no news
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["edge", "worker"])
    parser.add_argument("--bus", required=True)
    parser.add_argument("--state", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    roles: dict[str, Callable[[], Awaitable[None]]] = {
        "edge": lambda: edge(given.bus, given.port),
        "worker": lambda: worker(given.bus, given.state),
    }
    uvloop.run(roles[given.role]())  # type: ignore[arg-type] # a coroutine


if __name__ == "__main__":
    main()
