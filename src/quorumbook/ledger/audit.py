"""Judges the copies of a ledger's entries against each other: pure.

    RangeJudge(...).judge(entry_id, copies)     one entry after the other, ascending
    RangeJudge(...).judge_agreed(...)           many that are alike on all bookies
    RangeJudge(...).findings                    what was found, neighbours together

Each bookie of an entry's write set gave its bytes, whose digest is right, or a ``ReplicaFault``.
What is told, and how bad it is:

    kind          severity  what it means
    missing       damage    the bookie says it does not have the entry
    corrupt       damage    its bytes are not the entry, or do not match their digest
    unreadable    damage    it cannot read the entry
    unasked       unknown   it gave no answer
    hole          damage    no bookie has the entry: it is lost
    differs       damage    a valid entry, and yet other bytes than most copies have
    stale_lac     damage    its last add confirmed lies before one that was written earlier
    wrong_lac     damage    it says that itself, or what comes after it, was confirmed before it
    lac_differs   note      only the last add confirmed is another: ledger recovery writes entries
                            anew with the one it knows
    stale_order   note      all copies agree, and yet last add confirmed or length fall back or
                            leave a gap: ids that the writer chose, in no order
    wrong_length  damage    the metadata of a closed ledger tells another length than its entries
    beyond_end    note      entries behind the end of a closed ledger, which never counted

What all copies agree on under a valid digest is what the writer wrote; so only a difference is
damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import accumulate, chain, islice
from operator import eq, le, lt

from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId, LedgerId
from quorumbook.protocol.digest import HEADER_SIZE_BYTES, entry_header

_LENGTH = slice(24, HEADER_SIZE_BYTES)


class ReplicaFault(Enum):
    """Why a bookie's copy could not be compared."""

    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"
    UNASKED = "unasked"


class Severity(Enum):
    """How bad a finding is."""

    DAMAGE = "damage"
    UNKNOWN = "unknown"
    NOTE = "note"


_SEVERITIES = {
    "unasked": Severity.UNKNOWN,
    "lac_differs": Severity.NOTE,
    "stale_order": Severity.NOTE,
    "beyond_end": Severity.NOTE,
}


@dataclass(frozen=True, slots=True)
class CopyFinding:
    """Something about consecutive entries, on one bookie or (empty) on all of them."""

    kind: str
    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId
    entries: int = 1
    bookie_id: BookieId = ""
    detail: str = ""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return _SEVERITIES.get(self.kind, Severity.DAMAGE)


