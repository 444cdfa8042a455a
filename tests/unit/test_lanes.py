"""Lanes: one channel in order, channels side by side, and nothing overtakes what is being parked."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from services.delivery.lanes import Batch, Job, Lane, Lanes, Tail
from shared.clock import ManualClock
from shared.wire.items import Item
from shared.wire.packets import SCHEMA, ChatMessage, MessagePayload

SLOW = 3.0


class ScriptedWorker:
    """Takes as long as its gates say, and writes down what it did.

    Attributes:
        log: what was done, by name of the job.
        gates: jobs, or "park", or "resume", that wait for their event.
        tails: jobs that leave one; the test ends it.
        parked: what is parked, by name, in order.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tails: dict[str, Tail] = {}
        self.parked: list[str] = []
        self.buried: list[str] = []
        self.at_work = 0
        self.most_at_work = 0

    def hold(self, *names: str) -> None:
        """They do not go on before `release`."""
        self.gates |= {name: asyncio.Event() for name in names}

    def release(self, *names: str) -> None:
        """They go on."""
        for name in names:
            self.gates[name].set()

    def leave_tail(self, name: str) -> Tail:
        """The job leaves this to run beside the lane."""
        self.tails[name] = asyncio.get_running_loop().create_future()
        return self.tails[name]

    async def work(self, lane: Lane, job: Job) -> Tail | None:
        """See `Worker.work`; as the real one does, it parks what comes while work is parked."""
        name = name_of(job)
        if lane.parked:
            self.parked.append(name)
            self.log.append(f"parked {name}")
            return None
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            self.log.append(f"begin {name}")
            await self._gate(name)
            self.log.append(f"end {name}")
        finally:
            self.at_work -= 1
        return self.tails.get(name)

    async def bury(self, job: Job, error: BaseException) -> None:
        """See `Worker.bury`."""
        self.buried.append(f"{name_of(job)}: {error}")
        await self._gate("bury")

    async def resume(self, lane: Lane) -> None:
        """See `Worker.resume`."""
        await self._gate("resume")
        self.log += [f"resumed {name}" for name in self.parked]
        self.parked.clear()
        lane.parked = False

    async def park(self, lane: Lane, jobs: list[Job]) -> None:
        """See `Worker.park`; slow, one at a time, as a busy database is."""
        del lane
        for job in jobs:
            await self._gate("park")
            await asyncio.sleep(0)
            self.parked.append(name_of(job))
            self.log.append(f"parked {name_of(job)}")

    async def _gate(self, name: str) -> None:
        if name in self.gates:
            await self.gates[name].wait()


