"""Whatever is written in a stream's formats is read again, and damage never passes for data."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumbook.streams.errors import StreamError
from quorumbook.streams.format import records
from quorumbook.streams.format.attributes import Attributes, decode_rows, encode_rows
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import EntryNote, ProducerRun, ProducerState
from quorumbook.streams.format.envelope import decode_entry, encode_entry, encode_entry_of
from quorumbook.streams.format.names import check_stream_name, lock_member_owner, lock_member_prefix
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.record_sets import decode_record_set, encode_record_set
from quorumbook.streams.format.segment_text import SegmentMetadata

longs = st.integers(-(2**63), 2**63 - 1)
codecs = st.sampled_from(list(Codec))
positions = st.builds(Position, longs, longs, longs)
payloads = st.lists(st.binary(max_size=200), min_size=1, max_size=8)


@given(positions, positions)
def test_positions_order_as_their_fields_and_survive_both_forms(a: Position, b: Position) -> None:
    assert Position.from_text(a.to_text()) == a
    assert (a < b) == (tuple(a) < tuple(b))


@given(codecs, payloads, st.integers(1, 2**32 - 9), st.integers(0, records.MAX_USER_TXID))
def test_an_entry_gives_back_its_records(
    codec: Codec, items: list[bytes], first: int, txid: int
) -> None:
    _, size = records.sizes_of(items)
    pieces = records.encode_user_records(first, [txid] * len(items), items, size)
    data = b"".join(pieces)
    assert encode_entry_of(pieces, len(data), codec) == encode_entry(data, codec)
    found = records.decode_records(decode_entry(encode_entry(data, codec)))
    assert found == [(0, first + n, txid, item) for n, item in enumerate(items)]
    assert decode_record_set(encode_record_set(items, codec)) == items


carried = st.builds(
    Attributes,
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=40)), max_size=3).map(tuple),
    st.none() | longs,
).filter(lambda each: each != Attributes())


@given(st.dictionaries(st.integers(0, 2**32 - 1), carried, max_size=5), st.data())
def test_what_records_carry_is_given_back_or_refused_where_it_is_cut(
    rows: dict[int, Attributes], data: st.DataObject
) -> None:
    ends, encoded = [0], b""
    for index, attributes in sorted(rows.items()):
        encoded += encode_rows([(index, attributes.encode())])
        ends.append(len(encoded))
    assert decode_rows(encoded) == rows
    cut = data.draw(st.integers(0, len(encoded)))
    if cut in ends:
        assert len(decode_rows(encoded[:cut])) == ends.index(cut)
    else:
        with pytest.raises(StreamError):
            decode_rows(encoded[:cut])


@given(codecs, payloads, st.data())
def test_a_cut_entry_is_refused(codec: Codec, items: list[bytes], data: st.DataObject) -> None:
    pieces = records.encode_user_records(1, range(len(items)), items, records.sizes_of(items)[1])
    entry = encode_entry(b"".join(pieces), codec)
    cut = data.draw(st.integers(0, len(entry) - 1))
    with pytest.raises(StreamError):
        records.decode_records(decode_entry(entry[:cut]))


@given(st.binary(max_size=100))
def test_any_bytes_are_records_or_an_error_of_ours(data: bytes) -> None:
    readers = decode_entry, records.decode_records, decode_record_set, decode_rows, EntryNote.decode
    for read in readers:
        with contextlib.suppress(StreamError):
            read(data)


@given(
    st.one_of(st.none(), longs),
    st.one_of(st.none(), st.text(max_size=20)),
    st.lists(st.builds(ProducerRun, st.integers(0, 999), longs, st.integers(0, 999)), max_size=3),
    st.one_of(
        st.none(),
        st.lists(
            st.builds(ProducerState, st.text(max_size=9), longs, positions, longs, longs),
            max_size=3,
        ).map(tuple),
    ),
)
def test_a_note_survives(
    time_ms: int | None,
    producer: str | None,
    runs: list[ProducerRun],
    snapshot: tuple[ProducerState, ...] | None,
) -> None:
    note = EntryNote(time_ms, producer, tuple(runs) if producer is not None else (), snapshot)
    assert EntryNote.decode(note.encode()) == note


counts = st.integers(0, 2**31 - 1)


@given(
    st.builds(
        SegmentMetadata,
        number=counts, ledger_id=longs, first_txid=longs, last_txid=longs, completed_at_ms=longs,
        record_count=counts, last_entry=longs, last_slot=longs, min_active_entry=longs,
        min_active_slot=longs, start_sequence_id=longs, is_in_progress=st.just(False),
        status=st.integers(0, 255), region=st.integers(0, 15),
    )
)  # fmt: skip
def test_segment_metadata_survive(segment: SegmentMetadata) -> None:
    assert SegmentMetadata.decode(segment.encode()) == segment
    assert SegmentMetadata.decode(segment.encode()).truncated(None).encode() != ""


@given(st.text(max_size=12), longs)
def test_a_lock_member_names_its_owner(client_id: str, session_id: int) -> None:
    owner = lock_member_owner(lock_member_prefix(client_id, session_id) + "0000000003")
    assert owner == (client_id, session_id) if "_" not in client_id else owner is None


@given(st.text(max_size=12))
def test_a_stream_name_is_accepted_in_one_form(name: str) -> None:
    try:
        found = check_stream_name(name)
    except StreamError:
        return
    assert check_stream_name(found) == found
    assert not found.startswith(("/", ".", "<"))
