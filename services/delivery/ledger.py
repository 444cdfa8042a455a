"""The rules of the ledger: what a receiver may do with a final, given what stands written of it. Pure.

Invariant 1 lives here: a part is called only when no earlier call of it can have reached the platform, or when the
platform itself would notice the repeat.
"""

import hashlib

import msgspec
from msgspec import Struct

from shared.records.model import Claimed, LedgerEntry, Receipt
from shared.wire.packets import MessagePayload


class Go(Struct, frozen=True):
    """Carry on: the parts after `receipts` are still to be sent; `preview` is what a stream has shown of it."""

    receipts: tuple[Receipt, ...] = ()
    preview: tuple[Receipt, ...] = ()


class Repeat(Struct, frozen=True):
    """Completed before: answer `duplicate`, do nothing."""


class Conflict(Struct, frozen=True):
    """Other content under the same id."""


class SameRefusal(Struct, frozen=True):
    """It ended rejected; the same rejection again."""

    code: str
    detail: str


class Uncertain(Struct, frozen=True):
    """A call was under way when its process died, and nobody can say whether it landed."""

    receipts: tuple[Receipt, ...]


Judgement = Go | Repeat | Conflict | SameRefusal | Uncertain


def fingerprint(message: MessagePayload) -> str:
    """Of the complete text and file list (IM v2 §9); what only says where or how long to fetch is left out."""
    files = [[f.type, f.file_ref, f.filename, f.mime_type, f.byte_size] for f in message.files]
    return hashlib.blake2b(msgspec.json.encode([message.text, files]), digest_size=16).hexdigest()


def judge(claimed: Claimed, print_: str, *, keyed: bool, forced: bool = False) -> Judgement:
    """What may be done with a final.

    Args:
        claimed: what the claim found.
        print_: the fingerprint of the message at hand.
        keyed: the platform notices a repeat.
        forced: an operator has asked for one more try of a refused message.
    """
    entry = claimed.entry
    if claimed.fresh:
        return Go(preview=entry.preview)
    if entry.fingerprint != print_:
        return Conflict()
    if entry.state == "done":
        return Repeat()
    if entry.state == "rejected" and not forced:
        return SameRefusal(entry.code, entry.detail)
    if _may_have_left(entry) and not keyed:
        return Uncertain(entry.receipts)
    return Go(entry.receipts, entry.preview)


def _may_have_left(entry: LedgerEntry) -> bool:
    """An intent without its receipt; the edit of a preview is not one, for it can be repeated."""
    return entry.intent >= len(entry.receipts) and not _edits_preview(entry.intent, entry.preview)


def _edits_preview(ordinal: int, preview: tuple[Receipt, ...]) -> bool:
    return 0 <= ordinal < len(preview)
