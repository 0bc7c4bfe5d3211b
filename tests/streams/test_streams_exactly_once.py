"""X2: a record with a producer's number is stored once, whatever crashed in between."""

from __future__ import annotations

import asyncio

import pytest

from doubles.inside import end_ledger_under
from quorumbook.errors import LedgerFencedError, LocalProtocolError
from quorumbook.streams import Namespace, SequenceId, StreamPolicy
from quorumbook.streams.writing.producers import SNAPSHOT_EVERY


async def payloads(ns: Namespace) -> list[bytes]:
    async with ns.stream("s").reader(tail=False) as reader:
        return [record.payload async for record in reader]


async def test_x2_a_repeated_append_returns_the_original(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(producer="p") as writer:
        first = await writer.append(b"a", producer_seq=5)
        again = await writer.append(b"a", producer_seq=5)
        assert again.duplicate
        assert (again.position, again.sequence_id) == (first.position, first.sequence_id)
        # Also while the original is on its way.
        one = writer.append_nowait(b"b", producer_seq=6)
        two = writer.append_nowait(b"b", producer_seq=6)
        assert (await two).position == (await one).position
        assert (await writer.append(b"c")).sequence_id == 2
        assert writer.last_number() == 7
        batch = await writer.append_batch([b"b", b"c", b"d", b"e"], producer_seq=6)
        assert [each.duplicate for each in batch] == [True, True, False, False]
        assert [each.sequence_id for each in batch] == [1, 2, 3, 4]
        old = await writer.append(b"old", producer_seq=1)
        assert (old.duplicate, old.position) == (True, None)
    assert await payloads(ns) == [b"a", b"b", b"c", b"d", b"e"]
    with pytest.raises(LocalProtocolError):
        async with ns.stream("s").writer() as writer:
            writer.append_nowait(b"x", producer_seq=1)


@pytest.mark.parametrize("count", [3, SNAPSHOT_EVERY - 1, SNAPSHOT_EVERY, SNAPSHOT_EVERY + 7])
async def test_x2_numbers_survive_a_crash_truncation_and_other_writers(
    ns: Namespace, other: Namespace, count: int
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=3 * SNAPSHOT_EVERY))
    crashed = await ns.stream("s").writer(producer="p", batch_bytes=1)
    futures = [crashed.append_nowait(b"%d" % n, producer_seq=n) for n in range(count)]
    appended = [await future for future in futures]
    await crashed.abort()
    async with other.stream("s").writer(producer="q") as writer:
        assert writer.last_number() == -1
        await writer.append(b"q")
    async with other.stream("s").writer() as writer:
        await writer.append(b"nobody's")
    await other.stream("s").truncate(SequenceId(count + 1))
    async with other.stream("s").writer(producer="p") as writer:
        assert writer.last_number() == count - 1
        batch = await writer.append_batch([b"%d" % n for n in range(count + 2)], producer_seq=0)
        known = batch[count - 1]
        assert known.duplicate
        assert (known.position, known.sequence_id) == (
            appended[-1].position, appended[-1].sequence_id,
        )  # fmt: skip
        assert [each.sequence_id for each in batch[count:]] == [count + 2, count + 3]
    assert await payloads(ns) == [b"nobody's", b"%d" % count, b"%d" % (count + 1)]


async def test_x2_numbers_survive_a_segment_that_fails(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer(producer="p", batch_bytes=1) as writer:
        await writer.append(b"0")
        (segment,) = await stream.segments()
        futures = [writer.append_nowait(b"%d" % n, producer_seq=n) for n in range(1, 20)]
        await asyncio.sleep(0)
        end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
        futures += [writer.append_nowait(b"%d" % n, producer_seq=n) for n in range(1, 25)]
        found = [await future for future in futures]
        assert found[-1].ledger_id != segment.metadata.ledger_id
        assert [each.sequence_id for each in found] == [*range(1, 20), *range(1, 25)]
    async with stream.writer(producer="p") as writer:
        assert writer.last_number() == 24
    assert await payloads(ns) == [b"%d" % n for n in range(25)]


async def test_x2_many_producers_have_a_snapshot_of_their_own(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    count = 40
    for number in range(count):
        async with stream.writer(producer=f"producer-{number}") as writer:
            await writer.append(b"x")
    async with stream.writer(producer="producer-3") as writer:
        assert (await writer.append(b"x", producer_seq=0)).sequence_id == 3
        where = await writer.append(b"y")
        # The snapshot is too large to share an entry with records.
        assert where.position is not None
        assert where.position.entry == 1
    assert len(await payloads(ns)) == count + 1
