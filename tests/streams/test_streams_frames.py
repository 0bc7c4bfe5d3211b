"""Streams as tables: Arrow, pandas, Polars and DuckDB, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'quorumbook[arrow]'")

from quorumbook.errors import ConfigError  # noqa: E402
from quorumbook.streams import (  # noqa: E402
    Namespace,
    PartitionedStream,
    Record,
    SequenceId,
    Stream,
    TxId,
)
from quorumbook.streams.errors import PositionTruncatedError  # noqa: E402
from quorumbook.streams.frames import reading, records  # noqa: E402
from quorumbook.streams.stream_context import stream_context  # noqa: E402
from quorumbook.streams.tier import moving  # noqa: E402
from quorumbook.streams.tier.moving import SegmentInTier  # noqa: E402
from quorumbook.sync.streams import Namespace as BlockingNamespace  # noqa: E402
from quorumbook.sync.streams import PartitionedStream as BlockingPartitionedStream  # noqa: E402
from quorumbook.sync.streams import Stream as BlockingStream  # noqa: E402
from quorumbook.testing import LocalCluster  # noqa: E402

LARGE = bytes(range(256)) * 8000


@pytest.fixture
async def stream(ns: Namespace) -> Stream:
    """Three segments, the last one open: with keys, headers, times, and a record in chunks."""
    await ns.create_stream("a/s")
    stream = ns.stream("a/s")
    for segment in range(2):
        async with stream.writer() as writer:
            for n in range(10):
                key, headers = (b"k%d" % n, {"h": b"v"}) if n % 2 else (None, None)
                payload = b"%d.%d" % (segment, n)
                await writer.append(
                    payload, txid=100 * segment + n, key=key, headers=headers,
                    event_time_ms=1_700_000_000_000 + n if n % 3 == 0 else None,
                )  # fmt: skip
            await writer.append(LARGE, txid=100 * segment + 50)
    return stream


async def read(stream: Stream) -> list[Record]:
    async with stream.reader(tail=False) as reader:
        return [record async for record in reader]


def as_row(stream: Stream, record: Record) -> dict[str, Any]:
    time_ms = record.event_time_ms or record.appended_at_ms
    assert time_ms is not None
    segment, entry_id, slot = record.position
    headers = [{"key": name, "value": value} for name, value in record.headers.items()]
    return {
        "stream": stream.name, "partition": None, "seq": record.sequence_id, "segment": segment,
        "ledger_id": record.ledger_id, "entry_id": entry_id, "slot": slot, "txid": record.txid,
        "timestamp": datetime.fromtimestamp(time_ms / 1000, UTC), "key": record.key,
        "value": record.payload, "headers": headers or None,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [1, 7, 65_536])
async def test_a_table_has_all_that_a_reader_gets(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(reading, "MAX_ROWS", rows)
    table = await stream.to_arrow(records.SCHEMA.names)
    assert table.schema == records.SCHEMA
    assert table.to_pylist() == [as_row(stream, record) for record in await read(stream)]
    assert (await stream.to_arrow()).column_names == records.SCHEMA.names[:-1]
    batches = [batch async for batch in stream.arrow_batches(["txid", "seq"])]
    assert pa.Table.from_batches(batches).equals(table.select(["txid", "seq"]))


async def test_a_range_is_what_a_reader_has_of_it(stream: Stream) -> None:
    found = await read(stream)
    time = datetime.fromtimestamp((found[11].appended_at_ms or 0) / 1000, UTC)
    second = min(
        n for n, each in enumerate(found) if each.appended_at_ms == found[11].appended_at_ms
    )
    for start, end, expected in (
        ("earliest", "latest", found),
        ("latest", "latest", []),
        ("earliest", "earliest", []),
        (SequenceId(found[3].sequence_id), SequenceId(found[15].sequence_id), found[3:15]),
        (found[4].position, found[4].position, []),
        (found[4].position, found[12].position, found[4:12]),
        (TxId(5), TxId(103), found[5:14]),
        (time, "latest", found[second:]),
        (SequenceId(found[15].sequence_id), SequenceId(found[3].sequence_id), []),
    ):
        table = await stream.to_arrow(["value"], start=start, end=end)
        assert table["value"].to_pylist() == [each.payload for each in expected], (start, end)
    await stream.truncate(found[11].position)
    with pytest.raises(PositionTruncatedError):
        await stream.to_arrow(start=SequenceId(2))
    assert (await stream.to_arrow(["value"]))["value"].to_pylist() == [
        each.payload for each in found[11:]
    ]


async def test_no_column_is_made_that_nobody_asked_for(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("made")

    for name in set(records.SCHEMA.names) - {"seq"}:
        monkeypatch.setitem(records.MAKERS, name, never)  # type: ignore[arg-type]
    assert len(await stream.to_arrow(["seq"])) == 22
    with pytest.raises(ConfigError, match="no column 'vale'; the nearest: value"):
        await stream.to_arrow(["vale"])
    with pytest.raises(ConfigError, match="twice"):
        await stream.to_arrow(["seq", "seq"])


async def test_partitions_of_a_stream_are_one_table(ns: Namespace) -> None:
    parted = await PartitionedStream.create(ns, "p", partitions=3)
    async with parted.writer() as writer:
        for n in range(30):
            await writer.append(b"%d" % n, key=b"k%d" % n)
    table = await parted.to_arrow(["stream", "partition", "key", "value"])
    rows = table.to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(30))
    assert {row["stream"] for row in rows} == {"p"}
    assert {row["partition"] for row in rows} == {0, 1, 2}
    assert [row["partition"] for row in rows] == sorted(row["partition"] for row in rows)


async def test_segments_in_files_are_read_alike(stream: Stream, tmp_path: Path) -> None:
    before = await stream.to_arrow(records.SCHEMA.names)
    for each in await stream.segments():
        segment = SegmentInTier(context=stream_context(stream), metadata=each.metadata)
        await moving.offload(segment, str(tmp_path))
        assert await moving.delete_copy(segment, delay_s=0)
    assert (await stream.to_arrow(records.SCHEMA.names)).equals(before)


async def test_pandas_and_polars_have_the_same_rows(stream: Stream) -> None:
    table = await stream.to_arrow()
    assert (await stream.to_pandas(["seq", "txid"]))["txid"].tolist() == table["txid"].to_pylist()
    assert (await stream.to_polars())["value"].to_list() == table["value"].to_pylist()


async def test_what_is_missing_is_said_with_what_to_install(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, call in (("polars", stream.to_polars), ("pandas", stream.to_pandas)):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        with pytest.raises(ConfigError, match=rf"{name}.*pip install 'quorumbook\[arrow\]' {name}"):
            await call()


# Without asyncio -----------------------------------------------------------------------------


@pytest.fixture
def blocking(standing_cluster: LocalCluster) -> Iterator[BlockingStream]:
    address = f"{standing_cluster.metadata_uri}#/frames"
    with BlockingNamespace.open(address, bind=True) as ns:
        ns.create_stream("s", exist_ok=True)
        stream = ns.stream("s")
        if stream.last() is None:
            with stream.writer() as writer:
                for n in range(1000):
                    writer.append(b"%d" % n, key=b"k%d" % (n % 10))
        yield stream


def test_duckdb_asks_a_stream(blocking: BlockingStream) -> None:
    duckdb = pytest.importorskip("duckdb")
    records = duckdb.from_arrow(blocking.arrow_reader(["seq", "key"], start=SequenceId(100)))
    found = records.query(
        "r", "SELECT key, count(*), min(seq) FROM r GROUP BY key ORDER BY key LIMIT 2"
    ).fetchall()
    assert found == [(b"k0", 90, 100), (b"k1", 90, 101)]


def test_a_lazy_frame_of_polars_makes_what_its_query_uses(
    blocking: BlockingStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = pytest.importorskip("polars")
    asked: list[Any] = []
    make = BlockingStream.arrow_batches

    def watched(self: BlockingStream, columns: Any, **options: Any) -> Any:
        asked.append(columns)
        return make(self, columns, **options)

    monkeypatch.setattr(BlockingStream, "arrow_batches", watched)
    lazy = blocking.scan()
    assert lazy.collect_schema().names() == records.SCHEMA.names
    late = lazy.filter(pl.col("seq") >= 990).select("value").collect()
    assert late["value"].to_list() == [b"%d" % n for n in range(990, 1000)]
    assert set(asked.pop()) == {"seq", "value"}
    assert lazy.select(pl.len()).collect().item() == 1000
    assert lazy.head(3).select("seq").collect()["seq"].to_list() == [0, 1, 2]
    counted = blocking.scan(start=SequenceId(500)).group_by("key").len().collect()
    assert sorted(counted["len"].to_list()) == [50] * 10


def test_a_lazy_frame_reads_the_records_of_the_range_that_its_filters_leave(
    blocking: BlockingStream, standing_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = pytest.importorskip("polars")
    made: list[int] = []
    make = BlockingStream.arrow_batches

    def watched(self: BlockingStream, columns: Any, **options: Any) -> Any:
        for batch in make(self, columns, **options):
            made.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(BlockingStream, "arrow_batches", watched)
    seq = pl.col("seq")

    def read(query: Any, **places: Any) -> list[int]:
        made.clear()
        return list(blocking.scan(**places).filter(query).select("seq").collect()["seq"])

    assert read((seq >= 10) & (seq < 15)) == list(range(10, 15))
    assert sum(made) == 5
    assert read((seq == 3) & (pl.col("value") != b"")) == [3]
    assert sum(made) == 1
    assert read(seq > 5000) == read(seq < 0) == []
    assert sum(made) == 0
    # What is said by hand holds, and an either-or leaves nothing out.
    assert read(seq >= 10, start=SequenceId(997)) == [997, 998, 999]
    assert read((seq < 2) | (seq > 997)) == [0, 1, 998, 999]
    with BlockingNamespace.open(f"{standing_cluster.metadata_uri}#/frames", bind=True) as ns:
        ns.create_stream("cut")
        blocking = ns.stream("cut")
        with blocking.writer() as writer:
            for n in range(20):
                writer.append(b"%d" % n)
        blocking.truncate(SequenceId(10))
        assert read((seq >= 5) & (seq < 12)) == [10, 11]
        assert read(seq < 8) == []


def test_a_lazy_frame_reads_the_partitions_that_its_filters_leave(
    standing_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = pytest.importorskip("polars")
    read: list[int] = []
    make = reading.arrow_batches

    def watched(parts: Any, *given: Any, **options: Any) -> Any:
        read.extend(part.partition for part in parts)
        return make(parts, *given, **options)

    monkeypatch.setattr(reading, "arrow_batches", watched)
    partition = pl.col("partition")
    with BlockingNamespace.open(f"{standing_cluster.metadata_uri}#/frames", bind=True) as ns:
        stream = BlockingPartitionedStream.create(ns, "parts", partitions=4)
        with stream.writer() as writer:
            for n in range(4):
                writer.append(b"%d" % n, partition=n)
        for query, wanted in (
            (partition == 2, [2]),
            ((partition >= 1) & (partition < 3), [1, 2]),
            ((partition > 2) & (pl.col("value") != b""), [3]),
            ((partition == 0) | (partition == 3), [0, 1, 2, 3]),
            (partition > 7, []),
        ):
            read.clear()
            found = stream.scan().filter(query).select("value").collect()["value"].to_list()
            assert read == wanted
            assert set(found) <= {b"%d" % n for n in wanted}
            assert len(found) == (2 if len(wanted) == 4 else len(wanted))
        assert len(stream.scan(start="latest").collect()) == 0
        assert len(stream.scan().select("value").collect()) == 4


def test_the_blocking_twin_returns_the_same(blocking: BlockingStream) -> None:
    table = blocking.to_arrow(["seq"])
    assert table["seq"].to_pylist() == list(range(1000))
    assert len(blocking.to_pandas(["seq"])) == len(blocking.to_polars(["seq"])) == 1000
    assert pa.Table.from_batches(blocking.arrow_batches(["seq"])).num_rows == 1000
