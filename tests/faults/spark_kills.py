"""Kills a streaming query's Python workers, executors and driver at random; counts every row.

    python tests/faults/spark_kills.py --kills 50 --records 10000 --report FILE
        [--delivery append] [--source stream]

The query reads files, or a stream, and writes a stream on two executors (``local-cluster``), one
file, or as many records, a batch; in transactions, or by appending rows as they come.  Input comes
until the last kill, so that there is something to write all the time; then the query is left alone
until all is written.  The stream must have each row once, in order, and nothing else may be left of
the query but its checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from doubles.spark import descendants, mortal_session
from quorumbook.streams import Namespace
from quorumbook.streams.transactions import Place, collect_orphans
from quorumbook.testing import LocalCluster

STREAM = "rows"
#: What the query reads with ``--source stream``.
INPUT = "input"
#: What is killed how often.
KINDS = {"worker": 80, "executor": 12, "driver": 8}


def drive(uri: str, directory: Path, source: str, delivery: str, size: int) -> None:
    """Be the driver: run the query until all input is there and written."""
    spark = mortal_session("spark kills", directory)
    if source == "files":
        frame = (
            spark.readStream.format("text").option("maxFilesPerTrigger", 1)
            .load(str(directory / "input"))
        )  # fmt: skip
    else:
        frame = (
            spark.readStream.format("quorumbook").schema("value binary")
            .options(metadataServiceUri=uri, startingOffsets="earliest")
            .option("maxRecordsPerTrigger", size).load(f"stream:{INPUT}")
        )  # fmt: skip
    query = (
        frame.writeStream.format("quorumbook").option("metadataServiceUri", uri)
        .option("delivery", delivery)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds").start(f"stream:{STREAM}")
    )  # fmt: skip
    while not (directory / "complete").exists():
        if query.awaitTermination(0.2):  # which raises what it failed with
            raise RuntimeError("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


class Torture:
    """One run."""

    def __init__(self, uri: str, directory: Path, given: argparse.Namespace) -> None:
        self.uri, self.directory = uri, directory
        self.source, self.delivery = given.source, given.delivery
        self.batches, self.size = given.batches, -(-given.records // given.batches)
        self.rows: list[bytes] = []
        self.given = 0
        self.dice = random.Random(given.seed)
        self.killed: Counter[str] = Counter()
        self.drivers = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.drivers += 1
        with open(self.directory / f"driver-{self.drivers}.log", "wb") as log:
            return subprocess.Popen(
                [
                    sys.executable, __file__, "--drive", self.uri, str(self.directory),
                    self.source, self.delivery, str(self.size),
                ],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """Kill the driver and all that belongs to it."""
        assert self.driver is not None
        for pid in [self.driver.pid, *descendants(self.driver.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.driver.wait()

    def kill_one(self) -> bool:
        """Kill something; False: there was none of the kind."""
        assert self.driver is not None
        kind = self.dice.choices(list(KINDS), list(KINDS.values()))[0]
        below = descendants(self.driver.pid)
        if not any("pyspark.daemon" in line for line in below.values()):
            return False  # it has not begun to write
        if kind == "driver":
            self.end()
        else:
            wanted = "pyspark.daemon" if kind == "worker" else "CoarseGrainedExecutorBackend"
            victims = sorted(pid for pid, line in below.items() if wanted in line)
            if not victims:
                return False
            os.kill(self.dice.choice(victims), signal.SIGKILL)
        self.killed[kind] += 1
        return True

    def batches_done(self) -> int:
        """Return how many batches the checkpoint says are done; Spark deletes the older commits."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.directory / "checkpoint" / "commits")
            return 1 + max((int(name) for name in names if name.isdigit()), default=-1)
        return 0

    def give_input(self, kills: int) -> None:
        """Keep two batches ahead of the query; after the last kill, tell it to end."""
        if (self.directory / "complete").exists():
            return
        is_over = self.killed.total() >= kills
        due = max(self.batches_done() + 2, self.batches if is_over else 0)
        for number in range(self.given, due):
            rows = [b"row %d" % row for row in range(number * self.size, (number + 1) * self.size)]
            if self.source == "files":
                self.give_file(number, rows)
            else:
                asyncio.run(append(self.uri, rows))
            self.rows += rows
        self.given = due
        if is_over:
            (self.directory / "complete").touch()

    def give_file(self, number: int, rows: list[bytes]) -> None:
        path = self.directory / f"{number:05d}.txt"
        path.write_bytes(b"\n".join(rows))
        os.utime(path, (number + 1, number + 1))  # by which Spark orders files
        path.rename(self.directory / "input" / path.name)

    def run(self, kills: int) -> None:
        """Run until the query has written everything, killing so often on the way."""
        while True:
            self.driver = self.start()
            while self.driver.poll() is None:
                self.give_input(kills)
                time.sleep(self.dice.uniform(0.5, 3))
                # On a slow machine nothing would ever be written between two kills.
                due = min(kills, 3 * (1 + self.batches_done()))
                if self.driver.poll() is None and self.killed.total() < due:
                    try:
                        if self.kill_one():
                            print(f"{self.killed.total()} {dict(self.killed)}", flush=True)
                    except ProcessLookupError:
                        continue
            if self.driver.returncode == 0:
                return
            self.end()


