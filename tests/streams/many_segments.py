"""A stream of many segments: how long things take on it, and what they ask of the metadata store.

    PYTHONPATH=tests python tests/streams/many_segments.py --segments 10000 \
        --report docs/reports/many-segments.md
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from doubles.mortal import Mortal, mortal_namespace
from quorumbook.streams import Namespace, SequenceId, StreamPolicy
from quorumbook.testing import LocalCluster

#: Records of each segment, and bytes of each record.
RECORDS = 2
SIZE_BYTES = 100
_BATCH = 500


@dataclass(frozen=True)
class Figure:
    """What one thing took."""

    what: str
    seconds: float
    #: Requests to the metadata store: reads, and writes beside the bytes that go to bookies.
    reads: int


class Measuring:
    """A process whose requests are counted."""

    def __init__(self, ns: Namespace, process: Mortal) -> None:
        self.stream = ns.stream("s")
        self.figures: dict[str, Figure] = {}
        self._process = process

    async def measure(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do something and remember what it took."""
        reads, began_s = self._process.reads, time.perf_counter()
        await work()
        seconds = time.perf_counter() - began_s
        self.figures[what] = Figure(what, seconds, self._process.reads - reads)


async def measure(address: str, segments: int) -> dict[str, Figure]:
    """Write a stream of so many segments, use it in all ways, and return what they took."""
    async with mortal_namespace(address) as (ns, process):
        await ns.create_stream("s", policy=StreamPolicy(roll_entries=1, ack_quorum_size=2))
        measuring = Measuring(ns, process)
        stream = measuring.stream
        records = segments * RECORDS

        async def write() -> None:
            async with stream.writer(retention_interval_s=0) as writer:
                for first in range(0, segments, _BATCH):
                    last = min(first + _BATCH, segments)
                    for number in range(first, last):
                        await writer.append_batch(
                            [b"%0100d" % (number * RECORDS + n) for n in range(RECORDS)]
                        )

        async def read(start: object, expected: int, count: int) -> None:
            async with stream.reader(start, tail=False) as reader:
                async for batch in reader.read_batches():
                    for record in batch:
                        assert int(record.payload) == record.sequence_id == expected
                        expected += 1
                        count -= 1
                        if not count:
                            return
            assert not count

        await measuring.measure("write", write)
        await measuring.measure("read the first record", lambda: read("earliest", 0, 1))

        async def open_at_the_end() -> None:
            async with stream.reader("latest") as reader:
                assert await reader.read(wait_s=0) == []

        await measuring.measure("open a reader at the end", open_at_the_end)

        async def open_writer() -> None:
            writer = await stream.writer(takeover="force", producer="p")
            assert writer.next_sequence_id == records
            await writer.close()

        await measuring.measure("open a writer", open_writer)
        await measuring.measure("read everything", lambda: read("earliest", 0, records))
        middle = records // 2 + 1
        await find_all(measuring, middle)
        await measuring.measure("truncate half", lambda: truncate(measuring, middle))
        await measuring.measure("truncate further", lambda: truncate(measuring, middle + RECORDS))
        middle += RECORDS
        await measuring.measure(
            "read what is left", lambda: read("earliest", middle, records - middle)
        )

        async def let_go() -> None:
            report = await stream.enforce_retention()
            assert len(report.segments) == middle // RECORDS

        await measuring.measure("delete what was truncated", let_go)
        return measuring.figures


async def find_all(measuring: Measuring, middle: int) -> None:
    """Find one record by all that it has."""
    stream = measuring.stream
    async with stream.reader(SequenceId(middle), tail=False) as reader:
        batch = await anext(reader.read_batches())
    assert batch.first_sequence_id == middle
    assert batch.appended_at_ms is not None
    when = datetime.fromtimestamp(batch.appended_at_ms / 1000, UTC)

    async def by_sequence_id() -> None:
        assert await stream.find(sequence_id=middle) == batch.first_position

    async def by_txid() -> None:
        assert await stream.find(txid=batch.txids[0]) == batch.first_position

    async def by_time() -> None:
        found = await stream.find(time=when)
        # Others may have been appended in the same millisecond.
        assert found <= batch.first_position
        assert found.segment > batch.first_position.segment - 50

    await measuring.measure("find a sequence id", by_sequence_id)
    await measuring.measure("find a transaction id", by_txid)
    await measuring.measure("find a time", by_time)


async def truncate(measuring: Measuring, before: int) -> None:
    assert await measuring.stream.truncate(SequenceId(before))


def report(figures: dict[str, Figure], segments: int) -> str:
    """Return a page about them."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [
        f"| {figure.what} | {figure.seconds:.3f} s | {figure.reads:,} |"
        for figure in figures.values()
    ]
    return "\n".join(
        [
            "# A stream of many segments",
            "",
            f"{segments:,} segments of {RECORDS} records of {SIZE_BYTES} bytes, E3/Qw3/Qa2, "
            "metadata in SQLite;",
            f"client and bookies in one process, which took {memory:,.0f} MB at most; "
            f"{os.cpu_count()} cores, Python {platform.python_version()}.",
            "`tests/streams/many_segments.py` writes this page;",
            "`test_what_is_asked_of_the_metadata_store_does_not_grow_with_the_segments` holds",
            "the numbers of requests in CI.",
            "",
            "| | time | metadata reads |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


async def main(segments: int, path: Path | None) -> None:
    async with LocalCluster(bookies=3) as cluster:
        address = f"{cluster.metadata_uri}#/many"
        await Namespace.bind(address)
        text = report(await measure(address, segments), segments)
    print(text)
    if path is not None:
        path.write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.segments, arguments.report))
