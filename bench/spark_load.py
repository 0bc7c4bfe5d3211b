"""Loads of ``spark.py``: what is read and written through Spark, and by the client beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from pyspark.sql.streaming.datasource import ReadAllAvailable

import quorumbook
from quorumbook.env.tasks import gather_bounded
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import Limits, run_plan
from quorumbook.spark.jobs.frame import JobPlan, Values
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.options import AuditOptions, OffloadOptions
from quorumbook.spark.jobs.upkeep import audit, tier
from quorumbook.spark.options import Use
from quorumbook.spark.pool import connected
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.schema import LEDGER_COLUMNS, STREAM_COLUMNS, struct_of
from quorumbook.spark.source.tail import TailReader
from quorumbook.streams import Namespace
from quorumbook.streams.metadata.address import DEFAULT_PATH
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier import moving

_IN_FLIGHT = 64
#: Batches of a query that are slower than those that follow.
_WARM_BATCHES = 10
_PER_BATCH = 1000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def timed(work: Callable[[], Any]) -> float:
    """Run something; return seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def address(uri: str) -> str:
    """Return the address of the streams."""
    return f"{uri}#{DEFAULT_PATH}"


async def bind(uri: str) -> None:
    """Make the place where streams are."""
    async with Namespace.open(address(uri), bind=True):
        pass


def _connection(uri: str) -> Connection:
    return Connection(metadata_uri=uri, namespace_path=DEFAULT_PATH)


def let_go(uri: str) -> None:
    """Close what planners in this process hold of a cluster that is about to go."""
    cluster = connected(_connection(uri))
    cluster.run(cluster.client.close)


