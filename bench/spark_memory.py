"""How much memory a Spark query keeps, over many records and over large entries.

    python bench/spark_memory.py --records 10000000 --report docs/reports/spark-memory.md

A query copies records of 100 bytes from one stream to another, in batches, on a driver of 1 GB and
two executors of 700 MB, each a process.  After every batch the resident memory of each kind of
process is read: the driver's JVM, its Python processes, the executors' JVMs and theirs.  Then one
job reads a ledger of entries near the limit of 5 MiB, more of them than any process has memory.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from doubles.spark import descendants, mortal_session
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

RECORD, BATCH = 100, 250_000
ENTRY = 5_200_000
PAGE = os.sysconf("SC_PAGE_SIZE")
KINDS = ("driver", "driver's Python", "executors", "executors' Python")


def resident() -> dict[str, int]:
    """Return the bytes that each kind of process has in memory, both executors together."""
    found = dict.fromkeys(KINDS, 0)
    parents = {}
    below = descendants(os.getpid())
    for pid in below:
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for pid, line in below.items():
        if "quorumbook bookie" in line:
            continue
        if "java" in line.partition(" ")[0]:
            kind = "executors" if "CoarseGrainedExecutorBackend" in line else "driver"
        elif "pyspark" in line:
            above = pid
            while above in parents and "java" not in below.get(above, "").partition(" ")[0]:
                above = parents[above]
            is_executor = "CoarseGrainedExecutorBackend" in below.get(above, "")
            kind = "executors' Python" if is_executor else "driver's Python"
        else:
            continue
        try:
            found[kind] += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return found


async def fill(uri: str, records: int) -> None:
    """Write the stream that is read."""
    async with Namespace.open(f"{uri}#/streams", bind=True) as ns:
        for name in "in", "out":
            await ns.create_stream(name)
        async with ns.stream("in").writer() as writer:
            batch = [bytes(RECORD)] * 500
            pending: collections.deque[Any] = collections.deque()
            for _ in range(0, records, len(batch)):
                pending.append(asyncio.ensure_future(writer.append_batch(batch)))
                if len(pending) >= 64:
                    await pending.popleft()
            await asyncio.gather(*pending)


def copy(spark: Any, uri: str, directory: str) -> list[dict[str, int]]:
    """Copy the stream; return the memory after each batch."""
    samples: list[dict[str, int]] = []
    frame = (
        spark.readStream.format("quorumbook").schema("value binary")
        .options(metadataServiceUri=uri, startingOffsets="earliest", maxRecordsPerTrigger=BATCH)
        .options(minPartitions=2).load("stream:in")
    )  # fmt: skip
    query = (
        frame.writeStream.format("quorumbook").option("metadataServiceUri", uri)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True).start("stream:out")
    )  # fmt: skip
    seen = -1
    while not query.awaitTermination(0.2):
        progress = query.lastProgress
        if progress and progress["batchId"] > seen:
            seen = progress["batchId"]
            samples.append(resident())
    return samples


def read_large(spark: Any, cluster: LocalCluster, count: int) -> tuple[int, dict[str, int]]:
    """Read large entries; return how many bytes they had, and the most memory meanwhile."""
    one_copy = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    with cluster.connect() as client, client.create_ledger(**one_copy) as writer:
        for _ in range(count):
            writer.append(bytes(ENTRY))
        ledger_id = writer.id
    frame = (
        spark.read.format("quorumbook").option("metadataServiceUri", cluster.metadata_uri)
        .load(f"ledger:{ledger_id}").selectExpr("sum(length(value)) AS size")
    )  # fmt: skip
    most = resident()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.2):
            now = resident()
            most.update({kind: max(most[kind], now[kind]) for kind in KINDS})

    looking = threading.Thread(target=look)
    looking.start()
    try:
        (row,) = frame.collect()
    finally:
        is_over.set()
        looking.join()
    return row.size, most


def report(records: int, samples: list[dict[str, int]], large: tuple[int, dict[str, int]]) -> str:
    """Return the report."""
    quarter = len(samples) // 4
    parts = samples[quarter : 2 * quarter], samples[-quarter:]
    lines = [
        "# Memory of a Spark query",
        "",
        "`python bench/spark_memory.py` writes this. A query copies records of 100 bytes from "
        f"stream to stream, {BATCH:,} a batch, on a driver of 1 GB and two executors of 700 MB; "
        "resident memory in MB, the median of the second and of the last quarter of the batches. "
        "The last column is the most while one job reads entries of "
        f"{ENTRY:,} bytes, {large[0] / 1e9:.1f} GB of them. Bytes of a Java heap count from when "
        "they were first used, and pages that processes share count in each.",
        "",
        f"| {records:,} records, {len(samples)} batches | second quarter | last quarter | ratio "
        "| large entries |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        early, late = (statistics.median(each[kind] for each in part) for part in parts)
        lines.append(
            f"| {kind} | {early / 1e6:.0f} | {late / 1e6:.0f} | {late / max(early, 1):.2f} "
            f"| {large[1][kind] / 1e6:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--entries", type=int, default=400, help="large ones")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(bookies=3, processes=True) as cluster,
    ):
        began = time.monotonic()
        asyncio.run(fill(cluster.metadata_uri, given.records))
        print(f"written in {time.monotonic() - began:.0f} s", flush=True)
        spark = mortal_session("memory", Path(directory), **{"spark.driver.memory": "1g"})
        try:
            samples = copy(spark, cluster.metadata_uri, directory)
            print(f"copied after {time.monotonic() - began:.0f} s", flush=True)
            out = spark.read.format("quorumbook").option("metadataServiceUri", cluster.metadata_uri)
            copied = out.schema("seq long").load("stream:out").count()
            large = read_large(spark, cluster, given.entries)
        finally:
            spark.stop()
    text = report(given.records, samples, large)
    print(text)
    if given.report:
        given.report.write_text(text)
    return 0 if (copied, large[0]) == (given.records, given.entries * ENTRY) else 1


if __name__ == "__main__":
    sys.exit(main())
