"""What is counted of streams, and how an application and the auditor show it."""

from __future__ import annotations

import asyncio
import re
import uuid

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from doubles.inside import pump_of
from quorumbook.autorecovery.audits.stream_retention import StreamRetention
from quorumbook.client.writing.writer import stop_writer
from quorumbook.errors import NotEnoughBookiesError
from quorumbook.streams import STREAM_METRICS, Namespace, Stream, StreamPolicy
from quorumbook.streams.errors import WriterFencedError
from quorumbook.streams.metrics import StreamMetrics, StreamNumbers
from quorumbook.streams.stream_context import stream_context


def shown(collector: object) -> dict[tuple[str, str], float]:
    """Return the samples of a collector, by name and labels as they are printed."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    found = [re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line) for line in lines if line[0] != "#"]
    return {(each[1], each[2] or ""): float(each[3]) for each in found if each}


def of(stream: Stream, name: str, *more: str) -> float:
    labels = {
        "namespace": stream_context(stream).nodes.paths.namespace,
        "stream": stream.name,
        **dict(word.split("=") for word in more),
    }
    wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return shown(STREAM_METRICS).get((name, wanted), 0.0)


async def made(ns: Namespace, **policy: object) -> Stream:
    name = f"m{uuid.uuid4().hex}"
    await ns.create_stream(name, policy=StreamPolicy(**policy))
    return ns.stream(name)


async def test_writers_and_readers_are_counted(ns: Namespace) -> None:
    stream = await made(ns)
    async with stream.writer(retention_interval_s=0) as writer:
        await writer.append(b"x" * 100)
        await writer.roll()
        await writer.append_batch([b"y" * 100] * 9)
        assert of(stream, "stream_writer_records_total") == 10
        assert of(stream, "stream_writer_entries_total") == 2
        assert of(stream, "stream_writer_bytes_total") > 1000
        assert of(stream, "stream_writer_open") == 1
        assert of(stream, "stream_writer_segments_completed_total") == 1
        assert of(stream, "stream_writer_append_seconds_count") == 10
        assert of(stream, "stream_writer_append_seconds_sum") > 0
        assert of(stream, "stream_writer_append_seconds_bucket", "le=+Inf") == 10
        await writer.flush()
        async with stream.reader() as reader:
            assert len(await reader.read(10, wait_s=None)) <= 10
            async with asyncio.timeout(60):
                while of(stream, "stream_reader_records_total") < 10:
                    await reader.read(10)
                # Nothing else is appended, so this stays.
                while not of(stream, "stream_reader_idle", "reason=caught_up"):
                    await reader.read(1, wait_s=0.01)
            assert of(stream, "stream_reader_batches_total") == 2
            assert of(stream, "stream_reader_lag_seconds") == 0
            assert of(stream, "stream_reader_open") == 1
    assert of(stream, "stream_writer_segments_completed_total") == 2
    assert of(stream, "stream_writer_open") == of(stream, "stream_reader_open") == 0
    assert of(stream, "stream_writer_records_total") == 10


async def test_a_reader_that_does_not_keep_up_has_a_lag(ns: Namespace) -> None:
    stream = await made(ns)
    async with stream.writer(retention_interval_s=0) as writer, stream.reader() as reader:
        for _ in range(3):
            await writer.append(b"x")
        await writer.flush()
        await anext(reader)
        await asyncio.sleep(0.002)
        assert of(stream, "stream_reader_lag_seconds") > 0


async def test_what_a_failed_segment_lacks_is_counted_as_appended_again(ns: Namespace) -> None:
    stream = await made(ns)
    async with stream.writer(retention_interval_s=0) as writer:
        await writer.append(b"safe")
        future = writer.append_batch_nowait([b"x"] * 5)
        await asyncio.sleep(0)  # packed, and about to leave
        ledger = pump_of(writer).segments._ledger  # the ledger that is written now
        assert ledger is not None
        stop_writer(ledger, NotEnoughBookiesError("all are gone"))
        await future
        assert of(stream, "stream_writer_reappended_records_total") == 5
        assert of(stream, "stream_writer_records_total") == 6
        assert of(stream, "stream_writer_append_seconds_count") == 6


async def test_a_writer_that_is_pushed_out_is_counted(ns: Namespace, other: Namespace) -> None:
    stream = await made(ns)
    old = await stream.writer(retention_interval_s=0)
    await old.append(b"1")
    async with other.stream(stream.name).writer(takeover="force", retention_interval_s=0):
        with pytest.raises(WriterFencedError):
            await old.append(b"2")
    assert of(stream, "stream_writer_fenced_total") == 1
    await old.abort()


async def test_the_auditor_shows_lags_orphans_and_what_retention_deleted(ns: Namespace) -> None:
    stream = await made(ns, retain_records=1)
    async with stream.writer(retention_interval_s=0) as writer:
        for payload in b"a", b"b", b"c":
            await writer.append(payload)
            await writer.roll()
    cursor = await stream.cursor("slow", start="earliest")
    retention = StreamRetention(ns.client, [ns.path], 600)
    await retention.look(ns.path)

    def value(name: str, labels: str = "") -> float | None:
        class Collector:
            collect = staticmethod(retention.found.families)

        wanted = f'{labels}namespace="{ns.path}"' + (f',stream="{stream.name}"' if labels else "")
        return shown(Collector()).get((name, wanted))

    assert value("stream_retention_segments_deleted") == 2
    assert value("stream_retention_records_deleted") == 2
    assert value("stream_orphan_ledgers") == 0
    assert value("stream_cursor_lag_records", 'cursor="slow",') == 1
    assert (value("stream_cursor_lag_bytes", 'cursor="slow",') or 0) > 0
    async with stream.reader() as reader:
        record = await anext(reader)
    await cursor.commit(record.position)
    await retention.look(ns.path)
    assert value("stream_cursor_lag_records", 'cursor="slow",') == 0
    retention.found.forget()
    assert value("stream_cursor_lag_records", 'cursor="slow",') is None
    assert value("stream_retention_segments_deleted") == 2


def test_streams_that_nobody_has_open_are_forgotten_beyond_a_thousand() -> None:
    class Reader:
        read_ahead_bytes, lag_s, idle_reason = 7, 1.5, "caught_up"

    metrics, reader = StreamMetrics(), Reader()
    metrics.of("/n", "open").readers.add(reader)
    for number in range(1500):
        metrics.of("/n", str(number)).records_written = number
    found = shown(metrics)
    records = [labels for name, labels in found if name == "stream_writer_records_total"]
    assert len(records) == 1000
    assert found["stream_reader_read_ahead_bytes", 'namespace="/n",stream="open"'] == 7
    assert found["stream_writer_records_total", 'namespace="/n",stream="1499"'] == 1499


def test_the_append_histogram_counts_records_below_each_bound() -> None:
    metrics = StreamMetrics()
    numbers: StreamNumbers = metrics.of("/n", "s")
    numbers.on_stored(1, 10, 1000, 1_000_000)
    numbers.on_stored(2, 5, 500, 3_000_000)
    numbers.on_stored(1, 1, 100, 99_000_000_000)
    found = shown(metrics)
    name = "stream_writer_append_seconds_bucket"
    counts = {
        le: found[name, f'le="{le}",namespace="/n",stream="s"']
        for le in ("0.001", "0.0025", "0.005", "60.0", "+Inf")
    }
    assert counts == {"0.001": 10, "0.0025": 10, "0.005": 15, "60.0": 15, "+Inf": 16}