async def result(uri: str) -> tuple[list[bytes], int, int, int]:
    """Return the stream's rows, its segments, and orphans and ledgers that are left."""
    async with Namespace.open(f"{uri}#/streams") as ns:
        async with ns.stream(STREAM).reader(tail=False) as reader:
            found = [record.payload async for record in reader]
        segments = await ns.stream(STREAM).segments()
        orphans = await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))
        used = {
            segment.metadata.ledger_id
            for each in (segments, await ns.stream(INPUT).segments())
            for segment in each
        }
        leaked = {ledger_id async for ledger_id in ns.client.list_ledger_ids()} - used
        return found, len(segments), len(orphans), len(leaked)


async def prepare(uri: str) -> None:
    async with Namespace.open(f"{uri}#/streams", bind=True) as ns:
        for name in STREAM, INPUT:
            await ns.create_stream(name)


async def append(uri: str, rows: list[bytes]) -> None:
    """Append a batch's input, in entries of a few records."""
    async with Namespace.open(f"{uri}#/streams") as ns, ns.stream(INPUT).writer() as writer:
        for first in range(0, len(rows), 7):
            await writer.append_batch(rows[first : first + 7])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--source", choices=("files", "stream"), default="files")
    parser.add_argument("--delivery", choices=("transaction", "append"), default="transaction")
    parser.add_argument("--drive", nargs=5)
    given = parser.parse_args()
    if given.drive:
        uri, place, source, delivery, size = given.drive
        drive(uri, Path(place), source, delivery, int(size))
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name, LocalCluster(bookies=3) as cluster:
        directory = Path(name)
        (directory / "input").mkdir()
        asyncio.run(prepare(cluster.metadata_uri))
        torture = Torture(cluster.metadata_uri, directory, given)
        torture.run(given.kills)
        found, segments, orphans, leaked = asyncio.run(result(cluster.metadata_uri))
    counts, expected = Counter(found), torture.rows
    lost = sum(1 for row in expected if not counts[row])
    doubled = sum(count - 1 for count in counts.values())
    lines = [
        "# Random kills of a Spark query",
        "",
        "`make spark-torture` writes this. A streaming query on two executors writes files, or a "
        "stream, to a stream, a file or so many records a batch; its Python workers, executors "
        "and driver are killed with SIGKILL at random moments. Where a worker that plans or "
        "commits is among them the query ends too, and is started again on its checkpoint.",
        "",
        "| | |",
        "|---|---|",
        f"| source, delivery | {given.source}, {given.delivery} |",
        f"| records, batches of input | {len(expected):,}, {torture.given} |",
        f"| kills | {torture.killed.total()}: "
        + ", ".join(f"{torture.killed[kind]} of {kind}s" for kind in KINDS)
        + " |",
        f"| drivers started | {torture.drivers} |",
        f"| lost, doubled | {lost}, {doubled} |",
        f"| in order | {'yes' if found == expected else 'no'} |",
        f"| segments | {segments} |",
        f"| attempts that were left, ledgers left after `gc-orphans` | {orphans}, {leaked} |",
        f"| seed, seconds | {given.seed}, {time.monotonic() - started:.0f} |",
    ]
    print("\n".join(lines))
    if given.report:
        given.report.write_text("\n".join(lines) + "\n")
    is_good = found == expected and not leaked and torture.killed.total() >= given.kills
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
