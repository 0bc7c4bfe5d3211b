"""Record sets of an entry: compressed within compressed, and no more than a reader can take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumbook.streams.compaction.entry_moves import moved_entry
from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.envelope import encode_entry
from quorumbook.streams.format.record_sets import BYTES_MAX, encode_record_set
from quorumbook.streams.format.records import RECORD_SET, encode_record
from quorumbook.streams.reading.entries import control_records, decode_user_records, last_record

_READS: dict[str, Callable[[bytes], object]] = {
    "its records": lambda entry: decode_user_records(entry, is_enveloped=True, count_before=-1),
    "the last one": lambda entry: last_record(entry, is_enveloped=True),
    "control records": lambda entry: control_records(entry, is_enveloped=True),
    "a compaction": lambda entry: moved_entry(entry, 0),
}


def _entry(payloads: list[bytes], sets: int) -> bytes:
    one = encode_record_set(payloads, Codec.LZ4)
    records = [
        encode_record(RECORD_SET, 1 + index * len(payloads), 7, one) for index in range(sets)
    ]
    return encode_entry(b"".join(records), Codec.LZ4)


@pytest.mark.parametrize("read", _READS)
@pytest.mark.parametrize(
    "entry",
    [_entry([b""] * 300_000, 200), _entry([bytes(4_000_000)], 200)],
    ids=["very many", "very large"],
)
def test_an_entry_that_would_be_more_than_a_reader_can_take_is_refused(
    read: str, entry: bytes
) -> None:
    """60 million records, or 800 MB, of less than 60 KB."""
    assert len(entry) < 60_000
    with pytest.raises(CorruptRecordsError, match="record sets of an entry hold more than"):
        _READS[read](entry)


def test_sets_that_say_less_than_nothing_make_no_room_for_others() -> None:
    less = encode_record_set([], Codec.NONE)
    less = less[:4] + (-(1 << 31)).to_bytes(4, "big", signed=True) + less[8:]
    many = encode_record_set([b""] * 600_000, Codec.LZ4)
    records = [encode_record(RECORD_SET, 0, 7, each) for each in (less, many, less, many)]
    with pytest.raises(CorruptRecordsError, match="hold more than"):
        decode_user_records(encode_entry(b"".join(records)), is_enveloped=True, count_before=0)


def test_an_entry_of_many_sets_that_a_reader_can_take_is_read() -> None:
    payloads = [b"%06d" % number for number in range(20_000)]
    entry = _entry(payloads, 30)
    decoded = decode_user_records(entry, is_enveloped=True, count_before=0)
    assert decoded.count_after == 600_000 < BYTES_MAX
    (run,) = decoded.runs
    assert list(run.payloads[:20_000]) == list(run.payloads[-20_000:]) == payloads
