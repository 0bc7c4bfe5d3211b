"""What a reader of one segment notices to be missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
