"""Load generators of ``quorumbook bench``, and what they measure.

Closed loop: a fixed number of entries is in flight, and the next ones are sent when earlier ones
are acknowledged.  It finds the highest rate; its latencies say little, as it waits for a slow
system instead of complaining.  Open loop: entries are due at a fixed rate whatever happens, and
latency counts from when an entry was due, not from when it could be sent.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumbook import LedgerReader, LedgerWriter

_STAMP = struct.Struct(">q")
#: The closed loop's window is sent in so many pieces.
_PIECES = 10
_TICK_S = 0.001

now = time.perf_counter


class Latencies:
    """Durations, each with the number of entries it stands for."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def add(self, seconds: float, count: int = 1) -> None:
        """Take one duration."""
        self._samples.append((seconds, count))

    def percentiles_ms(self) -> dict[str, float]:
        """Return p50, p99 and p99.9 in milliseconds."""
        samples = sorted(self._samples)
        total = sum(count for _, count in samples)
        wanted = [("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999)]
        result: dict[str, float] = {}
        seen = 0
        for seconds, count in samples:
            seen += count
            while wanted and seen >= wanted[0][1] * total:
                result[wanted.pop(0)[0]] = round(seconds * 1e3, 4)
        return result


def summary(
    ledger_id: int, entries: int, size_bytes: int, seconds: float, latencies: Latencies
) -> dict[str, object]:
    """Return what a run is reported with."""
    return {
        "ledger_id": ledger_id,
        "entries": entries,
        "bytes": size_bytes,
        "seconds": round(seconds, 4),
        "entries_per_s": round(entries / seconds, 1),
        "bytes_per_s": round(size_bytes / seconds, 1),
        **latencies.percentiles_ms(),
    }


async def write_closed(
    ledgers: Sequence[LedgerWriter], payload: bytes, count: int, in_flight: int
) -> tuple[float, Latencies]:
    """Append as fast as acknowledgements allow, to the ledgers in turn."""
    piece = max(1, in_flight // _PIECES) if len(ledgers) == 1 else 1
    latencies = Latencies()
    window: deque[tuple[int, asyncio.Future[range]]] = deque()
    sent = waiting = turn = 0
    began = now()
    while sent < count:
        size = min(piece, count - sent)
        while waiting + size > in_flight:
            done, future = window.popleft()
            await future
            waiting -= done
        future = ledgers[turn % len(ledgers)].append_batch_nowait([payload] * size)
        future.add_done_callback(_recorder(latencies, now(), size))
        window.append((size, future))
        turn += 1
        sent += size
        waiting += size
    for _, future in window:
        await future
    return now() - began, latencies


def _recorder(
    latencies: Latencies, sent: float, size: int
) -> Callable[[asyncio.Future[range]], None]:
    return lambda _: latencies.add(now() - sent, size)


async def write_open(
    ledger: LedgerWriter,
    payloads: Callable[[float], bytes],
    count: int,
    in_flight: int,
    rate: float,
) -> tuple[float, Latencies]:
    """Append at a fixed rate; ``payloads`` makes an entry from the time it is due."""
    latencies = Latencies()
    window: deque[tuple[int, asyncio.Future[range]]] = deque()
    sent = waiting = 0
    began = now()

    def recorder(first: int, size: int) -> Callable[[asyncio.Future[range]], None]:
        def record(_: asyncio.Future[range]) -> None:
            done = now()
            for index in range(first, first + size):
                latencies.add(done - began - index / rate)

        return record

    while sent < count:
        while window and window[0][1].done():
            size, future = window.popleft()
            await future  # raises what went wrong
            waiting -= size
        due = min(count, int((now() - began) * rate) + 1)
        size = min(due - sent, in_flight - waiting)
        if size <= 0:
            await asyncio.sleep(_TICK_S)
            continue
        future = ledger.append_batch_nowait(
            [payloads(began + index / rate) for index in range(sent, sent + size)]
        )
        future.add_done_callback(recorder(sent, size))
        window.append((size, future))
        sent += size
        waiting += size
    for _, future in window:
        await future
    return now() - began, latencies


def stamped(size_bytes: int) -> Callable[[float], bytes]:
    """Make payloads that begin with the time they were due, for a reader in another process."""
    rest = bytes(max(0, size_bytes - _STAMP.size))
    # The counters of two processes share their zero only on this clock.
    shift = time.monotonic() - now()
    return lambda due: _STAMP.pack(int((due + shift) * 1e9)) + rest


def age_s(payload: bytes) -> float:
    """Return how long ago a stamped payload was due."""
    stamp: int = _STAMP.unpack_from(payload)[0]
    return time.monotonic() - stamp / 1e9


async def read_in_order(
    ledger: LedgerReader, limit: int | None = None
) -> tuple[int, int, float, Latencies]:
    """Read so many entries from a ledger's start; an entry's latency is that of its batch."""
    latencies = Latencies()
    entries = size_bytes = 0
    began = last = now()
    async for batch in ledger.read_batches(0, None if limit is None else limit - 1):
        count = len(batch)
        entries += count
        size_bytes += sum(map(len, batch.payloads))
        latencies.add(now() - last, count)
        last = now()
    return entries, size_bytes, now() - began, latencies


async def read_at_random(
    ledger: LedgerReader, count: int, in_flight: int
) -> tuple[int, int, float, Latencies]:
    """Read single entries chosen at random, several at a time."""
    latencies = Latencies()
    dice = random.Random(0)
    last = ledger.last_add_confirmed
    ids: Iterator[int] = iter([dice.randint(0, last) for _ in range(count)])
    size_bytes = 0

    async def reader() -> None:
        nonlocal size_bytes
        for entry_id in ids:
            began = now()
            size_bytes += len((await ledger.read_entry(entry_id)).payload)
            latencies.add(now() - began)

    began = now()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(reader())
    return count, size_bytes, now() - began, latencies
