"""Records of an entry, handed out together or one by one."""

from __future__ import annotations

from quorumbook.streams import Position, Record, RecordBatch
from quorumbook.streams.format.attributes import Attributes


def batch(first_sequence_id: int, attributes: dict[int, Attributes] | None = None) -> RecordBatch:
    payloads = [b"a", b"b", b"c"]
    where = Position(2, 7, 1)
    return RecordBatch(where, first_sequence_id, [5, 6, 6], payloads, 99, 40, attributes or {})


def test_a_batch_gives_its_records_and_parts_of_it_theirs() -> None:
    carried = Attributes(key=b"k")
    whole = list(batch(10, {2: carried}))
    assert whole == [
        Record(Position(2, 7, 1), 10, 5, b"a", 99, 40),
        Record(Position(2, 7, 2), 11, 6, b"b", 99, 40, carried),
        Record(Position(2, 7, 3), 12, 6, b"c", 99, 40),
    ]
    assert all(type(each) is Record and type(each.position) is Position for each in whole)
    assert [each.key for each in whole] == [None, b"k", None]
    part = batch(10, {2: carried}).part(1, 3)
    assert list(part) == whole[1:]
    assert (part.first_sequence_id, part.last_sequence_id, part.last_position) == (
        11, 12, Position(2, 7, 3),
    )  # fmt: skip


def test_sequence_ids_that_cannot_be_known_are_known_of_no_record() -> None:
    unknown = batch(-1)
    assert [each.sequence_id for each in unknown] == [-1, -1, -1]
    assert [each.sequence_id for each in unknown.part(1, 3)] == [-1, -1]
    assert unknown.last_sequence_id == -1
