"""Partitioned streams are one table, whatever their partitions are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import Query, Streams, values

from quorumbook.errors import ConfigError
from quorumbook.streams.errors import DataLossError, StreamNotFoundError
from quorumbook.streams.partitions.stream import PartitionedStream

EARLIEST = {"startingOffsets": "earliest"}


def make(streams: Streams, name: str, partitions: int) -> None:
    streams.run(PartitionedStream.create(streams.namespace, name, partitions=partitions))


def grow(streams: Streams, name: str, partitions: int) -> None:
    async def work() -> None:
        await (await PartitionedStream.open(streams.namespace, name)).grow(partitions)

    streams.run(work())


@pytest.fixture
def name(streams: Streams) -> str:
    """A partitioned stream with three records in each of two partitions."""
    name = f"parts/{uuid4().hex[:8]}"
    make(streams, name, 2)
    for number in range(2):
        streams.write(f"{name}/p{number}", [b"%d.%d" % (number, n) for n in range(3)])
    return name


def test_all_partitions_are_read_by_the_bare_name(
    read: Callable[..., list[dict[str, Any]]], name: str
) -> None:
    rows = read(f"stream:{name}")
    assert values(rows) == [b"%d.%d" % (p, n) for p in range(2) for n in range(3)]
    assert [(row["stream"], row["partition"], row["seq"]) for row in rows] == [
        (name, p, n) for p in range(2) for n in range(3)
    ]
    as_kafka = read(f"stream:{name}", compat="kafka")
    assert [(row["topic"], row["partition"], row["offset"]) for row in as_kafka] == [
        (name, p, n) for p in range(2) for n in range(3)
    ]
    # A partition by itself is a stream like any other.
    (row, *_) = read(f"stream:{name}/p1")
    assert (row["stream"], row["partition"]) == (f"{name}/p1", None)
    assert read(f"stream:{name}/p1", compat="kafka")[0]["partition"] == 0


def test_a_pattern_matches_bare_names_too_and_partitions_are_in_order(
    read: Callable[..., list[dict[str, Any]]], streams: Streams
) -> None:
    prefix = f"parts/{uuid4().hex[:8]}"
    make(streams, f"{prefix}/s", 11)
    streams.write(f"{prefix}/plain", [b"plain"])
    for number in range(11):
        streams.write(f"{prefix}/s/p{number}", [b"%d" % number])
    rows = read(None, streamPattern=f"{prefix}/[a-z]+")
    assert [(row["stream"], row["partition"]) for row in rows] == [
        (f"{prefix}/plain", None), *((f"{prefix}/s", number) for number in range(11)),
    ]  # fmt: skip
    assert {row["stream"] for row in read(None, streamPattern=f"{prefix}/s/p1.?")} == {
        f"{prefix}/s/p1", f"{prefix}/s/p10",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ({"0": 1, "1": -1}, [b"0.1", b"0.2"]),
        (2, [b"0.2", b"1.2"]),
        ({"0": -1, "1": -2}, [b"1.0", b"1.1", b"1.2"]),
    ],
)
def test_offsets_may_speak_of_partitions_as_kafkas_do(
    read: Callable[..., list[dict[str, Any]]], name: str, offsets: Any, wanted: list[bytes]
) -> None:
    assert values(read(f"stream:{name}", startingOffsets=json.dumps({name: offsets}))) == wanted


def test_offsets_of_a_partition_that_is_not_there_are_refused(
    read: Callable[..., list[dict[str, Any]]], name: str
) -> None:
    for offsets, message in (
        ({"0": 1, "7": 1}, f"names {name}/p7, which is not read"),
        ({"0": 1}, f"says nothing of {name}/p1"),
        ({"x": 1}, "'x' is not a partition"),
    ):
        with pytest.raises(ConfigError, match=message):
            read(f"stream:{name}", startingOffsets=json.dumps({name: offsets}))
    with pytest.raises(StreamNotFoundError, match="there is no stream"):
        read(f"stream:{name}/x")
    assert read(f"stream:{name}", startingOffsetsByTimestamp=json.dumps({name: 0}))


def test_partitions_that_appear_while_a_query_runs_are_read_from_their_beginning(
    cluster: Any, streams: Streams, name: str
) -> None:
    running = Query(cluster, f"stream:{name}", **EARLIEST)
    running.until(6)
    grow(streams, name, 3)
    streams.write(f"{name}/p2", [b"2.0"])
    running.until(7)
    assert (running.rows[-1]["partition"], running.rows[-1]["value"]) == (2, b"2.0")
    # What goes on from its checkpoint plans the last batch first, and knows what is a partition.
    again = Query(cluster, f"stream:{name}", checkpoint=running.checkpoint)
    last = again.rows_between(running.checkpoint[-2], running.checkpoint[-1])
    assert last == running.batches[-1]


def test_partitioned_streams_that_appear_while_a_query_runs_are_found(
    cluster: Any, streams: Streams
) -> None:
    prefix = f"parts/{uuid4().hex[:8]}"
    running = Query(cluster, streamPattern=f"{prefix}/[a-z]+")
    assert running.drain() == []
    make(streams, f"{prefix}/late", 2)
    streams.write(f"{prefix}/late/p1", [b"x"])
    running.until(1)
    assert (running.rows[0]["stream"], running.rows[0]["partition"]) == (f"{prefix}/late", 1)


def test_a_partition_that_is_deleted_is_an_error(cluster: Any, streams: Streams, name: str) -> None:
    running = Query(cluster, f"stream:{name}", **EARLIEST)
    running.until(6)
    streams.delete(f"{name}/p1")
    with pytest.raises(DataLossError, match="p1 was deleted"):
        for _ in range(1000):
            running.step()
