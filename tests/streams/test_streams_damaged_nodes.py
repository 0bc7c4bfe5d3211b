"""A damaged metadata node of a stream costs what it is of, is named, and hides no record."""

from __future__ import annotations

import pytest

from quorumbook.errors import QuorumbookError
from quorumbook.streams import Namespace, PartitionedStream, StreamPolicy
from quorumbook.streams.cursors.state import REST_NAME
from quorumbook.streams.errors import CorruptRecordsError, StreamError, UnsupportedFormatError
from quorumbook.streams.stream_context import namespace_store, stream_context

DAMAGE = [(b"\xff{", CorruptRecordsError), (b'{"version":9}', UnsupportedFormatError)]


async def _written(ns: Namespace, segments: int = 3, **policy: int) -> None:
    await ns.create_stream("s", policy=StreamPolicy(**policy))
    payloads = [b"%d-%d" % (segment, index) for segment in range(segments) for index in range(4)]
    for first in range(0, len(payloads), 4):
        async with ns.stream("s").writer() as writer:
            await writer.append_batch(payloads[first : first + 4])


async def _damage(ns: Namespace, path: str, data: bytes) -> None:
    node = await namespace_store(ns).get(path)
    await namespace_store(ns).set(path, data, node.version)


@pytest.mark.parametrize(("data", "kind"), DAMAGE)
async def test_a_damaged_cursor_costs_that_cursor_and_is_named(
    ns: Namespace, data: bytes, kind: type[StreamError]
) -> None:
    await _written(ns)
    stream = ns.stream("s")
    for name in "a", "b", "c":
        await stream.cursor(name, start="latest")
    node = f"{stream_context(stream).nodes.paths.subscriber('b')}/{REST_NAME}"
    await _damage(ns, node, data)
    listed = await stream.cursors()
    assert [cursor.name for cursor in listed] == ["a", "b", "c"]
    assert [cursor.damage is None for cursor in listed] == [True, False, True]
    damaged = listed[1]
    assert isinstance(damaged.damage, kind)
    assert node in str(damaged.damage)
    # Where it stands is known all the same; what was acknowledged is not, so nobody reads by it.
    assert (await damaged.lag()).records == 0
    with pytest.raises(kind, match=node):
        await stream.cursor("b")
    await damaged.delete()
    assert [cursor.name for cursor in await stream.cursors()] == ["a", "c"]
    await stream.cursor("b")


async def test_retention_heeds_a_damaged_cursor_and_goes_on(ns: Namespace) -> None:
    await _written(ns, retain_records=1)
    stream = ns.stream("s")
    kept = await stream.cursor("kept", start="earliest", holds_retention=True)
    await stream.cursor("other", start="latest")
    node = f"{stream_context(stream).nodes.paths.subscriber('kept')}/{REST_NAME}"
    await _damage(ns, node, b"\xff")
    assert (await stream.enforce_retention()).segments == []
    (damaged,) = [cursor for cursor in await stream.cursors() if cursor.damage is not None]
    assert damaged.name == kept.name
    assert (await namespace_store(ns).get(node)).data == b"\xff", (
        "it is nobody's to write but who repairs it"
    )
    await damaged.delete()
    assert [one.number for one in (await stream.enforce_retention()).segments] == [1, 2]


@pytest.mark.parametrize("data", [b"\xff", b"nothing", b"99;1;2"])
async def test_a_damaged_segment_costs_that_segment_and_readers_say_so(
    ns: Namespace, data: bytes
) -> None:
    await _written(ns)
    stream = ns.stream("s")
    paths = stream_context(stream).nodes.paths
    node = paths.segment(2, is_in_progress=False)
    await _damage(ns, node, data)
    told: list[StreamError] = []
    listed = await stream.readable_segments(told.append)
    assert [segment.metadata.number for segment in listed] == [1, 3]
    assert len(told) == 1
    assert node in str(told[0])
    # Its records are not skipped: whoever reads hears of it, by name.
    with pytest.raises(StreamError, match=node):
        async with stream.reader(tail=False) as reader:
            assert [record.payload async for record in reader] == []
    with pytest.raises(StreamError, match=node):
        await stream.enforce_retention()


@pytest.mark.parametrize(("data", "kind"), DAMAGE)
async def test_a_damaged_group_costs_that_group_and_is_named(
    ns: Namespace, data: bytes, kind: type[StreamError]
) -> None:
    stream = await PartitionedStream.create(ns, "p", partitions=2)
    for name in "a", "b", "c":
        async with stream.consumer(name):
            pass
        for part in stream.partitions:
            await part.cursor(name)
    node = f"{stream.node}/groups/b"
    await _damage(ns, node, data)
    await (await stream.partitions[1].cursor("c")).hold_retention(
        holds=True
    )  # so it has a second node
    cursor = f"{stream_context(stream.partitions[1]).nodes.paths.subscriber('c')}/{REST_NAME}"
    await _damage(ns, cursor, data)
    listed = {info.name: info for info in await stream.groups()}
    assert [*listed] == ["a", "b", "c"]
    assert (listed["a"].damage, listed["c"].damage) == (None, None)
    assert isinstance(listed["b"].damage, kind)
    assert node in str(listed["b"].damage)
    # How far it was is known all the same.
    assert None not in listed["b"].cursors.values()
    damaged = listed["c"].cursors[1]
    assert damaged is not None
    assert cursor in str(damaged.damage)
    for name, where in ("b", node), ("c", cursor):
        with pytest.raises(QuorumbookError, match=where):
            async with stream.consumer(name) as consumer:
                await consumer.read(1, wait_s=None)
        await stream.delete_group(name)
    assert [info.name for info in await stream.groups()] == ["a"]
