"""What a reader of one segment notices to be missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.format.plain_entries import encode_lone_record
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.segment_reader import SegmentReader


def test_a_segment_that_ends_before_its_last_record_lacks_the_rest_also_all_of_it() -> None:
    segment = SegmentMetadata(
        number=3, ledger_id=7, first_txid=0, is_in_progress=False, record_count=5,
        start_sequence_id=20,
    )  # fmt: skip
    ledger: Any = None
    context: Any = SimpleNamespace(name="s")
    reader = SegmentReader(context, ledger, segment, 20)
    found = []
    for count in range(6):
        reader.count, reader.next_entry = count, count
        gap = reader.missing(segment)
        found.append(gap and (gap.start, gap.end, gap.first_sequence_id, gap.next_sequence_id))
    behind = Position(4, 0, 0)
    assert found == [*((Position(3, n, 0), behind, 20 + n, 25) for n in range(5)), None]
    # Who has not read it from its beginning cannot tell.
    reader.count = -1
    assert reader.missing(segment) is None


class _Ledger:
    """A closed ledger of some entries."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.last_add_confirmed = len(payloads) - 1
        self._payloads = payloads

    async def read_batches(self, first: int, last: int) -> AsyncIterator[EntryBatch]:
        yield EntryBatch(7, first, b"", self._payloads[first : last + 1], 0)


def _reader(entries: list[bytes]) -> SegmentReader:
    segment = SegmentMetadata(number=3, ledger_id=7, first_txid=0, start_sequence_id=20)
    context: Any = SimpleNamespace(name="s")
    ledger: Any = _Ledger(entries)
    return SegmentReader(context, ledger, segment, 20)


async def test_records_alone_in_their_entries_are_counted_from_wherever_one_begins() -> None:
    entries = [encode_lone_record(n, 1000 + n, n - 1, n, b"%d" % n) for n in range(5)]
    for first in range(5):
        reader = _reader(entries)
        found = [batch async for run in reader.confirmed(first) for batch in run]
        assert [batch.first_position for batch in found] == [(3, n, 1) for n in range(first, 5)]
        assert [batch.first_sequence_id for batch in found] == [20 + n for n in range(first, 5)]
        assert [record.payload for batch in found for record in batch] == [
            b"%d" % n for n in range(first, 5)
        ]
        assert (reader.count, reader.next_entry) == (5, 5)


async def test_a_record_that_is_alone_and_not_the_next_one_is_noticed() -> None:
    entries = [encode_lone_record(n, 1000, -1, n, b"x") for n in (0, 1, 3)]
    reader = _reader(entries)
    found = []
    with pytest.raises(CorruptRecordsError, match="entry 2 of segment 3 of stream s"):
        async for run in reader.confirmed(0):
            for batch in run:
                found.append(batch.first_sequence_id)  # noqa: PERF401 - up to the error
    assert found == [20, 21]
    assert (reader.count, reader.next_entry) == (2, 2)
