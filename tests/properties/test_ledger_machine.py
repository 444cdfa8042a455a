"""Invariant 1 as a machine: two workers over one row of the ledger, with a crash or a pause at every step.

`deliver` is `services/delivery/finals.py` reduced to what touches the ledger and the platform: the real `judge`, and a
`yield` wherever a process may die or stand still. The same machine runs over a model of the ledger, and over the
real one on SQLite.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from services.delivery.ledger import Conflict, Go, Repeat, SameRefusal, Uncertain, judge
from shared.records import Records, migrate, open_records
from shared.records.model import Claim, Claimed, Intent, LedgerEntry, LedgerState, LedgerUpdate, Receipt

CHANNEL, MESSAGE = "c", "m"
R = TypeVar("R")
PREVIEW = LedgerUpdate(CHANNEL, MESSAGE, "preview", (), -1, (Receipt(0, "preview"),), 0)

Fate = Literal["lands", "answer is lost", "nothing is heard", "later", "refused"]
"""How a call ends: "answer is lost" has landed, "nothing is heard" has not, and the caller cannot tell them apart."""
FATES: list[Fate] = ["lands", "lands", "lands", "answer is lost", "nothing is heard", "later", "refused"]
Answer = Literal["accepted", "duplicate", "conflict", "uncertain", "refused", "same refusal"]
Delivery = Generator[None, None, Answer | None]


class Ledger(Protocol):
    """What a delivery asks of the ledger."""

    def claim(self, claim: Claim) -> Claimed:
        """See `LedgerRecords.claim`."""
        ...

    def intend(self, intent: Intent) -> bool:
        """See `LedgerRecords.intend`."""
        ...

    def update(self, update: LedgerUpdate) -> None:
        """See `LedgerRecords.update`."""
        ...

    def row(self) -> LedgerEntry | None:
        """What stands there."""
        ...


class ModelLedger:
    """The semantics of `shared.records.ledger`, of one row."""

    def __init__(self) -> None:
        self._row: LedgerEntry | None = None
        self._holder = ""

    def claim(self, claim: Claim) -> Claimed:
        """Fresh where nothing stands there, or a preview."""
        row = self._row
        if row is not None and row.state != "preview":
            return Claimed(row, fresh=False)
        shown = row.preview if row is not None else ()
        entry = LedgerEntry(CHANNEL, MESSAGE, "open", claim.fingerprint, (), -1, shown, 0, "", "", 0.0)
        self._row = entry
        return Claimed(entry, fresh=True)

    def intend(self, intent: Intent) -> bool:
        """Where the row is open, has these receipts, and nobody else's intent."""
        row = self._row
        if row is None or row.state != "open" or row.receipts != intent.receipts:
            return False
        if row.intent != -1 and (row.intent, self._holder) != (intent.ordinal, intent.holder):
            return False
        self._row, self._holder = replace(row, intent=intent.ordinal), intent.holder
        return True

    def update(self, update: LedgerUpdate) -> None:
        """Never undoes what another has written."""
        row = self._row
        if row is not None and not self._may(update, row):
            return
        print_ = update.fingerprint or (row.fingerprint if row is not None else "")
        self._holder = update.holder if row is None else self._holder
        self._row = LedgerEntry(
            CHANNEL,
            MESSAGE,
            update.state,
            print_,
            max(update.receipts, row.receipts if row is not None else (), key=len),
            update.intent,
            update.preview,
            update.shown,
            update.code,
            update.detail,
            update.at,
        )

    def _may(self, update: LedgerUpdate, row: LedgerEntry) -> bool:
        match update.state:
            case "preview":
                return row.state == "preview"
            case "open":
                mine = row.intent == -1 or update.holder == self._holder
                return row.state == "preview" or (row.state == "open" and mine)
            case "rejected":
                return row.state != "done"
            case "done":
                return True

    def row(self) -> LedgerEntry | None:
        """See `Ledger.row`."""
        return self._row


class SqlLedger:
    """The real one; every call is a round trip of its own, as between two processes."""

    def __init__(self, runner: asyncio.Runner, records: Records) -> None:
        self._runner = runner
        self._ledger = records.ledger

    def claim(self, claim: Claim) -> Claimed:
        """See `Ledger.claim`."""
        (claimed,) = self._run(self._ledger.claim([claim]))
        return claimed

    def intend(self, intent: Intent) -> bool:
        """See `Ledger.intend`."""
        (held,) = self._run(self._ledger.intend([intent]))
        return held

    def update(self, update: LedgerUpdate) -> None:
        """See `Ledger.update`."""
        self._run(self._ledger.update([update]))

    def forget(self) -> None:
        """Begins anew."""
        self._run(self._ledger.purge(1.0))

    def row(self) -> LedgerEntry | None:
        """See `Ledger.row`."""
        (row,) = self._run(self._ledger.get([(CHANNEL, MESSAGE)]))
        return row

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        return self._runner.run(work)


