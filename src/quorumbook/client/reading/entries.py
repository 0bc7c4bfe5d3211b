"""Entries as a reader hands them out: single, or many with one buffer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from quorumbook.errors import DigestMismatchError
from quorumbook.ids import BookieId, EntryId, LedgerId

_FIELD = Struct(">q")
#: Where last add confirmed and the ledger's length stand in an entry's header.
_LAC_OFFSET = 16
_LENGTH_OFFSET = 24


#: So much of a payload is shown.
SHORT_BYTES = 40


class Entry(NamedTuple):
    """One entry of a ledger."""

    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes
    #: Payload bytes of the ledger up to and with this entry.
    length: int

    def __repr__(self) -> str:
        """Say where it is, and how its payload begins."""
        where = f"{self.entry_id} of ledger {self.ledger_id}"
        return f"<Entry {where}, {len(self.payload)} bytes, {short(self.payload)}>"


def short(payload: bytes) -> str:
    """Return how a payload begins, for people."""
    shown = payload[:SHORT_BYTES]
    if len(repr(shown)) > 2 * SHORT_BYTES:  # bytes that are not letters take four places each
        shown = payload[: SHORT_BYTES // 4]
    return repr(shown) if shown == payload else f"{shown!r}…"


class EntryBatch:
    """Consecutive entries that came in one answer, verified.

    ``payloads`` has the entries' bytes as objects of their own.  ``buffer`` and ``offsets`` have
    the same bytes without such objects: payload i is ``buffer[start:end]`` with ``start, end =
    offsets[i]``; ignore the bytes between payloads.
    """

    __slots__ = ("_offsets", "buffer", "first_entry_id", "ledger_id", "payload_offset", "payloads")

    def __init__(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        buffer: bytes,
        payloads: list[bytes],
        payload_offset: int,
    ) -> None:
        """Take entries, each behind its 4-byte size.

        Args:
            ledger_id: Their ledger.
            first_entry_id: The first one's id.
            buffer: The bytes of all of them.
            payloads: Their payloads.
            payload_offset: Where the payload begins in each entry.
        """
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.buffer = buffer
        self.payloads = payloads
        #: Where the payload begins in each entry, behind header and digest.
        self.payload_offset = payload_offset
        self._offsets: list[tuple[int, int]] | None = None

    @property
    def last_entry_id(self) -> EntryId:
        """The last one's id."""
        return self.first_entry_id + len(self.payloads) - 1

    @property
    def entry_ids(self) -> range:
        """The ids, ascending."""
        return range(self.first_entry_id, self.first_entry_id + len(self.payloads))

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each payload starts and ends in ``buffer``."""
        if self._offsets is None:
            head = 4 + self.payload_offset
            sizes = list(map(len, self.payloads))
            ends = list(accumulate(size + head for size in sizes))
            self._offsets = [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return self._offsets

    def header_starts(self) -> list[int]:
        """Return where each entry's header starts in ``buffer``; ``protocol.digest`` has it."""
        return [start - self.payload_offset for start, _ in self.offsets]

    @property
    def size_bytes(self) -> int:
        """How many bytes the entries take."""
        return len(self.buffer)

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Entry]:
        unpack = _FIELD.unpack_from
        buffer, ledger_id, entry_id = self.buffer, self.ledger_id, self.first_entry_id
        head = 4 + self.payload_offset
        position = 4 + _LENGTH_OFFSET
        for payload in self.payloads:
            yield Entry(ledger_id, entry_id, payload, unpack(buffer, position)[0])
            entry_id += 1
            position += head + len(payload)

    def __repr__(self) -> str:
        return (
            f"EntryBatch(ledger {self.ledger_id}, entries {self.first_entry_id} to "
            f"{self.last_entry_id}, {len(self.buffer)} bytes)"
        )

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last add confirmed that the writer knew when it sent the last of these entries."""
        return self._field_of_last(_LAC_OFFSET)

    @property
    def length_after(self) -> int:
        """Payload bytes of the ledger up to and with the last of these entries."""
        return self._field_of_last(_LENGTH_OFFSET)

    def _field_of_last(self, offset: int) -> int:
        # The last entry ends where the buffer does.
        start = len(self.buffer) - len(self.payloads[-1]) - self.payload_offset
        field: int = _FIELD.unpack_from(self.buffer, start + offset)[0]
        return field

    def part(self, first_entry_id: EntryId, last_entry_id: EntryId) -> EntryBatch:
        """Return the entries between two ids, both of which are here."""
        start = first_entry_id - self.first_entry_id
        stop = last_entry_id - self.first_entry_id + 1
        if not start and stop == len(self.payloads):
            heads = stop * (4 + self.payload_offset)
            if heads + sum(map(len, self.payloads)) == len(self.buffer):
                return self
        begin, end = self.offsets[start - 1][1] if start else 0, self.offsets[stop - 1][1]
        return EntryBatch(
            self.ledger_id,
            first_entry_id,
            self.buffer[begin:end],
            self.payloads[start:stop],
            self.payload_offset,
        )

    def within(self, max_size_bytes: int) -> EntryBatch:
        """Return the first entries that fit into this many bytes, and at least one."""
        if len(self.buffer) <= max_size_bytes:
            return self
        ends = [end for _, end in self.offsets]
        count = max(1, bisect_right(ends, max_size_bytes))
        return self.part(self.first_entry_id, self.first_entry_id + count - 1)

    @classmethod
    def joined(cls, batches: Sequence[EntryBatch]) -> EntryBatch:
        """Put adjacent batches together."""
        first = batches[0]
        if len(batches) == 1:
            return first
        return cls(
            first.ledger_id,
            first.first_entry_id,
            b"".join([batch.buffer for batch in batches]),
            [payload for batch in batches for payload in batch.payloads],
            first.payload_offset,
        )


def blamed(error: DigestMismatchError, bookie_id: BookieId) -> DigestMismatchError:
    """Return an error about an entry that says also who gave it."""
    named = DigestMismatchError(
        f"{error} (bookie {bookie_id})",
        ledger_id=error.ledger_id,
        entry_id=error.entry_id,
        bookie_id=bookie_id,
    )
    named.__cause__ = error
    return named
