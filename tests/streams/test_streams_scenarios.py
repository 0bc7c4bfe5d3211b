"""How other stream stores failed, S92 to S95 of the track record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from doubles.inside import end_ledger_under, pump_of
from quorumbook.errors import LedgerFencedError, QuorumbookError
from quorumbook.metadata.store import MetadataStore, Watch
from quorumbook.streams import Namespace, Stream, StreamPolicy
from quorumbook.streams.errors import WriterBusyError, WriterFencedError
from quorumbook.streams.stream_context import stream_context


async def read_all(stream: Stream) -> list[bytes]:
    async with stream.reader(tail=False) as reader:
        return [record.payload async for record in reader]


class Between:
    """A store in which something happens between a list of children and whatever follows."""

    def __init__(self, store: MetadataStore, happens: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._happens: Callable[[], Awaitable[None]] | None = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = await self._store.children(path, watch)
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return names


async def test_s92_a_segment_completed_while_it_is_listed_is_not_skipped(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        for number in range(3):
            await writer.append(b"%d" % number)
            if number < 2:
                await writer.roll()

        async def roll() -> None:
            await writer.roll()
            await writer.append(b"3")
            await writer.flush()

        stream = other.stream("s")
        stream_context(stream).nodes.store = Between(stream_context(stream).nodes.store, roll)  # type: ignore[assignment]
        segments = await stream.segments()
        assert [(s.metadata.number, s.metadata.is_in_progress) for s in segments] == [
            (1, False), (2, False), (3, False), (4, True),
        ]  # fmt: skip
        assert await read_all(stream) == [b"0", b"1", b"2", b"3"]


async def test_s93_an_empty_segment_is_dropped_and_its_reader_goes_on(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"a", txid=7)
    crashed = await ns.stream("s").writer()
    await pump_of(crashed).segments.ensure(pump_of(crashed).state)
    async with other.stream("s").reader() as reader:
        assert (await anext(reader)).payload == b"a"
        # It waits in the empty segment now.
        assert await reader.read(wait_s=0.05) == []
        async with other.stream("s").writer(takeover="force") as writer:
            assert (writer.next_sequence_id, writer.last_txid) == (1, 7)
            where = await writer.append(b"b")
            assert where.position is not None
            assert where.position.segment == 2
            record = await anext(reader)
            assert (record.payload, record.position) == (b"b", where.position)
    await crashed.abort()
    assert await read_all(ns.stream("s")) == [b"a", b"b"]


async def test_s94_what_is_sent_again_after_failures_has_the_same_bytes(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression="lz4"))
    payloads = [bytes([n]) * (50 + n) for n in range(60)]
    async with ns.stream("s").writer(batch_bytes=200) as writer:
        await writer.append(b"first")
        futures = []
        for round_number in range(3):
            tail = pump_of(writer).state.tail
            futures += [writer.append_nowait(each) for each in payloads[20 * round_number :][:20]]
            await asyncio.sleep(0)
            if tail is not None:
                end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
        found = [await future for future in futures]
    assert [each.sequence_id for each in found] == list(range(1, 61))
    assert await read_all(other.stream("s")) == [b"first", *payloads]


async def test_s95_writers_that_take_each_other_over_never_both_append(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    acknowledged: dict[int, bytes] = {}

    async def write(namespace: Namespace, name: str) -> None:
        for life in range(6):
            with contextlib.suppress(WriterFencedError, WriterBusyError):
                writer = await namespace.stream("s").writer(takeover="force")
                try:
                    for number in range(4):
                        payload = f"{name}.{life}.{number}".encode()
                        where = await writer.append(payload)
                        assert where.sequence_id not in acknowledged
                        acknowledged[where.sequence_id] = payload
                        await asyncio.sleep(0)
                finally:
                    with contextlib.suppress(QuorumbookError):
                        await writer.abort()

    await asyncio.gather(write(ns, "a"), write(other, "b"))
    await ns.stream("s").recover()
    stored = await read_all(ns.stream("s"))
    assert acknowledged
    assert {n: stored[n] for n in acknowledged} == acknowledged
    assert len(set(stored)) == len(stored)
    for name in b"a", b"b":
        own = [p for p in stored if p.startswith(name)]
        assert own == sorted(own)
