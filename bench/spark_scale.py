"""Rows of ``spark.py`` about what more of something does: tasks, files, ledgers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import uvloop

import spark_load as load
import spark_many as many
from report import Figure
from spark_measure import KB, MB, Bench, said
from spark_synthetic import cross_border

#: Bytes of entries of 1 KB, and how much faster two tasks are to read them than one.
SCALED = (768 * MB, 1.7)
#: Bytes of records of 1 KB, and the segments that they are in.
READ_BACK = (512 * MB, 4)
POINTS = 20
#: Ledgers whose metadata are read, before and after most of them are made.
TABLE = (5_000, 50_000)
#: How much more a planner may hold for the ten times as many.
MAX_GROWTH = 1.1
#: Ledgers, entries of 1 KB in each, and the ledgers of those that are really read.
COUNTED = (1_000, 10_000, 50)


def scaling(bench: Bench) -> Iterator[Figure]:
    """Read the same in two tasks at once, and in one; in a session that has two cores."""
    size_bytes, goal = SCALED
    count = size_bytes // KB
    ids = uvloop.run(load.write_ledgers(bench.uri, KB, count))
    path = "ledger:" + ",".join(map(str, ids))
    start_s = bench.start_s()
    read = partial(load.read_by_spark, bench.spark, bench.uri, path)
    what = f"two tasks at once beside one, {size_bytes // MB} MB of 1 KB"
    yield bench.beside(
        f"{what}, less the {start_s:.2f} s that a read of one entry takes",
        "entries/s",
        goal,
        lambda: count / (read(tasks=2) - start_s),
        lambda: count / (read(tasks=1) - start_s),
    )
    made = partial(cross_border, bench.spark, KB, 2 * count)
    yield bench.beside(
        "the same of rows made in Spark's workers", "rows/s", None,
        lambda: 2 * count / made(tasks=2), lambda: 2 * count / made(tasks=1),
    )  # fmt: skip
    used = load.Processor(bench.spark)
    for tasks in (1, 2):
        took = []
        found = used.of(lambda tasks=tasks, took=took: took.append(read(tasks=tasks)))
        busy = ", ".join(f"{name} {s / took[0]:.2f}" for name, s in found.items() if name != "this")
        value = f"{sum(found.values()) / took[0]:.2f} ({busy})"
        yield said(f"processors that are busy of two, while tasks read: {tasks}", value)


def readback(bench: Bench) -> Iterator[Figure]:
    """Read a stream that was offloaded from its files, and the same from bookies."""
    size_bytes, segments = READ_BACK
    count = size_bytes // KB
    for name in ("on-bookies", "in-files"):
        uvloop.run(load.write_stream(bench.uri, name, load.json_like(KB), count, segments))
    plan = uvloop.run(load.plan_offload(bench.uri, "in-files", bench.work, delete_lag_s=0))
    load.run_job(bench.spark, bench.uri, plan, bench.work)

    def by_client(name: str) -> float:
        found, seconds = uvloop.run(many.read_stream(bench.uri, name))
        if found != count:
            raise RuntimeError(f"{found} records of {name}, not {count}")
        return size_bytes / MB / seconds

    def by_spark(name: str) -> float:
        path = f"stream:{name}"
        return size_bytes / MB / load.read_by_spark(bench.spark, bench.uri, path)

    what = f"{size_bytes // MB} MB of an offloaded stream read back, beside bookies"
    for title, goal, rate in (
        (f"{what}, by the client", 2, by_client),
        ("the same, through Spark", None, by_spark),
    ):
        yield bench.beside(
            title, "MB/s", goal,
            partial(rate, "in-files"), partial(rate, "on-bookies"),
        )  # fmt: skip
    points = uvloop.run(many.points_of(bench.uri, "in-files"))
    chosen = random.Random(7).choices(points, k=POINTS)
    yield bench.beside(
        f"a record somewhere in it, beside its row group read by pyarrow, {POINTS} times", "ms", 3,
        lambda: 1000 * uvloop.run(many.read_points(bench.uri, "in-files", chosen)) / POINTS,
        lambda: 1000 * many.read_groups(chosen) / POINTS,
        at_most=True,
    )  # fmt: skip


def tables(bench: Bench) -> Iterator[Figure]:
    """Read ``meta:ledgers``, and the nodes that it is made of; watch what is held for it."""
    few, all_of_them = TABLE
    start_s = bench.start_s()
    (pattern,) = uvloop.run(load.write_ledgers(bench.uri, 1, 1, ledgers=1))
    read = partial(load.read_by_spark, bench.spark, bench.uri, "meta:ledgers")
    uvloop.run(many.copy_metadata(bench.uri, pattern, range(many.FIRST, many.FIRST + few)))
    read(), read()
    before = load.held(bench.spark)
    ids = range(many.FIRST, many.FIRST + all_of_them)
    uvloop.run(many.copy_metadata(bench.uri, pattern, ids[few:]))
    yield bench.beside(
        f"meta:ledgers of {all_of_them:,} ledgers beside their nodes read by the client, less the "
        f"{start_s:.2f} s that a read of one entry takes",
        "ledgers/s",
        0.5,
        lambda: all_of_them / (read() - start_s),
        lambda: all_of_them / uvloop.run(many.read_nodes(bench.uri, ids)),
    )
    for what, after in load.held(bench.spark).items():
        value = f"{before[what] / MB:,.0f} MB of {few:,}, {after / MB:,.0f} MB of {all_of_them:,}"
        is_flat = after <= before[what] * MAX_GROWTH
        yield said(f"{what}, after meta:ledgers", value, f"≤ {MAX_GROWTH:g} times", is_flat)


def counting(bench: Bench) -> Iterator[Figure]:
    """Count the entries of closed ledgers by their metadata, and by reading some of them."""
    ledgers, entries, some = COUNTED
    ids = uvloop.run(load.write_ledgers(bench.uri, KB, some * entries, ledgers=some))
    start_s = bench.start_s()
    copies = range(many.FIRST, many.FIRST + ledgers - some)
    uvloop.run(many.copy_metadata(bench.uri, ids[0], copies))
    by_metadata = partial(many.count_by_metadata, bench.spark, bench.uri)
    by_reading = partial(many.count_by_reading, bench.spark, bench.uri, ids)
    total = ledgers * entries

    def rate(work: partial[tuple[int, float]], due: int) -> tuple[int, float]:
        found, seconds = work()
        if not due <= found <= due + 1:  # the one entry that was read to see how long it takes
            raise RuntimeError(f"{found} entries were counted, not {due}")
        return found, seconds

    def reading() -> float:
        _, seconds = rate(by_reading, some * entries)
        return total / (start_s + (seconds - start_s) * ledgers / some)

    yield bench.beside(
        f"{total:,} entries of {ledgers:,} closed ledgers counted by metadata, beside reading, of "
        f"{some} of them",
        "entries/s",
        100,
        lambda: total / rate(by_metadata, total)[1],
        reading,
    )
