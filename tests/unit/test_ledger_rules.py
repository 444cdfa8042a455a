import pytest

from services.delivery.ledger import Conflict, Go, Repeat, SameRefusal, Uncertain, fingerprint, judge
from shared.records.model import Claimed, LedgerEntry, Receipt
from shared.wire.packets import File, MessagePayload

R0, R1 = Receipt(0, "a"), Receipt(1, "b")


def found(state: str, *, intent: int = -1, receipts: tuple[Receipt, ...] = (), **more: object) -> Claimed:
    entry = LedgerEntry(
        channel="c",
        message_id="m",
        state=state,  # type: ignore[arg-type]
        fingerprint="f",
        receipts=receipts,
        intent=intent,
        preview=more.get("preview", ()),  # type: ignore[arg-type]
        shown=0,
        code=str(more.get("code", "")),
        detail="",
        updated_at=0.0,
    )
    return Claimed(entry, fresh=bool(more.get("fresh", False)))


def test_a_fresh_claim_goes_and_knows_its_preview() -> None:
    """The preview is finished by editing it."""
    assert judge(found("open", fresh=True, preview=(R0,)), "f", keyed=False) == Go((), (R0,))


def test_completed_content_is_a_repeat_and_other_content_a_conflict() -> None:
    """Invariants 1 and 3."""
    assert judge(found("done", receipts=(R0,)), "f", keyed=True) == Repeat()
    assert judge(found("done", receipts=(R0,)), "other", keyed=True) == Conflict()
    assert judge(found("rejected"), "other", keyed=True) == Conflict()


def test_a_refusal_is_repeated_unless_an_operator_forces_it() -> None:
    """contract.md, Delivery."""
    assert judge(found("rejected", code="x"), "f", keyed=True) == SameRefusal("x", "")
    assert judge(found("rejected", code="x"), "f", keyed=True, forced=True) == Go()


@pytest.mark.parametrize("keyed", [True, False])
def test_without_an_intent_the_next_part_is_sent(keyed: bool) -> None:  # noqa: FBT001
    """Nothing can be in flight."""
    assert judge(found("open", receipts=(R0,)), "f", keyed=keyed) == Go((R0,))


def test_an_intent_without_receipt_is_uncertain_only_where_there_is_no_key() -> None:
    """Never a silent second send."""
    assert judge(found("open", intent=1, receipts=(R0,)), "f", keyed=False) == Uncertain((R0,))
    assert judge(found("open", intent=1, receipts=(R0,)), "f", keyed=True) == Go((R0,))


def test_even_an_operator_does_not_repeat_a_call_that_may_have_left() -> None:
    """The one more try died during its call: uncertain again, and for the operator to decide again."""
    assert judge(found("open", intent=1, receipts=(R0,)), "f", keyed=False, forced=True) == Uncertain((R0,))


def test_an_intent_with_its_receipt_is_settled() -> None:
    """The part has landed."""
    assert judge(found("open", intent=0, receipts=(R0,)), "f", keyed=False) == Go((R0,))


def test_the_edit_of_a_preview_can_be_repeated() -> None:
    """An edit handle is as good as a key."""
    assert judge(found("open", intent=0, preview=(R1,)), "f", keyed=False) == Go((), (R1,))


def test_the_fingerprint_is_of_text_and_files_and_of_nothing_else() -> None:
    """IM v2 §9."""
    file = File(type="file", file_ref="r", filename="n")
    base = MessagePayload(message_id="m", text="t", files=(file,), created_at=1)
    assert fingerprint(base) == fingerprint(MessagePayload(message_id="x", text="t", files=(file,), created_at=2))
    assert fingerprint(base) != fingerprint(MessagePayload(message_id="m", text="t"))
    assert fingerprint(base) != fingerprint(MessagePayload(message_id="m", text="u", files=(file,)))
