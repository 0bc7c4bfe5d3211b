"""Snapshots and their splits: position-exact ranges for readers that share the work."""

from __future__ import annotations

import itertools
import json

import pytest

from quorumbook.streams import Namespace, SequenceId, Split, Stream, StreamPolicy
from quorumbook.streams.errors import DataLossError


async def read_splits(stream: Stream, splits: list[Split]) -> list[tuple[int, bytes]]:
    found = []
    for split in splits:
        there = Split.from_json(json.loads(json.dumps(split.to_json())))
        async for batch in stream.read_split(there):
            found += [(record.sequence_id, record.payload) for record in batch]
    return found


@pytest.mark.parametrize("target_bytes", [1, 150, 10**9])
async def test_splits_cover_a_snapshot_exactly_however_the_stream_goes_on(
    ns: Namespace, other: Namespace, target_bytes: int
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        for number in range(10):
            await writer.append_batch([b"%d.%d" % (number, k) for k in range(3)])
        await writer.flush()
        await stream.truncate(SequenceId(4))
        snapshot = await other.stream("s").snapshot()
        splits = snapshot.splits(target_bytes)
        # What comes after it does not matter.
        await writer.append(b"later")
        await writer.roll()
        await writer.append(b"later still")
        wanted = [(n, b"%d.%d" % divmod(n, 3)) for n in range(4, 30)]
        assert await read_splits(other.stream("s"), splits) == wanted
    assert await read_splits(ns.stream("s"), splits) == wanted
    assert len(splits) == {1: 9, 150: 9, 10**9: 3}[target_bytes]
    assert splits[-1].end == snapshot.end
    for before, after in itertools.pairwise(splits):
        assert after.segment > before.segment or after.start == before.end


async def test_a_split_whose_entries_are_gone_is_an_error(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    assert (await stream.snapshot()).splits() == []
    async with stream.writer() as writer:
        await writer.append(b"a")
    (split,) = (await stream.snapshot()).splits()
    missing = Split.from_json({**split.to_json(), "last_entry": 7})
    with pytest.raises(DataLossError, match="entries 1 to 7"):
        await read_splits(stream, [missing])
    await ns.client.delete_ledger(split.ledger_id)
    with pytest.raises(DataLossError, match="gone since the snapshot"):
        await read_splits(stream, [split])
