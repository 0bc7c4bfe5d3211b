"""Loads streams of ours: what ``streams.py`` measures, and the processes that it does it with."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from quorumbook.env import Env
from quorumbook.errors import BackpressureError
from quorumbook.streams import Namespace, Stream, StreamPolicy, StreamWriter

#: Of an entry, by default; other logs are given the same.
BATCH_BYTES = 64 * 1024
#: Calls under way, each with as many records as an entry takes.
IN_FLIGHT = 64
#: Of small entries: as many as a writer has on their way.
IN_FLIGHT_MAX = 1000
PER_SECOND = 1000
NAMESPACE = "/messaging/bench"


def records_in_entry(size: int, batch_bytes: int = BATCH_BYTES) -> int:
    """Return how many records of a size one call takes: as many as fit into an entry."""
    return max(1, (batch_bytes - 64) // (size + 20))


def calls_under_way(batch_bytes: int) -> int:
    """Return how many calls are under way: 4 MB, if those are not too many."""
    return min(IN_FLIGHT * BATCH_BYTES // batch_bytes, IN_FLIGHT_MAX)


async def write(stream: Stream, size: int, records: int, batch_bytes: int = BATCH_BYTES) -> float:
    """Append batches, a bounded number of them under way; return records per second."""
    payloads = [os.urandom(size) for _ in range(records_in_entry(size, batch_bytes))]
    batches = records // len(payloads)
    in_flight = calls_under_way(batch_bytes)
    async with stream.writer(batch_bytes=batch_bytes, retention_interval_s=0) as writer:
        await writer.append(b"first")
        waiting: deque[asyncio.Future[Any]] = deque()
        start = time.perf_counter()
        for _ in range(batches):
            waiting.append(writer.append_batch_nowait(payloads))
            if len(waiting) == in_flight:
                await waiting.popleft()
        await asyncio.gather(*waiting)
        return batches * len(payloads) / (time.perf_counter() - start)


async def put(stream: Stream, size: int, records: int, batch_bytes: int) -> float:
    """Append records one a call, as many under way; return records per second."""
    payload = os.urandom(size)
    window = calls_under_way(batch_bytes) * records_in_entry(size, batch_bytes)
    async with stream.writer(
        batch_bytes=batch_bytes, max_pending_records=window, retention_interval_s=0
    ) as writer:
        await writer.append(b"first")
        return records / await put_all(writer, writer.put, payload, records)


async def put_all(
    writer: StreamWriter, append: Callable[[bytes], object], payload: bytes, records: int
) -> float:
    """Append records by one of a writer's calls; return the seconds until all are safe."""
    start = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                append(payload)
                break
            except BackpressureError:
                await writer.drain()
    await writer.flush()
    return time.perf_counter() - start


async def read(stream: Stream, *, by_record: bool = False, **options: Any) -> float:
    """Read everything, every payload as an object of its own; return records per second."""
    count = 0
    start = time.perf_counter()
    async with stream.reader(tail=False, **options) as reader:
        if by_record:
            async for _ in reader:
                count += 1
        else:
            async for batch in reader.read_batches():
                count += len(list(batch.payloads))
    return count / (time.perf_counter() - start)


async def read_ledgers(ns: Namespace, stream: Stream) -> float:
    """Read the stream's ledgers without looking into entries; return records per second."""
    segments = await stream.segments()
    start = time.perf_counter()
    for segment in segments:
        ledger = await ns.client.open_ledger(segment.metadata.ledger_id, recover=False)
        async with ledger:
            async for _ in ledger.read_batches():
                pass
    return sum(s.metadata.record_count for s in segments) / (time.perf_counter() - start)


async def small_segments(stream: Stream, segments: int) -> None:
    """Write so many segments of a hundred records."""
    async with stream.writer(retention_interval_s=0) as writer:
        for _ in range(segments):
            await writer.append_batch([b"r" * 100] * 100)
            await writer.roll()


# The tail: two processes -------------------------------------------------------------------


async def follow(address: str, name: str) -> None:
    """Print how long each record took to arrive, in ms."""
    ns = await Namespace.open(address, read_only=True)
    async with ns, ns.stream(name).reader() as reader:
        print("ready", flush=True)
        async for record in reader:
            if not record.payload:
                return
            print((time.monotonic_ns() - int(record.payload)) / 1e6)


