"""``make bench-spark``: measure reading, writing and jobs through Spark, beside what bounds them.

    make bench-spark                          # all rows, some minutes; writes docs/reports/spark.md
    make bench-spark ROWS=read,sink ROUNDS=5  # these anew, the others as they were measured last

Everything runs on this machine, bookies in processes of their own.  What is compared runs in turn,
round by round; a ratio is the median of the rounds' own ratios.  Spark runs on ``local[1]``, so
that one task stands beside one client, but where two tasks are compared with one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

import report
import spark_load as load
from quorumbook.spark import spark_session
from quorumbook.spark.request.planning import Piece, plan
from quorumbook.testing import LocalCluster
from report import Figure
from spark_costs import border, commit, overhead, packed, period
from spark_jobs import analytics
from spark_kafka import connector_jars, kafka
from spark_measure import KB, MB, Bench, Row, compared, said, text, within
from spark_scale import counting, readback, scaling, tables
from spark_synthetic import cross_border
from systems import Missing

HERE = Path(__file__).resolve().parent
#: Bytes of entries of each size, and the part of the client's rate that is to be reached.
READS = {100: (256 * MB, 0.75), KB: (1536 * MB, 0.85), 10 * KB: (1536 * MB, 0.90)}
#: Until the JVM has compiled what a query runs through, which it does on the same processors.
WARM_READS = 4
AUDITS = {100: (32 * MB, None), KB: (256 * MB, 0.8)}
SINKS = {100: (2_000_000, None), KB: (400_000, 0.75)}
#: Bytes of records of 1 KB, the segments that they are in, and the stream.
OFFLOADED = (1024 * MB, 8, "to-parquet")
ENTRY_COLUMNS = ("ledger_id", "entry_id", "lac", "cum_length", "digest", "value")
ZSTD_1 = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
STREAMS = 1000
TICKS = 100
#: Of the query that memory is watched in, and how much it may grow after its first quarter.
RECORDS = 10_000_000
MAX_GROWTH = 1.1

NOTES = (
    "three bookies in processes of their own, metadata in SQLite, E3/Qw3/Qa2, CRC32C, in "
    "streams CRC-32; Spark `local[1]`, for two tasks beside one `local[2]`, its driver with 2 GB "
    "of heap; planning, a task's start and the commit count",
    "what is compared ran in turn, once to get warm and then round by round; rates are medians, "
    "a ratio is the median (lowest to highest) of the rounds' own ratios",
    "the client and the stream's writer run on uvloop, and do nothing with the payloads",
)


# Rows ----------------------------------------------------------------------------------------


def read(bench: Bench) -> Iterator[Figure]:
    """Read ledgers in one task, and with the client."""
    for size, (size_bytes, goal) in READS.items():
        count = size_bytes // size
        ids = uvloop.run(load.write_ledgers(bench.uri, size, count))
        path = "ledger:" + ",".join(map(str, ids))
        start_s = bench.start_s()
        whole = partial(load.read_by_spark, bench.spark, bench.uri, path)
        border = partial(cross_border, bench.spark, size, count)
        for _ in range(WARM_READS):
            whole()
        border()
        rounds = [
            (
                count / (whole() - start_s),
                uvloop.run(load.read_ledgers(bench.uri, ids)),
                count / (border() - start_s),
            )
            for _ in range(bench.rounds)
        ]
        title = f"batch read of {size_bytes // MB} MB beside the client, {text(size)} entries"
        yield compared(
            f"{title}, less the {start_s:.2f} s that a read of one entry takes",
            "entries/s",
            goal,
            [(ours, client) for ours, client, _ in rounds],
        )
        yield compared(
            f"the same beside the client, and then Spark alone with such rows, {text(size)}",
            "entries/s",
            None,
            [(ours, 1 / (1 / client + 1 / alone)) for ours, client, alone in rounds],
        )
        alone = statistics.median([alone for *_, alone in rounds])
        yield said(
            f"Spark alone, the same rows made in its worker, {text(size)}", f"{alone:,.0f} rows/s"
        )
        yield processor(bench, whole, ids, text(size), count)


def processor(
    bench: Bench, by_spark: Callable[[], Any], ids: list[int], size: str, count: int
) -> Figure:
    """Say what an entry costs of which process, however many processors there are."""
    used = load.Processor(bench.spark)
    client = used.of(lambda: uvloop.run(load.read_ledgers(bench.uri, ids)))
    spark = used.of(by_spark)
    us = {name: 1e6 * seconds / count for name, seconds in spark.items()}
    value = (
        f"client {1e6 * client['this'] / count:.2f} us, bookies {us['bookies']:.2f} us; "
        f"Spark's worker {us['worker']:.2f} us, its JVM {us['jvm']:.2f} us"
    )
    return Figure(f"processor time of an entry of {size}", value, "-", None)


def sink(bench: Bench) -> Iterator[Figure]:
    """Write a frame to a stream, and the same records with a stream's writer."""
    for size, (count, goal) in SINKS.items():
        payloads = [(b"%d" % number).ljust(size, b"x") for number in range(2000)]

        def by_client(payloads: list[bytes] = payloads, count: int = count) -> float:
            return uvloop.run(load.write_stream(bench.uri, bench.name("raw"), payloads, count))

        with load.cached_frame(bench.spark, size, count) as frame:

            def by_spark(frame: Any = frame, count: int = count) -> float:
                return load.write_by_spark(frame, bench.uri, bench.name("sink"), count)

            title = f"sink beside a stream's writer, {text(size)} records"
            yield bench.beside(title, "records/s", goal, by_spark, by_client)


