"""Keys, headers and event times go beside payloads, which stay what they were."""

from __future__ import annotations

import pytest

from quorumbook.streams import Attributes, Namespace, SequenceId, StreamPolicy
from quorumbook.streams.errors import RecordTooLargeError
from quorumbook.streams.format.envelope import decode_entry
from quorumbook.streams.format.records import CONTROL
from quorumbook.streams.reading.entries import decode_records


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_records_give_back_what_they_carry(ns: Namespace, compression: str) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression=compression))
    stream = ns.stream("s")
    attributes = [Attributes(b"k%d" % n) if n % 3 == 0 else None for n in range(100)]
    async with stream.writer(batch_bytes=400) as writer:
        first = await writer.append(b"one", key=b"", headers={"a": b"\xff"}, event_time_ms=-5)
        await writer.append(b"two")
        await writer.append_batch([b"%d" % n for n in range(100)], attributes=attributes)
        with pytest.raises(RecordTooLargeError, match="key and headers"):
            await writer.append(b"x", key=bytes(2**16))
    async with stream.reader(tail=False) as reader:
        records = [record async for record in reader]
    assert (records[0].key, records[0].headers, records[0].event_time_ms) == (
        b"",
        {"a": b"\xff"},
        -5,
    )
    assert records[1].attributes == Attributes()
    assert [record.attributes for record in records[2:]] == [a or Attributes() for a in attributes]
    assert (await stream.get(first.position)).headers == {"a": b"\xff"}
    async with stream.reader(SequenceId(8), tail=False) as reader:
        part = await reader.read(3)
    assert [record.key for record in part] == [b"k6", None, None]


async def test_what_is_carried_is_in_a_record_that_others_skip(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append(b"\0BKX\x01 looks like ours", key=b"k")
    (segment,) = await stream.segments()
    async with ns.client.open_ledger(segment.metadata.ledger_id) as ledger:
        note, record = decode_records(decode_entry((await ledger.read_entry(0)).payload))
    assert note.flags == CONTROL
    assert (record.flags, record.payload) == (0, b"\0BKX\x01 looks like ours")
    assert (await stream.get(SequenceId(0))).payload == record.payload