class Platform:
    """Where parts land. Keyed, it performs a key once; a preview is finished by editing it, which can be repeated."""

    def __init__(self, *, keyed: bool, parts: int) -> None:
        self.keyed = keyed
        self.parts = parts
        self.performed: Counter[tuple[str, int]] = Counter()
        self.edited: set[tuple[str, int]] = set()

    def perform(self, print_: str, ordinal: int, *, edit: bool) -> None:
        """A call has arrived."""
        part = (print_, ordinal)
        if edit:
            self.edited.add(part)
        elif not self.keyed or part not in self.performed:
            self.performed[part] += 1

    def has_all(self, print_: str) -> bool:
        """Whether every part of the message is there."""
        return all((print_, n) in self.performed or (print_, n) in self.edited for n in range(self.parts))


class Worker:
    """A process. Its `holder` is another one after a crash; `fate` is what the platform does to its next call.

    Attributes:
        calls: of the delivery under way.
        unheard: a call of it got no answer.
        at_risk: a call may have left, and nothing durable says yet how it ended.
        risk_before: somebody was at risk when the delivery claimed.
        accepted_before: somebody had told xAgent "accepted" by then.
    """

    def __init__(self, names: Iterator[int]) -> None:
        self._names = names
        self.fate: Fate = "lands"
        self.restart()

    def restart(self) -> None:
        """Another process in its place."""
        self.holder = f"w{next(self._names)}"
        self.delivery: Delivery | None = None
        self.begin("", risk=False, accepted=False)

    def begin(self, print_: str, *, risk: bool, accepted: bool) -> None:
        """Takes a message."""
        self.print_, self.risk_before, self.accepted_before = print_, risk, accepted
        self.calls, self.unheard, self.at_risk = 0, False, False


def written(worker: Worker, state: LedgerState, go: Go, code: str = "") -> LedgerUpdate:
    ended = (code, "", worker.print_, 0.0, worker.holder)
    return LedgerUpdate(CHANNEL, MESSAGE, state, go.receipts, -1, go.preview, 0, *ended)


def deliver(worker: Worker, ledger: Ledger, platform: Platform) -> Delivery:
    """One final in the hands of one process."""
    claimed = ledger.claim(Claim(CHANNEL, MESSAGE, worker.print_, 0.0))
    yield
    match judge(claimed, worker.print_, keyed=platform.keyed):
        case Repeat():
            return "duplicate"
        case Conflict():
            return "conflict"
        case SameRefusal():
            return "same refusal"
        case Uncertain(receipts):
            ledger.update(written(worker, "rejected", Go(receipts), "delivery_uncertain"))
            yield
            return "uncertain"
        case Go() as go:
            return (yield from send_parts(worker, ledger, platform, go))


def send_parts(worker: Worker, ledger: Ledger, platform: Platform, go: Go) -> Delivery:
    """The calls, each with its intent before and its receipt after; None when another worker has got ahead."""
    while (ordinal := len(go.receipts)) < platform.parts:
        edit = ordinal < len(go.preview)
        repeatable = platform.keyed or edit
        if not repeatable:
            if not ledger.intend(Intent(CHANNEL, MESSAGE, ordinal, go.receipts, worker.holder, 0.0)):
                return None
            worker.at_risk = True
            yield
        fate = call(worker, platform, ordinal, edit=edit)
        yield
        if fate == "lands":
            go = Go((*go.receipts, Receipt(ordinal, f"r{ordinal}")), go.preview)
        elif code := failure(fate, repeatable=repeatable):
            ledger.update(written(worker, "rejected", go, code))
            yield
            return "uncertain" if code == "delivery_uncertain" else "refused"
        if len(go.receipts) < platform.parts and (fate == "lands" or not repeatable):
            ledger.update(written(worker, "open", go))
            worker.at_risk = False
            yield
    ledger.update(written(worker, "done", go))
    yield
    return "accepted"


def call(worker: Worker, platform: Platform, ordinal: int, *, edit: bool) -> Fate:
    worker.calls += 1
    if worker.fate in ("lands", "answer is lost"):
        platform.perform(worker.print_, ordinal, edit=edit)
    worker.unheard |= worker.fate in ("answer is lost", "nothing is heard")
    return worker.fate


def failure(fate: Fate, *, repeatable: bool) -> str:
    """The code with which a call ends the message, if it does (`services/delivery/retry.py`)."""
    if fate == "refused":
        return "target_delivery_failed"
    return "" if repeatable or fate == "later" else "delivery_uncertain"