def planning(bench: Bench) -> Iterator[Figure]:
    """Cut very many ledgers into tasks."""
    million = [Piece("", n, 0, 99, 100_000, 100) for n in range(1_000_000)]
    seconds = [
        load.timed(lambda: plan(million, target_bytes=128 * MB)) for _ in range(bench.rounds)
    ]
    yield within("planning 1,000,000 ledgers", seconds, 2)


def offload(bench: Bench) -> Iterator[Figure]:
    """Move segments into Parquet, and write the same with Spark's writer."""
    size_bytes, segments, name = OFFLOADED
    count = size_bytes // KB
    uvloop.run(load.write_stream(bench.uri, name, load.json_like(KB), count, segments))
    ledgers = uvloop.run(load.ledgers_of(bench.uri, name))

    def job() -> float:
        uvloop.run(load.remove_files(bench.uri, name))
        plan = uvloop.run(load.plan_offload(bench.uri, name, bench.work / "tier"))
        return load.timed(lambda: load.run_job(bench.spark, bench.uri, plan, bench.work))

    def spark(path: str, columns: tuple[str, ...] = (), **options: str) -> float:
        target = bench.work / bench.name("parquet")
        return load.write_parquet(bench.spark, bench.uri, path, target, columns, options)

    by_record = partial(spark, f"stream:{name}")
    by_entry = partial(spark, ledgers, ENTRY_COLUMNS)
    at_level_1 = partial(by_entry, **ZSTD_1)
    what = f"offload of {size_bytes // MB:,} MB in {segments} segments, read again and verified"
    for title, goal, other in (
        (f"{what}, beside Spark's Parquet writer of the records", 3, by_record),
        ("the same, beside Spark's writer of the same columns", None, by_entry),
        ("the same, beside Spark's writer of the same columns at zstd's level 1", 1.3, at_level_1),
    ):
        yield bench.beside(
            title, "MB/s", goal, lambda: size_bytes / MB / job(),
            lambda other=other: size_bytes / MB / other(),
        )  # fmt: skip
    used = load.Processor(bench.spark)
    for title, work in (("offload", job), ("Spark's writer of the records", by_record),
                        ("Spark's writer of the same columns", by_entry)):  # fmt: skip
        seconds = {name: each / size_bytes * 1e9 for name, each in used.of(work).items()}
        value = (
            f"bookies {seconds['bookies']:.2f} ns; Spark's worker {seconds['worker']:.2f} ns, "
            f"its JVM {seconds['jvm']:.2f} ns"
        )
        yield Figure(f"processor time of a byte, {title}", value, "-", None)


