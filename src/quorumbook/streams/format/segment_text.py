"""The metadata of one segment, as the text of its node.

    version  in progress                                    completed
    1        word;ledger;firstTx                            …;lastTx;completionMs
    2        word;ledger;firstTx;number                     word;ledger;firstTx;lastTx;
                                                            completionMs;number;lastEntry;lastSlot
    3, 4     (2);minEntry;minSlot                           (2);minEntry;minSlot
    5        (3);-1                                         (3);startSequenceId

The word is a signed 64-bit number: bits 0-7 version, 8-15 status, 28-31 region, 32-63 how many
user records (completed only).  Bits 0-1 of the status say how far the segment is truncated; the
others are kept, and bit 3 is ours: the segment was merged of others, or got its number when some
were.  Entries have an envelope from version 4 on.  New segments are version 5; versions
2 to 5 are read, and written where a segment of that version changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import NO_TXID

CURRENT_VERSION = 5
_OLDEST_VERSION = 2
_ENVELOPE_VERSION = 4
#: From this version on segments say the sequence id that they begin with.
_COUNTED_VERSION = 5
_FIELDS_IN_PROGRESS = {2: 4, 3: 6, 4: 6, 5: 7}
_FIELDS_COMPLETED = {2: 8, 3: 10, 4: 10, 5: 11}
_NUMBERS = re.compile(r"-?\d+(;-?\d+)*;?", re.ASCII)
#: In the status: the number is not the one that the segment was begun with.
COMPACTED = 1 << 3
#: A start sequence id that is not known yet.
UNKNOWN_SEQUENCE_ID = -1


class Truncation(IntEnum):
    """How far a segment is truncated."""

    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1
    TRUNCATED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """What the metadata tree says of a segment."""

    number: int
    ledger_id: int
    #: Of a segment made by rolling it is the last of the one before: a lower bound.
    first_txid: int
    last_txid: int = NO_TXID
    completed_at_ms: int = 0
    #: User records; known when it is completed.
    record_count: int = 0
    last_entry: int = -1
    last_slot: int = -1
    min_active_entry: int = 0
    min_active_slot: int = 0
    #: As stored; ``segments.start_sequence_ids`` derives what is not.
    start_sequence_id: int = UNKNOWN_SEQUENCE_ID
    is_in_progress: bool = True
    status: int = 0
    region: int = 0
    version: int = CURRENT_VERSION

    @property
    def is_enveloped(self) -> bool:
        """Whether its entries are."""
        return self.version >= _ENVELOPE_VERSION

    @property
    def is_counted(self) -> bool:
        """Whether its metadata has the sequence id that it begins with, once it is completed."""
        return self.version >= _COUNTED_VERSION

    @property
    def truncation(self) -> Truncation:
        """How far it is truncated."""
        return Truncation(self.status & 3)

    @property
    def is_compacted(self) -> bool:
        """Whether it was merged of others, or got its number when some before it were."""
        return bool(self.status & COMPACTED)

    @property
    def first_active(self) -> Position:
        """The first position that is not truncated."""
        if self.truncation is Truncation.TRUNCATED:
            return Position(self.number + 1, 0, 0)
        return Position(self.number, self.min_active_entry, self.min_active_slot)

    @property
    def last_position(self) -> Position:
        """Where its last record is; known when it is completed."""
        return Position(self.number, self.last_entry, self.last_slot)

    def truncated(self, before: Position | None) -> SegmentMetadata:
        """Return it without the records before a position in it; None: without any."""
        status = self.status & ~3
        if before is None:
            return replace(self, status=status | Truncation.TRUNCATED)
        return replace(
            self,
            status=status | Truncation.PARTIALLY_TRUNCATED,
            min_active_entry=before.entry,
            min_active_slot=before.slot,
        )

    def truncated_as(self, other: SegmentMetadata) -> SegmentMetadata:
        """Return it truncated as another state of it is."""
        return replace(
            self,
            status=other.status,
            min_active_entry=other.min_active_entry,
            min_active_slot=other.min_active_slot,
        )

    def encode(self) -> str:
        """Return the text of its node."""
        word = self.version | (self.status << 8) | (self.region << 28)
        fields = [word, self.ledger_id, self.first_txid]
        if not self.is_in_progress:
            fields[0] |= self.record_count << 32
            fields += [self.last_txid, self.completed_at_ms]
        fields.append(self.number)
        if not self.is_in_progress:
            fields += [self.last_entry, self.last_slot]
        if self.version >= 3:
            fields += [self.min_active_entry, self.min_active_slot]
        if self.is_counted:
            fields.append(self.start_sequence_id)
        return ";".join(map(str, fields))

    @classmethod
    def decode(cls, text: str) -> SegmentMetadata:
        """Read the text of a node.

        Raises:
            UnsupportedFormatError: a version that is not read.
            CorruptRecordsError: it is no such text.
        """
        if not _NUMBERS.fullmatch(text):
            raise CorruptRecordsError(f"segment metadata {text!r} cannot be understood")
        fields = [int(field) for field in text.rstrip(";").split(";")]
        version = fields[0] & 0xFF
        if not _OLDEST_VERSION <= version <= CURRENT_VERSION:
            raise UnsupportedFormatError(
                f"segment metadata {text!r} is of version {version}; read are "
                f"{_OLDEST_VERSION} to {CURRENT_VERSION}"
            )
        is_in_progress = len(fields) == _FIELDS_IN_PROGRESS[version]
        if not is_in_progress and len(fields) != _FIELDS_COMPLETED[version]:
            raise CorruptRecordsError(
                f"segment metadata {text!r}: {len(fields)} fields in version {version}"
            )
        return cls._of_fields(fields, version, is_in_progress=is_in_progress)

    @classmethod
    def _of_fields(
        cls, fields: list[int], version: int, *, is_in_progress: bool
    ) -> SegmentMetadata:
        rest = fields[3:]
        last_txid, completed_at_ms, last_entry, last_slot = NO_TXID, 0, -1, -1
        if is_in_progress:
            number, *rest = rest
        else:
            last_txid, completed_at_ms, number, last_entry, last_slot, *rest = rest
        rest += [0, 0, UNKNOWN_SEQUENCE_ID][len(rest) :]
        word = fields[0]
        return cls(
            number=number,
            ledger_id=fields[1],
            first_txid=fields[2],
            last_txid=last_txid,
            completed_at_ms=completed_at_ms,
            record_count=0 if is_in_progress else word >> 32,
            last_entry=last_entry,
            last_slot=last_slot,
            min_active_entry=rest[0],
            min_active_slot=rest[1],
            start_sequence_id=rest[2],
            is_in_progress=is_in_progress,
            status=(word >> 8) & 0xFF,
            region=(word >> 28) & 0xF,
            version=version,
        )