class RangeJudge:
    """Judges consecutive entries of one ledger.

    Args:
        ledger_id: The ledger.
        payload_offset: Where payloads begin in its entries.
        distance: Entries of one bookie that are at most so far apart are neighbours.
    """

    def __init__(self, ledger_id: LedgerId, payload_offset: int, distance: int) -> None:
        self._ledger_id = ledger_id
        self._payload_offset = payload_offset
        self._distance = distance
        self._open: dict[tuple[str, BookieId], CopyFinding] = {}
        self._closed: list[CopyFinding] = []
        #: Below this no copy's last add confirmed may fall.
        self._floor: EntryId = INVALID_ENTRY_ID
        #: The length with the entry before; None where that is not known.
        self._length: int | None = None

    @property
    def findings(self) -> list[CopyFinding]:
        """What was found so far, by entry."""
        return sorted(
            [*self._closed, *self._open.values()],
            key=lambda each: (each.first_entry_id, each.kind, each.bookie_id),
        )

    @property
    def length(self) -> int | None:
        """The ledger's length with the last entry judged; None where that is not known."""
        return self._length

    def begin(self, copies: Mapping[BookieId, bytes | ReplicaFault] | None) -> None:
        """Take the copies of the entry before the first one, which is judged elsewhere.

        Args:
            copies: None where the first entry is the ledger's first.
        """
        if copies is None:
            self._length = 0
            return
        good = [body for body in copies.values() if isinstance(body, bytes)]
        lengths = {entry_header(body)[3] for body in good}
        self._length = lengths.pop() if len(lengths) == 1 else None
        self._floor = min((entry_header(body)[2] for body in good), default=INVALID_ENTRY_ID)

    def judge(self, entry_id: EntryId, copies: Mapping[BookieId, bytes | ReplicaFault]) -> None:
        """Judge an entry by what each bookie of its write set gave."""
        bodies = list(copies.values())
        first = bodies[0]
        if isinstance(first, bytes) and bodies.count(first) == len(bodies):
            _, _, lac, length = entry_header(first)
            self._judge_agreed(entry_id, lac, length, len(first) - self._payload_offset)
            return
        good: dict[BookieId, bytes] = {}
        for bookie_id, body in copies.items():
            if isinstance(body, ReplicaFault):
                self.note(body.value, entry_id, bookie_id)
            else:
                good[bookie_id] = body
        if good:
            self._judge_different(entry_id, good)
            return
        self._length = None
        if ReplicaFault.UNASKED not in copies.values():
            self.note("hole", entry_id, detail="no bookie has it")

    def judge_agreed(
        self,
        first_entry_id: EntryId,
        lacs: Sequence[EntryId],
        lengths: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """Judge consecutive entries of which all copies are there and alike, without a step each.

        Args:
            first_entry_id: The first one.
            lacs: The last add confirmed in each.
            lengths: The ledger's length in each.
            sizes: The payload's bytes of each.
        """
        ids = range(first_entry_id, first_entry_id + len(lacs))
        if (
            self._length is not None
            and all(map(eq, lengths, islice(accumulate(sizes, initial=self._length), 1, None)))
            and all(map(le, chain((self._floor,), lacs), lacs))
            and all(map(lt, lacs, ids))
        ):
            self._floor, self._length = lacs[-1], lengths[-1]
            return
        for entry in zip(ids, lacs, lengths, sizes, strict=True):
            self._judge_agreed(*entry)

    def _judge_agreed(self, entry_id: EntryId, lac: EntryId, length: int, size: int) -> None:
        if not INVALID_ENTRY_ID <= lac < entry_id:
            self.note("wrong_lac", entry_id, detail=f"last add confirmed {lac}")
        elif lac < self._floor:
            self.note("stale_order", entry_id, detail="last add confirmed falls back")
        else:
            self._floor = lac
        expected = None if self._length is None else self._length + size
        if expected is not None and length != expected:
            self.note("stale_order", entry_id, detail=f"length {length} where {expected} is due")
        self._length = length

    def _judge_different(self, entry_id: EntryId, good: Mapping[BookieId, bytes]) -> None:
        """Judge an entry of which some copies are missing or differ."""
        content = {bookie_id: self._content(body) for bookie_id, body in good.items()}
        counts = Counter(content.values())
        most = max(counts.values())
        leading = [each for each, number in counts.items() if number == most]
        if len(leading) > 1 and self._length is not None:
            fitting = [each for each in leading if self._fits(each)]
            leading = fitting if len(fitting) == 1 else leading
        for bookie_id, each in content.items():
            if each not in leading or len(leading) > 1:
                detail = "" if len(leading) == 1 else "no telling which copy is right"
                self.note("differs", entry_id, bookie_id, detail)
        kept = {b: good[b] for b, each in content.items() if each in leading}
        self._judge_lacs(entry_id, {b: entry_header(body)[2] for b, body in kept.items()})
        if len(leading) > 1:
            self._length = None
            return
        length = entry_header(next(iter(kept.values())))[3]
        size = len(leading[0]) - 8
        if self._length is not None and length != self._length + size:
            self.note("stale_order", entry_id, detail="the length leaves a gap")
        self._length = length

    def _judge_lacs(self, entry_id: EntryId, lacs: Mapping[BookieId, EntryId]) -> None:
        possible = [lac for lac in lacs.values() if INVALID_ENTRY_ID <= lac < entry_id]
        usual = max(possible, default=INVALID_ENTRY_ID)
        agree = len(set(lacs.values())) == 1
        for bookie_id, lac in lacs.items():
            if not INVALID_ENTRY_ID <= lac < entry_id:
                self.note("wrong_lac", entry_id, bookie_id, f"last add confirmed {lac}")
            elif lac < self._floor and not agree:
                self.note("stale_lac", entry_id, bookie_id, f"{lac} behind {self._floor}")
            elif lac < self._floor:
                self.note("stale_order", entry_id, detail="last add confirmed falls back")
            elif lac != usual:
                self.note("lac_differs", entry_id, bookie_id)
        sound = [lac for lac in possible if lac >= self._floor]
        self._floor = min(sound, default=self._floor)

    def _content(self, body: bytes) -> bytes:
        """Return what must be the same in all copies: length and payload."""
        return body[_LENGTH] + body[self._payload_offset :]

    def _fits(self, content: bytes) -> bool:
        length = int.from_bytes(content[:8], "big")
        return self._length is not None and length == self._length + len(content) - 8

    def note(
        self, kind: str, entry_id: EntryId, bookie_id: BookieId = "", detail: str = ""
    ) -> None:
        """Add a finding, to its neighbour if it has one."""
        key = (kind, bookie_id)
        before = self._open.get(key)
        if before is not None:
            if entry_id - before.last_entry_id <= self._distance:
                self._open[key] = replace(
                    before, last_entry_id=entry_id, entries=before.entries + 1
                )
                return
            self._closed.append(before)
        self._open[key] = CopyFinding(
            kind, self._ledger_id, entry_id, entry_id, 1, bookie_id, detail
        )


def end_findings(
    ledger_id: LedgerId,
    last_entry_id: EntryId,
    stored_length: int,
    found_length: int | None,
    held: Mapping[BookieId, Sequence[tuple[EntryId, EntryId]] | None],
) -> list[CopyFinding]:
    """Judge the end of a closed ledger.

    Args:
        ledger_id: The ledger.
        last_entry_id: Its last entry, as the metadata says.
        stored_length: Its length, as the metadata says.
        found_length: That of its last entry; None if nobody knows.
        held: What bookies list, as runs of first and last id; None without a list.
    """
    found = []
    if found_length is not None and found_length != stored_length:
        detail = f"{stored_length} in the metadata, {found_length} by its last entry"
        found.append(
            CopyFinding("wrong_length", ledger_id, last_entry_id, last_entry_id, detail=detail)
        )
    for bookie_id, runs in held.items():
        beyond = [(max(a, last_entry_id + 1), b) for a, b in runs or () if b > last_entry_id]
        if beyond:
            count = sum(b - a + 1 for a, b in beyond)
            first, last = beyond[0][0], beyond[-1][1]
            found.append(CopyFinding("beyond_end", ledger_id, first, last, count, bookie_id))
    return found