def audit(bench: Bench) -> Iterator[Figure]:
    """Verify and compare every copy in one task, and read one of each with the client."""
    for size, (size_bytes, goal) in AUDITS.items():
        ids = uvloop.run(load.write_ledgers(bench.uri, size, size_bytes // size))

        def job(ids: list[int] = ids) -> float:
            plan = uvloop.run(load.plan_audit(bench.uri, ids))
            begin = time.perf_counter()
            found = load.run_job(bench.spark, bench.uri, plan, bench.work)
            return sum(each["copies"] for each in found) / (time.perf_counter() - begin)

        yield bench.beside(
            f"audit of all copies beside the client's reads, {text(size)} entries",
            "copies/s",
            goal,
            job,
            lambda ids=ids: uvloop.run(load.read_ledgers(bench.uri, ids)),
        )


def latest(bench: Bench) -> Iterator[Figure]:
    """Ask where very many streams end that are being written."""
    with load.open_streams(bench.uri, "open-", STREAMS):
        seconds = load.latest_offsets(bench.uri, "open-.*", STREAMS, bench.rounds)
        yield within(f"latestOffset of {STREAMS:,} streams", seconds[1:], 0.5)
        yield within("the same for the first time, which opens each", seconds[:1], 60)


def fresh(bench: Bench) -> Iterator[Figure]:
    """Append, and see when a query has the record."""
    delays = load.delays(bench.spark, bench.uri, bench.name("fresh"), TICKS)
    p50, p99 = (delays[int(len(delays) * part)] for part in (0.5, 0.99))
    yield within(f"append to a row in foreachBatch, p50 of {len(delays)}", [p50], 0.5)
    yield within("the same, p99", [p99], 1.5)


def memory(bench: Bench) -> Iterator[Figure]:
    """Copy a stream with very many records in batches, and watch what the processes hold."""
    uvloop.run(load.write_stream(bench.uri, "many", [bytes(100)] * 2000, RECORDS))
    found = load.watched_copy(bench.spark, bench.uri, "many", bench.work / "checkpoint")
    for what, sizes in found.items():
        early, late = sizes[len(sizes) // 4], sizes[-1]
        value = f"{early / MB:,.0f} MB after a quarter, {late / MB:,.0f} MB at the end"
        title = f"{what}, while {RECORDS:,} records are read and written"
        print(f"{title}: {value}", file=sys.stderr)
        yield Figure(title, value, f"≤ {MAX_GROWTH:g} times", late <= early * MAX_GROWTH)


#: In their order in the report; the last ones need another session.
ROWS: dict[str, Row] = {
    row.__name__: row
    for row in (
        read, sink, planning, offload, audit, latest, fresh, memory,
        overhead, packed, commit, period, border, readback, tables, counting, analytics,
        scaling, kafka,
    )
}  # fmt: skip
#: How many tasks run at once, where that is not one.
AT_ONCE = {"scaling": 2, "kafka": 2}


# The report ----------------------------------------------------------------------------------


def write_report(new: dict[str, list[Figure]], rounds: int, target: Path) -> None:
    """Put what was measured now to what was before, and write the table and the remarks."""
    values = target / "spark.json"
    runs = json.loads(values.read_text()) if values.exists() else {}
    machine = report.machine()
    for name, figures in new.items():
        figures_of = [asdict(each) for each in figures]
        runs[name] = {"machine": machine, "rounds": rounds, "figures": figures_of}
    values.write_text(json.dumps(runs, indent=1) + "\n")
    lines = ["# Measurements of Spark", "", "`make bench-spark`", ""]
    lines += [f"- {line}" for line in [*machines(runs), *NOTES]]
    known = [Figure(**each) for name in ROWS if name in runs for each in runs[name]["figures"]]
    lines += report.figure_table(known)
    text = "\n".join(lines) + "\n"
    print(text)
    remarks = HERE / "spark_remarks.md"
    (target / "spark.md").write_text(text + "\n" + remarks.read_text())


def machines(runs: dict[str, Any]) -> list[str]:
    """Say where and of which revision rows were measured, those that were together in a line."""
    names: dict[str, list[str]] = {}
    for name in ROWS:
        if name in runs:
            names.setdefault("; ".join(runs[name]["machine"]), []).append(name)
    return [f"{', '.join(rows)}: {machine}" for machine, rows in names.items()]


def session(at_once: int, jars: str) -> Any:
    """Return a session that runs so many tasks at once, whose JVM has these jars besides."""
    configuration = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
    }
    spark = spark_session("bench", master=f"local[{at_once}]", configuration=configuration)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="", help=f"some of {', '.join(ROWS)}, with commas")
    parser.add_argument("--target", type=Path, default=HERE.parent / "docs" / "reports")
    options = parser.parse_args()
    names = [name for name in options.rows.split(",") if name] or list(ROWS)
    if set(names) - set(ROWS):
        parser.error(f"--rows {options.rows}: there are {', '.join(ROWS)}")
    found: dict[str, list[Figure]] = {}
    jars = ""
    if kafka.__name__ in names:
        with contextlib.suppress(Missing):  # its row says so
            jars = connector_jars()
    at_once = 0
    spark = None
    try:
        for name in names:
            if AT_ONCE.get(name, 1) != at_once:
                at_once = AT_ONCE.get(name, 1)
                if spark is not None:
                    spark.stop()
                spark = session(at_once, jars)
            # Each with bookies of its own, which have nothing else to do.
            with (
                tempfile.TemporaryDirectory(prefix="quorumbook-bench-") as work,
                LocalCluster(bookies=3, processes=True) as cluster,
            ):
                uvloop.run(load.bind(cluster.metadata_uri))
                bench = Bench(spark, cluster.metadata_uri, Path(work), options.rounds)
                try:
                    found[name] = list(ROWS[name](bench))
                finally:
                    load.let_go(cluster.metadata_uri)
    finally:
        if spark is not None:
            spark.stop()
        write_report(found, options.rounds, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
