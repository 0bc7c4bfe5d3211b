"""Loads of ``spark_scale.py``: many ledgers that are metadata only, and streams in files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import functions as f

import quorumbook
import spark_load as load
from quorumbook.client.context import client_store
from quorumbook.env.tasks import gather_bounded
from quorumbook.ids import LedgerId
from quorumbook.metadata.cluster import read_layout
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.paths import TreePaths
from quorumbook.streams import Namespace, Position
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.tier.part_file import PartFile

#: Ids of ledgers whose metadata are copies of another's; no generator gets so far.
FIRST: LedgerId = 1_000_000


class Point(NamedTuple):
    """Where a record is in a stream and in its files."""

    position: Position
    path: str
    group: int


# Metadata ------------------------------------------------------------------------------------


async def copy_metadata(uri: str, ledger_id: LedgerId, ids: Sequence[LedgerId]) -> None:
    """Have ledgers be known that are like another one; bookies have nothing of them."""
    async with quorumbook.connect(uri) as client:
        pattern = await client.ledger_metadata(ledger_id)
        ledgers = LedgerManager(client_store(client))

        async def make(each: LedgerId) -> None:
            await ledgers.create(dataclasses.replace(pattern, ledger_id=each))

        await gather_bounded(make, ids)


async def read_nodes(uri: str, ids: Sequence[LedgerId]) -> float:
    """Read the nodes of ledgers' metadata, without looking into them; return seconds."""
    async with quorumbook.connect(uri) as client:
        store = client_store(client)
        paths, kind = TreePaths(store.ledgers_root), (await read_layout(store)).kind
        begin = time.perf_counter()
        await gather_bounded(lambda each: store.get(paths.ledger(kind, each)), ids)
        return time.perf_counter() - begin


def count_by_metadata(spark: Any, uri: str) -> tuple[int, float]:
    """Return how many entries all closed ledgers have, and seconds."""
    frame = load.frame_of(spark, uri, "meta:ledgers").where("state = 'closed'")
    return _counted(frame.select(f.sum(f.col("last_entry") + 1)))


def count_by_reading(spark: Any, uri: str, ids: Sequence[LedgerId]) -> tuple[int, float]:
    """Return how many entries some ledgers have, and seconds; payloads are no column."""
    reader = spark.read.format("quorumbook").schema("entry_id long")
    reader = reader.options(metadataServiceUri=uri, targetPartitionBytes="10G")
    frame = reader.load("ledger:" + ",".join(map(str, ids)))
    return _counted(frame.select(f.count("*")))


def _counted(frame: Any) -> tuple[int, float]:
    begin = time.perf_counter()
    ((found,),) = frame.collect()
    return found, time.perf_counter() - begin


# Streams -------------------------------------------------------------------------------------


async def read_stream(uri: str, name: str) -> tuple[int, float]:
    """Read a stream and do nothing with the records; return how many there are, and seconds."""
    count = 0
    async with Namespace.open(load.address(uri)) as namespace:
        begin = time.perf_counter()
        async with namespace.stream(name).reader(tail=False) as reader:
            async for batch in reader.read_batches():
                count += len(batch)
        return count, time.perf_counter() - begin


async def points_of(uri: str, name: str) -> list[Point]:
    """Return the first record of every row group of a stream's files."""
    found = []
    async with Namespace.open(load.address(uri)) as namespace:
        nodes = TierNodes(stream_context(namespace.stream(name)).nodes)
        for number in await nodes.numbers():
            stored = await nodes.read(number)
            assert stored is not None
            for part in stored.manifest.parts:
                file = PartFile(stored.manifest.path(part))
                found += [
                    Point(Position(number, file.first_of(group), 1), file.path, group)
                    for group in file.groups
                ]
                file.close()
    return found


async def read_points(uri: str, name: str, points: Sequence[Point]) -> float:
    """Read one record at each place, each with a reader of its own; return seconds."""
    async with Namespace.open(load.address(uri)) as namespace:
        begin = time.perf_counter()
        for point in points:
            start = point.position
            end = start._replace(slot=start.slot + 1)
            async with namespace.stream(name).reader(start, end=end, tail=False) as reader:
                found = [record.position async for record in reader]
            if found != [start]:
                raise RuntimeError(f"{found} came, not {start}")
        return time.perf_counter() - begin


def read_groups(points: Sequence[Point]) -> float:
    """Read the row group of each place with pyarrow alone; return seconds."""
    begin = time.perf_counter()
    for point in points:
        with pq.ParquetFile(point.path) as file:
            file.read_row_group(point.group, use_threads=False)
    return time.perf_counter() - begin
