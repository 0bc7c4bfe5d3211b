"""Deletions that wait for an operator's word: the metadata may have been put back to a backup.

Put back with the same instance id, the metadata deny every ledger that was made since, and all
proofs of a deletion hold.  A backup gives itself away by the counter of the cluster's id generator,
which never falls otherwise: ids from the counter of the backup on are then held, however few.
Ledgers below it were there when the backup was made, so a ledger that is missing was deleted.
Where no counter tells (ids that clients chose, nodes that somebody removed), a deletion of more
than a share of the bookie's ledgers is held.

What is held stays so, over restarts, until the metadata have it again or an operator approves of
exactly that set.  In ``current/`` of the first ledger directory lies, as JSON:

    GC_HOLD    next_id (greatest counter ever seen), back_to (where it fell to, or null),
               held and approved (ranges of ids, first and last), reason, since_ms

Deciding is pure; reading and writing the note blocks.  When to do what is ``collector``'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from quorumbook.env import Disk
from quorumbook.ids import LedgerId
from quorumbook.storage.gc.ledger_ranges import LedgerRanges

NAME = "GC_HOLD"
#: So many ledgers at a time are deleted without a word, unless a counter fell.
NEVER_HELD = 10
_NOTHING = LedgerRanges()
#: An operator reads no more of them; a client may have made millions.
_SHOWN_RANGES = 1_000
#: So many are written at a time: a thread that writes millions in a row stops all others.
_WRITTEN_RANGES = 1_000


@dataclass(frozen=True, slots=True)
class Hold:
    """What waits, and what is known of the counter."""

    #: The greatest value of the id generator's counter that was ever seen.
    next_id: LedgerId | None = None
    #: Where the counter fell to; ledgers from there on may have been lost with it.
    back_to: LedgerId | None = None
    held: LedgerRanges = _NOTHING
    #: The operator said that these may go.
    approved: LedgerRanges = _NOTHING
    reason: str = ""
    since_ms: int = 0

    @property
    def set_id(self) -> str:
        """A name for exactly the ledgers that are held."""
        return self.held.digest[:12]

    def named(self) -> Hold:
        """Return it with its name at hand, which takes long to make where very many are held."""
        _ = self.set_id
        return self

    def approve(self) -> Hold:
        """Let what is held go; the metadata are right as they are, the counter too."""
        return Hold(approved=self.approved | self.held)

    def shown(self) -> dict[str, object]:
        """Return what an operator wants to know."""
        if not self.held:
            return {"held_ledgers": 0, "approved_ledgers": len(self.approved)}
        return {
            "held_ledgers": len(self.held),
            "approved_ledgers": len(self.approved),
            "reason": self.reason,
            "since_ms": self.since_ms,
            "set": self.set_id,
            "ledgers": list(islice(self.held.pairs(), _SHOWN_RANGES)),
        }


def judge(
    hold: Hold,
    due: LedgerRanges,
    missing: LedgerRanges,
    *,
    known: int,
    next_id: LedgerId,
    share_max: float,
    now_ms: int,
) -> tuple[Hold, LedgerRanges]:
    """Return the hold as it is now, and which of the ledgers that are due may go.

    Args:
        hold: As it was.
        due: Ledgers whose deletion is proven.
        missing: All that the metadata deny now; what they have again is held no more.
        known: How many ledgers are here.
        next_id: The counter of the cluster's id generator, read before ``missing``.
        share_max: A larger share of ``known`` is held.
        now_ms: Wall time.
    """
    held, approved = hold.held & missing, hold.approved & missing
    back_to = hold.back_to
    if hold.next_id is not None and next_id < hold.next_id:
        back_to = next_id if back_to is None else min(back_to, next_id)
    elif back_to is not None and not missing.from_id(back_to):
        back_to = None
    new = due - approved - held
    lost = _NOTHING if back_to is None else new.from_id(back_to)
    reason = hold.reason
    if lost:
        reason = (
            f"{NAME} cannot be read"
            if hold.next_id is None
            else "the metadata were put back to a backup: the counter of ledger ids stood at "
            f"{hold.next_id}, and fell to {back_to}"
        )
    rest = new - lost
    if len(rest) > max(NEVER_HELD, known * share_max):
        lost |= rest
        reason = reason or f"{len(rest)} of {known} ledgers are gone from the metadata at once"
    since_ms = hold.since_ms if hold.held else now_ms
    held |= lost
    now = Hold(
        next_id if hold.next_id is None else max(hold.next_id, next_id),
        back_to,
        held,
        approved,
        reason if held else "",
        since_ms if held else 0,
    )
    return now, due - held


def _ids(pairs: Iterable[Sequence[int]]) -> LedgerRanges:
    return LedgerRanges(sorted((first, last) for first, last in pairs))


def encode_hold(hold: Hold) -> bytes:
    """Return the note."""
    texts = {
        "next_id": json.dumps(hold.next_id),
        "back_to": json.dumps(hold.back_to),
        "held": _text(hold.held),
        "approved": _text(hold.approved),
        "reason": json.dumps(hold.reason),
        "since_ms": json.dumps(hold.since_ms),
    }
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}\n").encode()


def _text(ranges: LedgerRanges) -> str:
    """Return ranges as JSON."""
    pairs = ranges.pairs()
    parts = []
    while some := list(islice(pairs, _WRITTEN_RANGES)):
        parts.append(json.dumps(some)[1:-1])
    return f"[{', '.join(parts)}]"


def decode_hold(data: bytes) -> Hold:
    """Parse a note; of one that cannot be read the careful reading is that all was put back."""
    try:
        fields = json.loads(data)
        return Hold(
            None if fields["next_id"] is None else int(fields["next_id"]),
            None if fields["back_to"] is None else int(fields["back_to"]),
            _ids(fields["held"]),
            _ids(fields["approved"]),
            str(fields["reason"]),
            int(fields["since_ms"]),
        )
    except (ValueError, KeyError, TypeError):
        return replace(Hold(), back_to=0)


def read_hold(disk: Disk, directory: str) -> Hold:
    """Read the note of a ledger directory."""
    path = f"{directory}/{NAME}"
    return (decode_hold(disk.read_file(path)) if disk.exists(path) else Hold()).named()


def write_hold(disk: Disk, directory: str, hold: Hold) -> None:
    """Write it, durably."""
    disk.write_file(f"{directory}/{NAME}", [encode_hold(hold)])
