"""Rows of ``spark.py`` about what Spark costs whatever is read: tasks, batches, commits, rows."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import uvloop

import spark_load as load
from quorumbook.client.reading.columns import binary_column
from report import Figure
from spark_measure import KB, MB, Bench, at_least, compared, said, text, within
from spark_synthetic import (
    WIDE,
    cross_border,
    period_s,
    register,
    write_to_nothing,
)

#: Bytes of entries of 1 KB, and the part of the time that tasks may take by themselves.
PLANNED = (1024 * MB, 0.10)
#: Tasks beyond the first that are counted to see what one takes.
MORE_TASKS = 32
#: Ledgers, the entries of each, and those ledgers of which each is a task.
PACKED = (10_000, 100, 200)
#: Tasks of a frame, and the streams that each of them has rows for.
COMMITS = ((1, 1), (8, 1), (1, 64), (8, 16))
TICK_S = 0.02
#: Rows of a size, and how many a second Spark has taken: as batches, and by themselves.
BORDER = {100: (4_000_000, 2_400_000, 310_000), KB: (2_000_000, 1_160_000, 310_000)}
#: As fast as then is no goal on a machine that neighbours share.
OF_BEFORE = 0.7
#: Bytes of a batch, and how often a column of it is made.
COLUMN = (2 * MB, 100)


def overhead(bench: Bench) -> Iterator[Figure]:
    """Read a GiB as it is planned by default, and see what its tasks take by themselves."""
    size_bytes, goal = PLANNED
    ids = uvloop.run(load.write_ledgers(bench.uri, KB, size_bytes // KB))
    path = "ledger:" + ",".join(map(str, ids))
    count = load.frame_of(bench.spark, bench.uri, path).rdd.getNumPartitions()
    whole = bench.times(lambda: load.into_nothing(load.frame_of(bench.spark, bench.uri, path)))
    (few,) = uvloop.run(load.write_ledgers(bench.uri, 1, 1 + MORE_TASKS, ledgers=1))

    def one_more(work: partial[float]) -> float:
        return (work(tasks=1 + MORE_TASKS) - work(tasks=1)) / MORE_TASKS

    of_ours = partial(load.read_by_spark, bench.spark, bench.uri, f"ledger:{few}")
    of_nothing = partial(cross_border, bench.spark, 1, 0)
    each_s = statistics.median(bench.times(partial(one_more, of_ours)))
    least_s = statistics.median(bench.times(partial(one_more, of_nothing)))
    whole_s = statistics.median(whole)
    share = count * each_s / whole_s
    yield said(
        f"share of tasks by themselves in a default plan over {size_bytes // MB:,} MB of 1 KB",
        f"{count} tasks of {each_s * 1000:.0f} ms in {whole_s:.2f} s: **{share:.1%}**",
        f"< {goal:.0%}",
        share < goal,
    )
    yield said("a task of a source that has no rows", f"{least_s * 1000:.0f} ms")


def packed(bench: Bench) -> Iterator[Figure]:
    """Read very many small ledgers as they are planned, and some with a task for each."""
    ledgers, entries, some = PACKED
    ids = uvloop.run(load.write_small_ledgers(bench.uri, 100, entries, ledgers))

    def frame(ids: list[int], **options: int) -> Any:
        return load.frame_of(bench.spark, bench.uri, f"ledger:{ids[0]}-{ids[-1]}", **options)

    one_each = partial(frame, ids[:some], maxRecordsPerPartition=entries)
    if one_each().rdd.getNumPartitions() != some:
        raise RuntimeError(f"{some} ledgers are not as many tasks")
    yield bench.beside(
        f"{ledgers:,} ledgers of {entries} entries as planned, beside a task for each, of "
        f"{some} of them",
        "ledgers/s",
        20,
        lambda: ledgers / load.into_nothing(frame(ids)),
        lambda: some / load.into_nothing(one_each()),
    )


def commit(bench: Bench) -> Iterator[Figure]:
    """Write a row to each stream in each task, to ours and to a sink that does nothing."""
    register(bench.spark)
    uvloop.run(load.make_streams(bench.uri, "commit-", max(streams for _, streams in COMMITS)))
    for tasks, streams in COMMITS:
        with load.cached_rows(bench.spark, "commit-", tasks, streams) as frame:
            more = bench.times(
                lambda frame=frame: load.write_by_column(frame, bench.uri) - write_to_nothing(frame)
            )
        segments = tasks * streams
        yield within(
            f"what a commit of {tasks} tasks and {segments} segments takes beyond a sink that "
            "does nothing",
            more,
            0.150 + 0.020 * tasks + 0.001 * segments,
        )


def period(bench: Bench) -> Iterator[Figure]:
    """Follow a stream that is written, into nothing and into another; and a source of no rows."""
    register(bench.spark)
    name = bench.name("ticks")

    def run(source: str, sink: str) -> float:
        reader = bench.spark.readStream.format(source)
        if source == "quorumbook":
            reader = reader.options(metadataServiceUri=bench.uri, stream=name)
        frame = reader.load()
        if sink == "quorumbook":
            frame = frame.select("value")
        checkpoint = str(bench.work / bench.name("checkpoint"))
        writer = frame.writeStream.format(sink).option("checkpointLocation", checkpoint)
        if sink == "quorumbook":
            writer = writer.options(metadataServiceUri=bench.uri, createStream="true")
            writer = writer.option("stream", bench.name("copy"))
        return 1000 * period_s(writer)

    queries = (("quorumbook", "noop"), ("quorumbook", "quorumbook"), ("ticks", "noop"))
    with load.ticking(bench.uri, name, TICK_S):
        rounds = [[run(*query) for query in queries] for _ in range(bench.rounds)]
    what = "from batch to batch of a query, a stream"
    for title, goal, at in ((f"{what} into nothing", 1.3, 0), (f"{what} into a stream", 2.5, 1)):
        pairs = [(each[at], each[2]) for each in rounds]
        beside = f"{title}, beside a source that has no rows"
        yield compared(beside, "ms", goal, pairs, at_most=True)


def border(bench: Bench) -> Iterator[Figure]:
    """Have Spark take rows of eight columns that cost nothing to make, and make one column."""
    for size, (count, batches, rows) in BORDER.items():

        def rate(kind: str, count: int, size: int = size) -> float:
            return count / cross_border(bench.spark, size, count, WIDE, kind=kind)

        def both(count: int = count) -> tuple[float, float]:
            return rate("arrow", count), rate("tuple", count // 8)

        both()
        pairs = [both() for _ in range(bench.rounds)]
        what = f"rows of 8 columns and {text(size)} made in Spark's worker"
        goal = 5 if size == 100 else None
        yield compared(f"{what}, as batches beside tuples", "rows/s", goal, pairs)
        for kind, found, before in zip(
            ("batches", "tuples"), zip(*pairs, strict=True), (batches, rows), strict=True
        ):
            yield at_least(f"{what}, as {kind}", "rows/s", found, OF_BEFORE * before)
        yield column(bench, size)


def column(bench: Bench, size: int) -> Figure:
    """Make the column of payloads of a batch, and have pyarrow make it of views of them."""
    size_bytes, times = COLUMN
    rows = min(10_000, size_bytes // size)
    answer = memoryview(os.urandom(rows * size))
    views = [answer[at : at + size] for at in range(0, len(answer), size)]
    values, sizes = list(map(bytes, views)), [size] * rows

    def rate(make: Callable[[], Any]) -> float:
        return times * rows / load.timed(lambda: [make() for _ in range(times)])

    return bench.beside(
        f"a batch's column of {text(size)} values, beside pyarrow's of views of them",
        "values/s",
        5,
        lambda: rate(lambda: binary_column(values, sizes)),
        lambda: rate(lambda: pa.array(views, pa.binary())),
    )