def json_like(size: int) -> list[bytes]:
    """Return bodies such as programs log: 2,000 different ones, which compress to about half."""
    return [
        (b'{"id": %d, "name": "entry", "data": "%s"' % (n, os.urandom(size // 4).hex().encode()))
        .ljust(size - 1, b" ")[: size - 1] + b"}"
        for n in range(2000)
    ]  # fmt: skip


# The client ----------------------------------------------------------------------------------


async def write_ledgers(uri: str, size: int, count: int, ledgers: int = 2) -> list[int]:
    """Write closed ledgers of entries of one size, and return their ids."""
    ids = []
    payload = os.urandom(size)
    async with quorumbook.connect(uri) as client:
        for _ in range(ledgers):
            async with client.create_ledger(max_pending_entries=4096) as writer:
                for first in range(0, count // ledgers, _PER_BATCH):
                    due = min(_PER_BATCH, count // ledgers - first)
                    await asyncio.gather(*(writer.append(payload) for _ in range(due)))
                ids.append(writer.id)
    return ids


async def write_small_ledgers(uri: str, size: int, count: int, ledgers: int) -> list[int]:
    """Write many closed ledgers of so many entries each, and return their ids."""
    payload = os.urandom(size)
    async with quorumbook.connect(uri) as client:

        async def write_one(_: int) -> int:
            async with client.create_ledger() as writer:
                await asyncio.gather(*(writer.append(payload) for _ in range(count)))
                return writer.id

        return sorted(await gather_bounded(write_one, range(ledgers)))


async def read_ledgers(uri: str, ids: Sequence[int]) -> float:
    """Read ledgers and do nothing with the payloads; return entries per second."""
    count = 0
    async with quorumbook.connect(uri) as client:
        begin = time.perf_counter()
        for ledger_id in ids:
            async with client.open_ledger(ledger_id) as reader:
                async for batch in reader.read_batches():
                    count += len(batch)
        return count / (time.perf_counter() - begin)


async def write_stream(
    uri: str, name: str, payloads: Sequence[bytes], count: int, segments: int = 1
) -> float:
    """Write sealed segments of a stream, of these payloads again and again; return records/s.

    As many calls are under way, each with the records of one entry, as the fastest writers have.
    """
    per_entry = max(1, (64 * 1024 - 64) // (len(payloads[0]) + 20))
    async with Namespace.open(address(uri)) as namespace:
        await namespace.create_stream(name)
        waiting: list[asyncio.Future[Any]] = []
        begin = time.perf_counter()
        async with namespace.stream(name).writer(retention_interval_s=0) as writer:
            for _ in range(segments):
                for first in range(0, count // segments, per_entry):
                    at = first % len(payloads)
                    due = min(per_entry, count // segments - first)
                    part = (payloads[at:] + payloads[:at])[:due]
                    waiting.append(writer.append_batch_nowait(part))
                    if len(waiting) == _IN_FLIGHT:
                        await waiting.pop(0)
                await asyncio.gather(*waiting)
                waiting.clear()
                await writer.roll()
        return count / (time.perf_counter() - begin)


async def make_streams(uri: str, prefix: str, count: int) -> None:
    """Make streams without a record."""
    async with Namespace.open(address(uri)) as namespace:
        for number in range(count):
            await namespace.create_stream(f"{prefix}{number}")


async def remove_files(uri: str, stream: str) -> None:
    """Forget that a stream's segments were offloaded, and remove their files."""
    async with Namespace.open(address(uri)) as namespace:
        found = namespace.stream(stream)
        for segment in await found.segments():
            await moving.remove(
                moving.SegmentInTier(context=stream_context(found), metadata=segment.metadata)
            )


async def ledgers_of(uri: str, stream: str) -> str:
    """Return the path of the ledgers that a stream's segments are in."""
    async with Namespace.open(address(uri)) as namespace:
        segments = await namespace.stream(stream).segments()
        return "ledger:" + ",".join(str(segment.metadata.ledger_id) for segment in segments)


@contextlib.contextmanager
def open_streams(uri: str, prefix: str, count: int) -> Iterator[None]:
    """Keep so many streams open whose writers have written a record each."""

    async def hold(is_ready: threading.Event, is_over: asyncio.Event) -> None:
        async with (
            Namespace.open(address(uri)) as namespace,
            contextlib.AsyncExitStack() as stack,
        ):
            for number in range(count):
                await namespace.create_stream(f"{prefix}{number:04d}")
                stream = namespace.stream(f"{prefix}{number:04d}")
                writer = await stack.enter_async_context(stream.writer(retention_interval_s=0))
                await writer.append(b"first")
            is_ready.set()
            await is_over.wait()

    with _beside(hold):
        yield


@contextlib.contextmanager
def ticking(uri: str, name: str, period_s: float) -> Iterator[None]:
    """Append the time, in ns since 1970, to a stream again and again."""

    async def tick(is_ready: threading.Event, is_over: asyncio.Event) -> None:
        async with Namespace.open(address(uri)) as namespace:
            await namespace.create_stream(name)
            async with namespace.stream(name).writer(retention_interval_s=0) as writer:
                while not is_over.is_set():
                    await writer.append(b"%d" % time.time_ns())
                    is_ready.set()
                    await asyncio.sleep(period_s)

    with _beside(tick):
        yield


@contextlib.contextmanager
def _beside(work: Callable[[threading.Event, asyncio.Event], Any]) -> Iterator[None]:
    """Run something on a loop in a thread of its own, from when it says it is ready."""
    is_ready = threading.Event()
    loop = uvloop.new_event_loop()
    is_over = asyncio.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            loop.run_until_complete(work(is_ready, is_over))
        except BaseException as error:
            failed.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        is_ready.wait()
        if failed:
            raise failed[0]
        yield
    finally:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()


# Spark ---------------------------------------------------------------------------------------


def frame_of(spark: Any, uri: str, path: str, **options: Any) -> Any:
    """Return the frame of a path, planned as options say."""
    reader = spark.read.format("quorumbook").option("metadataServiceUri", uri)
    return reader.options(**options).load(path)


def into_nothing(frame: Any) -> float:
    """Have Spark make all rows of a frame, for nobody; return seconds."""
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def read_by_spark(spark: Any, uri: str, path: str, tasks: int = 1) -> float:
    """Read a path in one task, or in some, into nothing; return seconds."""
    planned = {"targetPartitionBytes": "10G", "minPartitions": tasks}
    return into_nothing(frame_of(spark, uri, path, **planned))


def write_parquet(
    spark: Any,
    uri: str,
    path: str,
    target: Path,
    columns: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
) -> float:
    """Write a path's rows with Spark's Parquet writer; return seconds.

    Args:
        spark: The session.
        uri: Where the cluster is.
        path: What is read.
        target: The directory of the files; removed again.
        columns: Only these; empty: all that are there by default.
        options: Of the writer; all as Spark has it by default if not given.
    """
    reader = spark.read.format("quorumbook").option("metadataServiceUri", uri)
    if columns:
        reader = reader.schema(struct_of(LEDGER_COLUMNS, columns))
    frame = reader.option("targetPartitionBytes", "10G").load(path)
    writer = frame.write.options(**options or {})
    seconds = timed(lambda: writer.parquet(str(target)))
    shutil.rmtree(target)
    return seconds


@contextlib.contextmanager
def cached_frame(spark: Any, size: int, count: int, tasks: int = 1) -> Iterator[Any]:
    """Hold a frame in memory, of a partition for each task, with a column of one size's values."""
    value = f"encode(rpad(cast(id as string), {size}, 'x'), 'utf-8') AS value"
    frame = spark.range(0, count, 1, tasks).selectExpr(value).cache()
    frame.count()
    try:
        yield frame
    finally:
        frame.unpersist()


@contextlib.contextmanager
def cached_rows(spark: Any, prefix: str, tasks: int, streams: int) -> Iterator[Any]:
    """Hold a frame in memory whose partitions have a row each for every one of some streams."""
    stream = f"concat('{prefix}', id % {streams}) AS stream"
    rows = spark.range(0, tasks * streams, 1, tasks)
    frame = rows.selectExpr(stream, "cast('x' AS binary) AS value").cache()
    frame.count()
    try:
        yield frame
    finally:
        frame.unpersist()


def write_by_column(frame: Any, uri: str) -> float:
    """Write a frame to the streams that its rows name; return seconds."""
    writer = frame.write.format("quorumbook").mode("append").option("metadataServiceUri", uri)
    return timed(writer.save)


def write_by_spark(frame: Any, uri: str, stream: str, count: int) -> float:
    """Write a frame to a new stream; return rows per second."""
    options = {"metadataServiceUri": uri, "createStream": "true"}
    writer = frame.write.format("quorumbook").mode("append").options(**options)
    return count / timed(lambda: writer.save(f"stream:{stream}"))


async def plan_offload(
    uri: str, stream: str, directory: Path, delete_lag_s: float = 3600
) -> JobPlan:
    """Plan to move all of a stream into files; bookies keep theirs for some time."""
    async with Namespace.open(address(uri)) as namespace:
        options = OffloadOptions(streams=(stream,), to=str(directory), delete_lag_s=delete_lag_s)
        return await tier.plan_offload(namespace, options)


async def plan_audit(uri: str, ids: Sequence[int]) -> JobPlan:
    """Plan to audit ledgers."""
    async with quorumbook.connect(uri) as client:
        return await audit.plan(client, AuditOptions(ledgers=",".join(map(str, ids))))


def run_job(spark: Any, uri: str, plan: JobPlan, directory: Path) -> list[Values]:
    """Run a job's plan on Spark, and return the results of its units."""
    journal = JobJournal.begin(str(directory), plan.job, {})
    report = run_plan(spark, _connection(uri), plan, journal, Limits())
    if report.errors:
        raise RuntimeError(f"{plan.job}: {report.errors}")
    return list(report.results.values())


# Queries -------------------------------------------------------------------------------------


def latest_offsets(uri: str, pattern: str, count: int, times: int) -> list[float]:
    """Ask the planner of so many streams again and again where they end; return seconds."""
    options = ReadOptions.of({"metadataServiceUri": uri, "streamPattern": pattern}, Use.READ_STREAM)
    reader = TailReader(options, struct_of(STREAM_COLUMNS, ("value",)))
    first = timed(reader.initialOffset)
    start = reader.initialOffset()
    if len(start["s"]) != count:
        raise RuntimeError(f"{len(start['s'])} streams are looked at, not {count}")
    everything = ReadAllAvailable()
    return [first, *(timed(lambda: reader.latestOffset(start, everything)) for _ in range(times))]


def delays(spark: Any, uri: str, stream: str, count: int) -> list[float]:
    """Follow a stream that is written, and return the sorted ages of so many rows as they come."""
    found: list[float] = []

    def take(frame: Any, batch: int) -> None:
        rows = frame.collect()
        now_ns = time.time_ns()
        if batch >= _WARM_BATCHES:
            found.extend((now_ns - int(row.value)) / 1e9 for row in rows)

    with ticking(uri, stream, 0.05):
        reader = spark.readStream.format("quorumbook").option("metadataServiceUri", uri)
        query = reader.load(f"stream:{stream}").select("value").writeStream.foreachBatch(take)
        running = query.trigger(processingTime="0 seconds").start()
        try:
            while len(found) < count and running.isActive:
                time.sleep(0.1)
        finally:
            running.stop()
    return sorted(found)


def watched_copy(spark: Any, uri: str, stream: str, checkpoint: Path) -> dict[str, list[int]]:
    """Copy a stream into another by a query; return what was held after each batch.

    By process: Spark's heap after a collection, the Python processes below it, and this one.
    """
    found: dict[str, list[int]] = {}
    reader = spark.readStream.format("quorumbook").options(
        metadataServiceUri=uri, startingOffsets="earliest", maxRecordsPerTrigger="500000"
    )
    frame = reader.load(f"stream:{stream}").select("value")
    writer = frame.writeStream.format("quorumbook").options(
        metadataServiceUri=uri, createStream="true", checkpointLocation=str(checkpoint)
    )
    query = writer.trigger(availableNow=True).option("stream", f"{stream}-copy").start()
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            for what, size in held(spark).items():
                found.setdefault(what, []).append(size)
        time.sleep(0.1)
    query.awaitTermination()
    return found


# Processes -----------------------------------------------------------------------------------


class Processor:
    """Seconds of processor time that this process, Spark's and bookies' use."""

    def __init__(self, spark: Any) -> None:
        java = spark._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001
        workers = below(java)
        bookies = set(below(os.getpid())) - {java, *workers}
        self._groups = {"this": [os.getpid()], "jvm": [java], "worker": workers}
        self._groups["bookies"] = [pid for pid in bookies if b"bookie" in _command(pid)]

    def of(self, work: Callable[[], Any]) -> dict[str, float]:
        """Run something; return the seconds of each group."""
        before = self._now()
        work()
        return {name: seconds - before[name] for name, seconds in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: sum(map(_processor_s, pids)) for name, pids in self._groups.items()}


def _processor_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def held(spark: Any) -> dict[str, int]:
    """Return the bytes that Spark's processes hold, its heap after a collection."""
    java = spark._jvm.java.lang  # noqa: SLF001 - the only way there
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    return {
        "Spark's heap": runtime.totalMemory() - runtime.freeMemory(),
        "its Python workers together": sum(
            map(memory_of, below(java.ProcessHandle.current().pid()))
        ),
        "the driver's Python": memory_of(os.getpid()),
    }


def memory_of(pid: int) -> int:
    """Return the bytes that a process has in memory."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and what those have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (entry / "stat").read_text()
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
