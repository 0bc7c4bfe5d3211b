"""What is in the entries that a stream's writer packs, beside the records."""

from __future__ import annotations

from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.envelope import decode_entry
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import CONTROL, END_TXID, decode_records
from quorumbook.streams.writing import packing
from quorumbook.streams.writing.appended import Placement
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PackedRun, PendingAppend, single
from quorumbook.streams.writing.producers import Producers


def state_of(last_txid: int = -1, **options: object) -> PackState:
    made = PackState(
        next_sequence_id=0, last_txid=last_txid, codec=Codec.NONE, batch_bytes=64, **options
    )
    made.begin_segment(1, 1)
    return made


def packed(state: PackState) -> list[PackedRun]:
    entries = []
    while (entry := state.pack(1)) is not None:
        entries.append(entry)
    return entries


def txids(entry: PackedRun) -> list[tuple[bool, int]]:
    """Return of each record of an entry whether it is a control record, and its id."""
    records = decode_records(decode_entry(entry.entries[0]))
    return [(bool(record.flags & CONTROL), record.txid) for record in records]


def test_a_note_has_the_transaction_id_of_the_record_before_it() -> None:
    state = state_of()
    state.append(PendingAppend([b"a", b"b", b"c"], None), (7, 7, 9))
    state.append(PendingAppend([b"d"], None), (12,))
    found = [txids(entry) for entry in packed(state)]
    assert found == [
        [(True, -1), (False, 7)], [(True, 7), (False, 7)],
        [(True, 7), (False, 9)], [(True, 9), (False, 12)],
    ]  # fmt: skip


def test_a_segment_in_which_nothing_but_the_end_will_be_begins_with_the_end() -> None:
    """As the peer's does: a search by transaction id never leads to it."""
    state = state_of(last_txid=41)
    assert state.first_queued_txid == END_TXID
    state.append(PendingAppend([b"a"], None), (50,))
    assert state.first_queued_txid == 50


def test_the_first_note_of_a_writer_has_the_last_transaction_id_of_the_stream() -> None:
    state = state_of(last_txid=41)
    state.append(PendingAppend([b"a"], None), (50,))
    assert txids(packed(state)[0]) == [(True, 41), (False, 50)]


def test_the_notes_of_chunks_and_of_ids_that_go_down_tell_the_one_before() -> None:
    state = state_of(checks_txids=False)
    state.append(PendingAppend([b"a"], None), (9,))
    state.append(PendingAppend([b"b"], None), (3,))
    state.append(single(b"x" * (packing.MAX_ATOMIC_SIZE_BYTES + 1000), None), (5,))
    found = [txids(entry)[0] for entry in packed(state)]
    assert found == [(True, -1), (True, 9), (True, 3), (True, 5)]


def test_what_is_packed_anew_after_a_failure_tells_the_same_ids() -> None:
    state = state_of()
    state.append(PendingAppend([b"a", b"b"], None), (1, 2))
    state.append(PendingAppend([b"c"], None), (5,))
    before = packed(state)
    assert state.on_segment_failed(before[0].first_entry_id) == []
    state.end_segment()
    tail = state.begin_segment(2, 2)
    # What is known of a segment in which nothing is stored yet is what came before it.
    assert tail.confirmed_txid == 1
    after = packed(state)
    assert [txids(entry) for entry in after] == [txids(entry) for entry in before[1:]]


def test_a_snapshot_that_is_alone_in_its_entry_has_the_id_before_what_follows() -> None:
    producers = Producers()
    for number in range(100):
        name = f"producer-{number}"
        producers.on_stored(name, 0, number, Placement(1, Position(1, 0, 0), 1), 1)
    state = state_of(last_txid=3, producers=producers)
    state.append(PendingAppend([b"a"], None), (8,))
    alone, entry = packed(state)
    assert (txids(alone), txids(entry)) == ([(True, 3)], [(True, 3), (False, 8)])
    # Should it be all that is stored, the segment ends with what was before it.
    state.on_segment_failed(alone.first_entry_id)
    assert state.tail is not None
    assert state.tail.confirmed_txid == 3


def test_an_entry_has_no_more_appends_of_a_producer_than_its_note_tells_of() -> None:
    state = PackState(
        next_sequence_id=0, last_txid=-1, codec=Codec.NONE, batch_bytes=1 << 16,
        producer="p", producers=Producers(),
    )  # fmt: skip
    state.begin_segment(1, 1)
    for number in range(300):
        # Numbers with gaps: each is a run of its own.
        state.append(PendingAppend([b"x"], None, first_number=2 * number), None)
    assert [len(entry.parts) for entry in packed(state)] == [128, 128, 44]