class LedgerMachine(RuleBasedStateMachine):
    """Two workers, one message, its repeats, and another message under the same id."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        super().__init__()
        self.ledger = ledger or ModelLedger()
        names = itertools.count()
        self.workers = [Worker(names), Worker(names)]
        self.told: list[Answer] = []
        self.died_at_risk = False

    @initialize(keyed=st.booleans(), parts=st.integers(1, 3), streamed=st.booleans())
    def open_the_row(self, *, keyed: bool, parts: int, streamed: bool) -> None:
        """A platform with an idempotency key or without one; a message that was streamed before or not."""
        self.platform = Platform(keyed=keyed, parts=parts)
        if streamed:
            self.ledger.update(PREVIEW)

    @rule(who=st.integers(0, 1), print_=st.sampled_from(["f1", "f1", "f1", "f2"]))
    def hand_over(self, who: int, print_: str) -> None:
        """The bus gives the message to a worker: the first time, after a crash or a takeover, or as a repeat."""
        worker = self.workers[who]
        if worker.delivery is None:
            risk = self.died_at_risk or any(other.at_risk for other in self.workers)
            worker.begin(print_, risk=risk, accepted="accepted" in self.told)
            worker.delivery = deliver(worker, self.ledger, self.platform)
            self.go_on(worker)

    @precondition(lambda self: any(worker.delivery for worker in self.workers))
    @rule(who=st.integers(0, 1), fate=st.sampled_from(FATES))
    def advance(self, who: int, fate: Fate) -> None:
        """A worker takes its next step; one whose turn does not come stands still, and goes on later unaware."""
        if self.workers[who].delivery is not None:
            self.workers[who].fate = fate
            self.go_on(self.workers[who])

    @precondition(lambda self: any(worker.delivery for worker in self.workers))
    @rule(who=st.integers(0, 1))
    def crash(self, who: int) -> None:
        """Kill -9: what comes after it knows nothing and has another name."""
        self.died_at_risk |= self.workers[who].at_risk
        self.workers[who].restart()

    @rule()
    def show_a_late_preview(self) -> None:
        """A preview that was on its way never overwrites a final."""
        before = self.ledger.row()
        if before is not None and before.state != "preview":
            self.ledger.update(PREVIEW)
            assert self.ledger.row() == before

    def go_on(self, worker: Worker) -> None:
        """To its next step; then the platform has nothing twice, and of one content only."""
        assert worker.delivery is not None
        try:
            next(worker.delivery)
        except StopIteration as end:
            worker.delivery, worker.at_risk = None, False
            if end.value is not None:
                self.hear(worker, end.value)
        assert max(self.platform.performed.values(), default=0) <= 1
        assert {print_ for print_, _ in {*self.platform.performed, *self.platform.edited}} <= {self.owner}

    def hear(self, worker: Worker, answer: Answer) -> None:
        """What xAgent is told is true."""
        if answer in ("accepted", "duplicate"):
            assert self.platform.has_all(worker.print_)
        if answer == "uncertain":
            assert not self.platform.keyed
            assert worker.risk_before or worker.unheard
        if answer in ("duplicate", "conflict", "same refusal"):
            assert worker.calls == 0
        assert (answer == "conflict") == (worker.print_ != self.owner)
        if worker.accepted_before:
            assert answer in ("duplicate", "conflict")
        self.told.append(answer)

    @property
    def owner(self) -> str:
        """The content that the id belongs to: the one that was claimed first."""
        row = self.ledger.row()
        return row.fingerprint if row is not None else ""

    def teardown(self) -> None:
        """Everybody comes to an end, the message comes once more undisturbed, and that one is answered."""
        for worker in self.workers:
            self.finish(worker)
        self.hand_over(0, self.owner or "f1")
        answered = len(self.told)
        self.finish(self.workers[0])
        assert len(self.told) > answered

    def finish(self, worker: Worker) -> None:
        """To its end, undisturbed."""
        worker.fate = "lands"
        while worker.delivery is not None:
            self.go_on(worker)


def test_no_part_is_performed_twice_and_every_answer_is_true() -> None:
    """Over a model of the ledger, where many runs cost little."""
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=400, stateful_step_count=40, deadline=None))


def test_the_ledger_on_sqlite_keeps_the_same_promises(tmp_path: Path) -> None:
    """The real statements, in fewer runs."""
    url = f"sqlite:///{tmp_path / 'records.db'}"
    few = settings(max_examples=40, stateful_step_count=30, deadline=None)
    with asyncio.Runner() as runner:
        runner.run(migrate(url))
        stack = AsyncExitStack()
        ledger = SqlLedger(runner, runner.run(stack.enter_async_context(open_records(url))))

        def fresh() -> LedgerMachine:
            ledger.forget()
            return LedgerMachine(ledger)

        try:
            run_state_machine_as_test(fresh, settings=few)
        finally:
            runner.run(stack.aclose())