async def tail(ns: Namespace, address: str, name: str, seconds: float) -> list[float]:
    """Append one record after the other at a fixed rate; return the delays at the reader."""
    await ns.create_stream(name)
    follower = await child("follow", address, name)
    async with ns.stream(name).writer() as writer:
        start = time.monotonic()
        for number in range(int(seconds * PER_SECOND)):
            await asyncio.sleep(start + number / PER_SECOND - time.monotonic())
            writer.append_nowait(b"%d" % time.monotonic_ns())
        await writer.flush()
        await writer.append(b"")
    return await delays(follower)


async def child(*words: str, script: str = __file__) -> asyncio.subprocess.Process:
    """Start this module as a process that says when it is ready."""
    command = [sys.executable, script, *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if not await process.stdout.readline():
        raise RuntimeError(f"{' '.join(command)} ended at once")
    return process


async def delays(follower: asyncio.subprocess.Process) -> list[float]:
    """Return what a follower printed, sorted, without the first half second."""
    out, _ = await follower.communicate()
    return sorted([float(line) for line in out.split()][PER_SECOND // 2 :])


# Taking over: a writer that is killed ------------------------------------------------------


async def keep_writing(address: str, name: str) -> None:
    """Append at a fixed rate until killed; print the last number that is safe."""
    async with Namespace.open(address) as ns:
        writer = await ns.stream(name).writer()
        start, number = time.monotonic(), 0
        while True:
            await asyncio.sleep(start + number / PER_SECOND - time.monotonic())
            future = writer.append_nowait(b"%d" % number)
            future.add_done_callback(lambda _, n=number: print(n, flush=True))
            number += 1


async def take_over(ns: Namespace, address: str, name: str, **how: Any) -> float:
    """Kill a writer with a second of records behind it; return how long it was until a standby's
    first record was safe, in s."""
    await ns.create_stream(name)
    doomed = await child("keep-writing", address, name)
    await asyncio.sleep(1)
    doomed.kill()
    start = time.perf_counter()
    async with ns.stream(name).writer(**how) as writer:
        await writer.append(b"here I am")
        took = time.perf_counter() - start
    out, _ = await doomed.communicate()
    safe = int(out.decode().rpartition("\n")[0].rpartition("\n")[2])
    async with ns.stream(name).reader(tail=False) as reader:
        records = [record.payload async for record in reader]
    if records[: safe + 1] != [b"%d" % n for n in range(safe + 1)]:
        raise RuntimeError(f"of {safe + 1} records that were safe not all are there")
    return took


async def measure_own(
    address: str, name: str, size: int, records: int, batch_bytes: int
) -> dict[str, float]:
    """Write a stream and read it, beside its ledgers; return records per second of each.

    It is written in two ways, a call for each entry and one for each record: the better one counts.
    """
    async with Namespace.open(address, bind=True) as ns:
        policy = StreamPolicy(roll_bytes=2**31)
        stream, other = ns.stream(name), ns.stream(f"{name}-put")
        for each in (name, f"{name}-put"):
            await ns.create_stream(each, policy=policy)
        by_record = await put(other, size, records, batch_bytes)
        return {
            "write": max(by_record, await write(stream, size, records, batch_bytes)),
            "raw": await read_ledgers(ns, stream),
            "read": await read(stream),
            "by record": await read(stream, by_record=True),
        }


def disk_rate(directory: Path, writers: int = 3, seconds: float = 1.0) -> float:
    """Return how many bytes a second a disk takes of journals that sync groups of 256 KB."""
    directory.mkdir(parents=True, exist_ok=True)
    group, groups = os.urandom(256 * 1024), [0] * writers
    start = time.perf_counter()

    def run(number: int) -> None:
        path = str(directory / f"journal{number}")
        file = Env().disk.open(path, create=True, uncached=True)
        while time.perf_counter() - start < seconds:
            offset = groups[number] * len(group)
            if offset % 2**24 == 0:
                file.allocate(offset + 2**24)
            file.write([group], offset)
            file.sync()
            groups[number] += 1
        file.close()
        os.unlink(path)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(groups) * len(group) / (time.perf_counter() - start)


def main() -> None:
    """Be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["follow", "keep-writing"])
    parser.add_argument("address")
    parser.add_argument("name")
    options = parser.parse_args()
    part = {"follow": follow, "keep-writing": keep_writing}[options.part]
    uvloop.run(part(options.address, options.name))


if __name__ == "__main__":
    main()
