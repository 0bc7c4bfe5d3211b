"""Entries of Pulsar's topics: what a real broker stored, every form by hand, and hostile bytes."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from doubles import pulsar_topics as laid
from quorumbook.pulsar import entries
from quorumbook.pulsar.compression import MAX_SIZE_BYTES, decompress
from quorumbook.pulsar.entries import MAX_METADATA_BYTES, decode_entry, messages_of, undecoded
from quorumbook.pulsar.formats import make
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "pulsar.json").read_text())
CODECS = ("none", "lz4", "zlib", "zstd", "snappy")


def stored(name: str) -> list[tuple[int, int, bytes]]:
    return [(a, b, base64.b64decode(data)) for a, b, data in GOLDEN["entries"][name]]


def read(data: bytes) -> list[entries.Message]:
    return list(messages_of(decode_entry(5, 6, data)))


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_broker_stored_is_read_whatever_compressed_it(codec: str) -> None:
    alone, batch = (list(messages_of(decode_entry(*each))) for each in stored(codec))
    (message,) = alone
    assert message.value == b"alone " * 20
    assert message.key == "schlüssel".encode()
    assert message.ordering_key == b"o"
    assert message.properties == {"a": "1", "b": "zwei"}
    assert message.event_time_ms == 1_700_000_000_123
    assert message.producer_name == f"p-{codec}"
    assert (message.batch_index, message.sequence_id, message.broker_index) == (None, 0, 0)
    assert message.publish_time_ms
    assert message.broker_time_ms
    assert message.broker_time_ms >= message.publish_time_ms
    assert [each.value for each in batch] == [b"batch %d " % n * 10 for n in range(3)]
    assert [each.key for each in batch] == [b"k0", b"k1", b"k2"]
    assert [each.batch_index for each in batch] == [0, 1, 2]
    assert [each.sequence_id for each in batch] == [0, 1, 2]
    assert [each.broker_index for each in batch] == [1, 2, 3]
    assert [each.properties for each in batch] == [{}, {"n": "1"}, {"n": "2"}]


def test_a_message_says_the_version_of_its_schema() -> None:
    for name, value in ("avro", b"\x02\x02x\x02\x0e"), ("json", None):
        (message,) = messages_of(decode_entry(*stored(name)[0]))
        assert message.schema_version == 0
        assert value is None or message.value == value


def test_what_old_producers_left_out_is_not_needed() -> None:
    (message,) = read(laid.entry(b"plain", checksum=False))
    assert message.value == b"plain"
    assert message.key is message.ordering_key is message.event_time_ms is None
    assert message.schema_version is message.broker_index is message.broker_time_ms is None


def test_keys_of_every_kind() -> None:
    for fields, key in (
        ({"partition_key": b"a"}, b"a"),
        ({"partition_key": b"AP8=", "partition_key_b64_encoded": True}, b"\x00\xff"),
        ({"partition_key": b"no base64!", "partition_key_b64_encoded": True}, b"no base64!"),
        ({"partition_key": b"a", "null_partition_key": True}, None),
        ({}, None),
    ):
        assert read(laid.entry(b"x", **fields))[0].key == key
        assert read(laid.batch(laid.single(b"x", **fields)))[0].key == key


def test_a_message_may_have_no_value_and_a_batch_messages_that_were_compacted_away() -> None:
    assert read(laid.entry(b"", null_value=True))[0].value is None
    found = read(
        laid.batch(
            laid.single(b"a"), laid.single(b"b", compacted_out=True),
            laid.single(b"", null_value=True),
        )
    )  # fmt: skip
    assert [(m.batch_index, m.value) for m in found] == [(0, b"a"), (2, None)]


def test_a_time_that_fits_into_no_column_is_none_and_numbers_wrap_as_in_java() -> None:
    (message,) = read(laid.entry(b"", publish_time=2**63, sequence_id=2**64 - 1, event_time=1))
    assert (message.publish_time_ms, message.sequence_id) == (None, -1)


def test_marks_of_brokers_are_told_from_messages() -> None:
    mark = decode_entry(1, 2, laid.entry(b"", marker_type=21))
    assert mark.is_mark
    assert not decode_entry(1, 2, laid.entry(b"")).is_mark


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"encryption_keys": [b"k"]}, "encrypted"),
        ({"txnid_most_bits": 1, "txnid_least_bits": 2}, r"transaction \(1,2\)"),
        ({"compression": 9, "uncompressed_size": 1}, "codec 9"),
        ({"compression": 1, "uncompressed_size": MAX_SIZE_BYTES + 1}, "announced"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name_and_known_by_its_metadata(
    fields: dict[str, object], reason: str
) -> None:
    entry = decode_entry(5, 6, laid.entry(b"secret", partition_key=b"k", **fields))
    with pytest.raises(UnsupportedFormatError, match=reason) as error:
        list(messages_of(entry))
    assert (error.value.ledger_id, error.value.entry_id) == (5, 6)
    row = undecoded(entry, error.value)
    assert row.key == b"k"
    assert row.error == str(error.value)
    # Only a transaction's message can be shown, since nothing hides it.
    assert row.value == (b"secret" if "txnid_most_bits" in fields else None)


def test_a_wrong_checksum_and_every_cut_are_typed_errors() -> None:
    whole = laid.batch(laid.single(b"a" * 30, partition_key=b"k"), laid.single(b"b"), codec="zlib")
    assert len(read(whole)) == 2
    for position in range(len(whole)):
        with pytest.raises(CorruptRecordsError, match="entry 6 of ledger 5"):
            read(whole[:position])
    for position in range(6, len(whole)):
        with pytest.raises(CorruptRecordsError, match="checksum is"):
            read(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])


def test_bytes_of_every_kind_are_messages_or_a_typed_error() -> None:
    random_ = random.Random(19)
    seeds = [data for name in GOLDEN["entries"] for _, _, data in stored(name)]
    seeds += [laid.batch(laid.single(b"a"), laid.single(b"b"), checksum=False)]
    errors = 0
    for _ in range(3000):
        data = bytearray(random_.choice(seeds))
        # Behind the checksum, or hardly anything else would be looked at.
        at = data.find(b"\x0e\x01")
        del data[at : at + 6]
        for _ in range(random_.randrange(1, 6)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        try:
            read(bytes(data))
        except (CorruptRecordsError, UnsupportedFormatError):
            errors += 1
    assert errors > 100


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_makes_no_more_than_it_announces(codec: str) -> None:
    bomb = laid.compressed(codec, bytes(64 * 1024 * 1024))
    number = laid.NUMBERS[codec]
    tracemalloc.start()
    try:
        for said in (10, 1024 * 1024):
            with pytest.raises(CorruptRecordsError):
                decompress(number, bomb, said)
        with pytest.raises(CorruptRecordsError):
            decompress(number, laid.compressed(codec, b"little"), 1000)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [-1, 3, 2**31 - 1])
def test_a_batch_of_more_messages_than_there_are_is_refused_before_any_is_given(count: int) -> None:
    data = laid.batch(laid.single(b"a"), laid.single(b"b"), num_messages_in_batch=count)
    with pytest.raises(CorruptRecordsError):
        messages_of(decode_entry(5, 6, data))


def test_a_message_of_a_batch_has_no_more_bytes_than_are_left() -> None:
    for size in (2, -1, 2**31 - 1):
        said = make("SingleMessageMetadata", payload_size=size).SerializeToString()
        with pytest.raises(CorruptRecordsError, match="should have"):
            read(laid.entry(laid.sized(said) + b"a", num_messages_in_batch=1))


def test_a_large_batch_is_handed_out_one_by_one_and_looked_at_before(monkeypatch) -> None:
    monkeypatch.setattr(entries, "_HELD_MESSAGES", 2)
    singles = [laid.single(b"%d" % n) for n in range(5)]
    found = messages_of(decode_entry(5, 6, laid.batch(*singles)))
    assert [m.value for m in found] == [b"0", b"1", b"2", b"3", b"4"]
    cut = laid.entry(b"".join(singles)[:-1], num_messages_in_batch=5)
    with pytest.raises(CorruptRecordsError, match="should have"):
        messages_of(decode_entry(5, 6, cut))


def test_metadata_that_would_take_much_memory_are_refused_by_their_size() -> None:
    many = [make("KeyValue", key=b"", value=b"")] * (MAX_METADATA_BYTES // 6 + 1)
    with pytest.raises(CorruptRecordsError, match="at most"):
        read(laid.entry(b"", properties=many))