class Bench:
    """Lanes over a scripted worker; each submitted job is a bus message of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.worker = ScriptedWorker()
        self.lanes = Lanes(self.worker, self.clock)
        self.batches: dict[str, Batch] = {}

    def submit(self, *names: str, channel: str = "c", partition: int = 0) -> None:
        """Finals, in order; the message_id is the part of the name before a slash."""
        for name in names:
            self.batches[name] = Batch(1)
            message = MessagePayload(message_id=name.split("/")[0], text=name)
            packet = ChatMessage(schema=SCHEMA, packet_id=name, payload=message)
            self.lanes.submit(Item("packet", "im.test", channel, name.encode()), packet, partition, self.batches[name])

    def submit_note(self, name: str) -> None:
        """Something that is no final."""
        self.lanes.submit(Item("preview", "im.test", "c", name.encode()), None, 0, None)

    def settled(self) -> list[str]:
        """The jobs whose bus message is settled."""
        return [name for name, batch in self.batches.items() if batch.done.is_set()]


def name_of(job: Job) -> str:
    return job.item.raw.decode()


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    """Lanes that leave nothing running."""
    bench = Bench()
    yield bench
    await bench.lanes.abandon(0)
    await bench.lanes.abandon(1)


async def test_a_lane_does_one_job_at_a_time_in_order(bench: Bench) -> None:
    """The second begins when the first has ended, and each settles its own bus message."""
    bench.worker.hold("a")
    bench.submit("a", "b", "c")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a"]
    assert bench.settled() == []
    bench.worker.release("a")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]
    assert bench.worker.most_at_work == 1
    assert bench.settled() == ["a", "b", "c"]


async def test_lanes_run_side_by_side(bench: Bench) -> None:
    """A channel that waits delays only itself."""
    bench.worker.hold("a1")
    bench.submit("a1", "a2", channel="a")
    bench.submit("b1", "b2", channel="b")
    await bench.clock.settle()
    assert bench.settled() == ["b1", "b2"]
    assert bench.worker.most_at_work == 2
    bench.worker.release("a1")
    await bench.clock.settle()
    assert bench.settled() == ["a1", "a2", "b1", "b2"]


async def test_a_tail_runs_beside_the_lane_and_its_message_is_settled_with_it(bench: Bench) -> None:
    """What is only to be written down holds up neither the next job nor its settling."""
    tail = bench.worker.leave_tail("a")
    bench.submit("a", "b")
    await bench.clock.settle()
    assert bench.worker.log[-1] == "end b"
    assert bench.settled() == ["b"]
    tail.set_result(None)
    await bench.clock.settle()
    assert bench.settled() == ["a", "b"]


async def test_a_repeat_of_a_message_waits_for_its_tail_and_others_do_not_pass_it(bench: Bench) -> None:
    """The repeat has to find in the ledger what the first one is just writing."""
    tail = bench.worker.leave_tail("a/1")
    bench.submit("a/1", "b", "a/2", "c")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a/1", "end a/1", "begin b", "end b"]
    tail.set_result(None)
    await bench.clock.settle()
    assert bench.worker.log[4:] == ["begin a/2", "end a/2", "begin c", "end c"]
    assert bench.settled() == ["a/1", "b", "a/2", "c"]


async def test_a_tail_that_fails_is_buried_before_its_message_is_settled(bench: Bench) -> None:
    """Nothing is settled without a record; a repeat waits for that too."""
    bench.worker.hold("bury")
    tail = bench.worker.leave_tail("a/1")
    bench.submit("a/1", "a/2")
    await bench.clock.settle()
    tail.set_exception(ValueError("no"))
    await bench.clock.settle()
    assert bench.worker.buried == ["a/1: no"]
    assert bench.settled() == []
    bench.worker.release("bury")
    await bench.clock.settle()
    assert bench.settled() == ["a/1", "a/2"]


async def test_a_slow_lane_parks_what_waits_and_settles_it_while_the_running_job_goes_on(bench: Bench) -> None:
    """So a lane that crawls holds back no bus message (field report 35)."""
    bench.worker.hold("a")
    bench.submit("a", "b", "c")
    bench.lanes.spill_slow(SLOW)
    await bench.clock.advance(SLOW)
    bench.lanes.spill_slow(SLOW)
    await bench.clock.settle()
    assert bench.worker.parked == []  # not yet: they have waited for just that long
    await bench.clock.advance(0.1)
    bench.lanes.spill_slow(SLOW)
    await bench.clock.settle()
    assert bench.worker.parked == ["b", "c"]
    assert bench.settled() == ["b", "c"]
    bench.worker.release("a")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a", "parked b", "parked c", "end a", "resumed b", "resumed c"]
    assert bench.settled() == ["a", "b", "c"]


async def test_nothing_that_comes_while_a_spill_is_being_parked_is_handled_before_it(bench: Bench) -> None:
    """Even when the running job ends first, and the records are slow: d goes behind b and c."""
    bench.worker.hold("a", "park")
    bench.submit("a", "b", "c")
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    bench.submit("d")
    bench.worker.release("a")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a", "end a"]
    assert bench.settled() == ["a"]
    bench.worker.release("park")
    await bench.clock.settle()
    assert bench.worker.log[2:] == ["parked b", "parked c", "resumed b", "resumed c", "begin d", "end d"]
    assert bench.settled() == ["a", "b", "c", "d"]


async def test_a_second_spill_does_not_overtake_the_first(bench: Bench) -> None:
    """What waits behind a spill that is under way is left where it is until that is done."""
    bench.worker.hold("a", "park")
    bench.submit("a", "b")
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    bench.submit("c")
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    bench.worker.release("park")
    await bench.clock.settle()
    assert bench.worker.parked == ["b"]
    bench.lanes.spill_slow(SLOW)
    await bench.clock.settle()
    assert bench.worker.parked == ["b", "c"]
    bench.worker.release("a")
    await bench.clock.settle()
    assert bench.worker.log[-2:] == ["resumed b", "resumed c"]


async def test_a_lane_with_work_that_cannot_be_parked_is_not_spilled(bench: Bench) -> None:
    """Previews and control packets keep their place among the finals."""
    bench.worker.hold("a")
    bench.submit("a")
    bench.submit_note("note")
    bench.submit("b")
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    bench.worker.release("a")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a", "end a", "begin note", "end note", "begin b", "end b"]


async def test_what_comes_behind_parked_work_queues_there_until_it_is_due(bench: Bench) -> None:
    """The order holds over a park: b is behind the parked a, and c, which comes after the resume, behind both."""
    bench.lanes.lane("c", 0).parked = True
    bench.worker.parked.append("a")
    bench.submit("b")
    await bench.clock.settle()
    assert bench.worker.parked == ["a", "b"]
    assert bench.lanes.parked_count() == 1
    bench.lanes.due("c", 0)
    bench.submit("c")
    await bench.clock.settle()
    assert bench.worker.log == ["parked b", "resumed a", "resumed b", "begin c", "end c"]
    assert bench.lanes.parked_count() == 0


async def test_drain_waits_for_job_spill_and_tail_of_its_partition_alone(bench: Bench) -> None:
    """A partition is handed over when nothing of it is under way any more."""
    tail = bench.worker.leave_tail("t")
    bench.worker.hold("a", "park", "other")
    bench.submit("t", "a", "b")
    bench.submit("other", channel="elsewhere", partition=1)
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    draining = asyncio.create_task(bench.lanes.drain(0))
    for release in (lambda: bench.worker.release("a"), lambda: bench.worker.release("park"), lambda: None):
        await bench.clock.settle()
        assert not draining.done()
        release()
    tail.set_result(None)
    await draining
    assert bench.settled() == ["t", "a", "b"]
    assert list(bench.lanes._lanes) == ["elsewhere"]


async def test_abandon_cancels_job_and_spill_and_forgets_the_lanes(bench: Bench) -> None:
    """Nothing of them is settled, so the broker gives it to the next owner; another partition goes on."""
    bench.worker.hold("a", "park", "other")
    bench.submit("a", "b")
    bench.submit("other", channel="elsewhere", partition=1)
    await bench.clock.advance(SLOW + 1)
    bench.lanes.spill_slow(SLOW)
    await bench.clock.settle()
    await bench.lanes.abandon(0)
    bench.worker.release("a", "park", "other")
    await bench.clock.settle()
    assert bench.worker.log == ["begin a", "begin other", "end other"]
    assert bench.settled() == ["other"]
    assert bench.worker.at_work == 0
    assert not bench.lanes._lanes


async def test_a_tail_outlives_abandon(bench: Bench) -> None:
    """What has landed is better written down; it makes no call."""
    tail = bench.worker.leave_tail("a")
    bench.submit("a")
    await bench.clock.settle()
    await bench.lanes.abandon(0)
    assert not tail.cancelled()
    tail.set_result(None)
    await bench.clock.settle()
    assert bench.settled() == ["a"]
    assert not bench.lanes._lanes


async def test_a_lane_taken_again_after_abandon_is_not_forgotten_by_an_old_tail(bench: Bench) -> None:
    """The partition has come back meanwhile: the old lane's end is not the new one's."""
    tail = bench.worker.leave_tail("a/1")
    bench.submit("a/1")
    await bench.clock.settle()
    await bench.lanes.abandon(0)
    bench.worker.hold("b")
    bench.submit("b")
    await bench.clock.settle()
    tail.set_result(None)
    await bench.clock.settle()
    assert list(bench.lanes._lanes) == ["c"]
    bench.worker.release("b")
    await bench.clock.settle()
    assert bench.settled() == ["a/1", "b"]


async def test_idle_lanes_vanish_and_lanes_with_parked_work_or_previews_stay(bench: Bench) -> None:
    """A thousand channels that have spoken once cost nothing."""
    for number in range(1000):
        bench.submit(f"m{number}", channel=f"c{number}")
    bench.lanes.lane("parked", 0).parked = True
    bench.lanes.lane("shown", 0).shown["m"] = 1
    bench.submit("x", channel="shown")
    await bench.clock.settle()
    assert sorted(bench.lanes._lanes) == ["parked", "shown"]
    bench.lanes.lane("shown", 0).shown.clear()
    bench.lanes.due("parked", 0)
    bench.submit("y", channel="shown")
    await bench.clock.settle()
    assert not bench.lanes._lanes


async def test_a_batch_is_done_when_each_of_its_items_is_and_an_empty_one_at_once() -> None:
    """A bus message is settled once, with its last item."""
    batch = Batch(2)
    batch.settle()
    assert not batch.done.is_set()
    batch.settle()
    assert batch.done.is_set()
    assert Batch(0).done.is_set()
