"""Kills a streaming query's workers, executors, driver and bookies at random; counts every row.

    python tests/faults/spark_kills.py --kills 108 --report FILE [--only etcd] [--only append] …

Each run adds a line to FILE.jsonl, from which FILE is written; given again, it does the ways that
have no good line yet, with ``--minutes N`` as many as there is time for.

A run for each of 27 ways: the cluster's metadata in SQLite, ZooKeeper or etcd; a query that reads
files, a stream, or a stream by its schema, whose bad records go to a stream of dead letters; and
writes a transaction a batch with ledgers of its tasks' own, one whose tasks are so small that they
share a ledger, or appends rows as they come.  There are two executors (``local-cluster``), and
four bookies, each a process.  Input comes until the last kill, so that there is something to write
all the time; then the query is left alone until all is written.  Each stream must have each of its
rows once, in order, and nothing else may be left of the query but its checkpoint.

The order of rows that are appended is promised within a task: there records that shared an entry
are looked at, and that no row is further from its place than a batch is long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from doubles.etcd_server import EtcdServer
from doubles.spark import descendants, mortal_session
from doubles.zookeeper import start_zookeeper
from quorumbook.streams import Namespace, Schema, SchemaKind
from quorumbook.streams.transactions import Place, collect_orphans
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import find_classpath

METADATA = ("sqlite", "zookeeper", "etcd")
SOURCES = ("files", "stream", "decoded")
DELIVERIES = ("transaction", "packed", "append")
#: Where the query writes, where it reads unless files, and where bad records go.
ROWS, INPUT, BAD = "rows", "input", "bad"
#: Each is killed once before one of them is killed again.
KINDS = ("worker", "executor", "driver", "bookie")
BATCH_ROWS = 100
ENTRY_ROWS = 7
#: So that a task has more than it may hand to the driver.
PADDING = 2_000
SCHEMA = {
    "type": "record", "name": "R",
    "fields": [{"name": "n", "type": "int"}, {"name": "pad", "type": "string"}],
}  # fmt: skip
PATIENCE_S = 1_200.0


class Way(NamedTuple):
    """What a run is about."""

    metadata: str
    source: str
    delivery: str

    @property
    def padding(self) -> int:
        return PADDING if self.delivery == "transaction" else 0

    def row(self, number: int) -> bytes:
        return b"row %d" % number + b"." * self.padding


def is_bad(way: Way, number: int) -> bool:
    return way.source == "decoded" and number % 10 == 3


# The driver --------------------------------------------------------------------------------


def drive(uri: str, directory: Path, way: Way) -> None:
    """Be the driver: run the query until all input is there and written."""
    spark = mortal_session("spark kills", directory)
    options = {"metadataServiceUri": uri}
    if way.source == "files":
        frame = (
            spark.readStream.format("text").option("maxFilesPerTrigger", 1)
            .load(str(directory / "input"))
        )  # fmt: skip
    else:
        reader = spark.readStream.format("quorumbook").options(**options).options(
            startingOffsets="earliest", maxRecordsPerTrigger=BATCH_ROWS, minPartitions=2
        )  # fmt: skip
        if way.source == "decoded":
            reader = reader.options(decode="schema", onBadRecord="null")
        frame = reader.load(f"stream:{INPUT}")
        if way.source == "decoded":
            frame = frame.selectExpr(
                f"if(_error IS NULL, '{ROWS}', '{BAD}') AS stream",
                "coalesce(value, cast(concat('row ', n, pad) AS binary)) AS value",
            )
        else:
            frame = frame.select("value")
    target = () if way.source == "decoded" else (f"stream:{ROWS}",)
    delivery = "append" if way.delivery == "append" else "transaction"
    query = (
        frame.writeStream.format("quorumbook").options(**options, delivery=delivery)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds").start(*target)
    )  # fmt: skip
    while not (directory / "complete").exists():
        if query.awaitTermination(0.2):  # which raises what it failed with
            raise RuntimeError("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


# One run -----------------------------------------------------------------------------------


@dataclass
class Result:
    """What a run came to."""

    way: Way
    rows: int
    killed: Counter[str]
    drivers: int
    seconds: float
    lost: int = 0
    doubled: int = 0
    in_order: bool = True
    segments: int = 0
    most_segments: int = 0
    orphans: int = 0
    leaked: int = 0
    failures: list[str] = field(default_factory=list)
    seed: int = 0
    commit: str = ""

    @classmethod
    def of_json(cls, line: str) -> Result:
        found = json.loads(line)
        return cls(**found | {"way": Way(*found["way"]), "killed": Counter(found["killed"])})

    @property
    def is_good(self) -> bool:
        is_whole = self.in_order and not (self.lost or self.doubled or self.leaked)
        return is_whole and self.segments <= self.most_segments and not self.failures

    def line(self) -> str:
        kills = " + ".join(str(self.killed[kind]) for kind in KINDS)
        words = [
            *self.way, f"{self.rows:,}", kills, str(self.drivers), f"{self.lost}, {self.doubled}",
            "yes" if self.in_order else "no", f"{self.segments} of {self.most_segments}",
            f"{self.orphans}, {self.leaked}", f"{self.seconds:.0f}",
            f"{self.commit}, {self.seed}", *self.failures,
        ]  # fmt: skip
        return f"| {' | '.join(words)} |"


class TimeIsUpError(Exception):
    """The run is not done in the time that it was given; it counts for nothing."""


class Torture:
    """One run."""

    def __init__(
        self, way: Way, cluster: LocalCluster, directory: Path, loop: asyncio.Runner, seed: int,
        until_s: float,
    ) -> None:  # fmt: skip
        self.way, self.cluster, self.directory, self.loop = way, cluster, directory, loop
        self.until_s = until_s
        self.given = 0
        self.dice = random.Random(f"{seed} {way}")
        self.killed: Counter[str] = Counter()
        self.due_kinds: list[str] = []
        self.down = ""
        self.drivers = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.drivers += 1
        words = "--drive", self.cluster.metadata_uri, str(self.directory), *self.way
        with open(self.directory / f"driver-{self.drivers}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, __file__, *words], stdout=log, stderr=log, start_new_session=True
            )

    def end(self) -> None:
        """Kill the driver and all that belongs to it."""
        assert self.driver is not None
        for pid in [self.driver.pid, *descendants(self.driver.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.driver.wait()

    def kill_one(self) -> bool:
        """Kill something; False: there was none of the kind."""
        assert self.driver is not None
        below = descendants(self.driver.pid)
        if not any("pyspark.daemon" in line for line in below.values()):
            return False  # it has not begun to write
        if not self.due_kinds:
            self.due_kinds = self.dice.sample(KINDS, len(KINDS))
        kind = self.due_kinds[-1]
        if kind == "driver":
            self.end()
        elif kind == "bookie":
            self.down = self.dice.choice(self.cluster.bookie_ids)
            self.cluster.kill(self.down)
        else:
            wanted = "pyspark.daemon" if kind == "worker" else "CoarseGrainedExecutorBackend"
            victims = sorted(pid for pid, line in below.items() if wanted in line)
            if not victims:
                return False
            os.kill(self.dice.choice(victims), signal.SIGKILL)
        self.killed[self.due_kinds.pop()] += 1
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
        for number in range(self.given, self.batches_done() + 2):
            numbers = range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
            if self.way.source == "files":
                self.give_file(number, numbers)
            else:
                self.loop.run(append(self.cluster.metadata_uri, self.way, numbers))
            self.given = number + 1
        if self.killed.total() >= kills:
            (self.directory / "complete").touch()

    def give_file(self, number: int, numbers: range) -> None:
        path = self.directory / f"{number:05d}.txt"
        path.write_bytes(b"\n".join(map(self.way.row, numbers)))
        os.utime(path, (number + 1, number + 1))  # by which Spark orders files
        path.rename(self.directory / "input" / path.name)

    def run(self, kills: int) -> None:
        """Run until the query has written everything, killing so often on the way."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            self.driver = self.start()
            while self.driver.poll() is None:
                if time.monotonic() > min(end_s, self.until_s):
                    self.end()
                    if time.monotonic() > self.until_s:
                        raise TimeIsUpError
                    raise RuntimeError(f"not done after {PATIENCE_S:g} s")
                self.give_input(kills)
                time.sleep(self.dice.uniform(0.5, 3))
                if self.down:
                    self.cluster.restart(self.down)
                    self.down = ""
                # On a slow machine nothing would ever be written between two kills.
                due = min(kills, 3 * (1 + self.batches_done()))
                if self.driver.poll() is None and self.killed.total() < due:
                    with contextlib.suppress(ProcessLookupError):
                        self.kill_one()
            if self.driver.returncode == 0:
                return
            self.end()

    async def count(self, result: Result) -> None:
        """Compare what is there with what was given."""
        uri = self.cluster.metadata_uri
        numbers = range(result.rows)
        expected = {
            ROWS: [n for n in numbers if not is_bad(self.way, n)],
            BAD: [n for n in numbers if is_bad(self.way, n)],
        }
        used = set()
        async with Namespace.open(f"{uri}#/streams") as ns:
            for name in ROWS, BAD, INPUT:
                segments = await ns.stream(name).segments()
                used.update(segment.metadata.ledger_id for segment in segments)
                if name == INPUT:
                    continue
                result.segments += len(segments)
                async with ns.stream(name).reader(tail=False) as reader:
                    found = [record.payload async for record in reader]
                payload = self.way.row if name == ROWS else bad_payload
                self.compare(result, [payload(n) for n in expected[name]], found)
            orphans = await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))
            result.orphans = len(orphans)
            ledgers = {ledger_id async for ledger_id in ns.client.list_ledger_ids()}
            result.leaked = len(ledgers - used)

    def compare(self, result: Result, expected: list[bytes], found: list[bytes]) -> None:
        counts = Counter(found)
        result.lost += sum(1 for row in expected if not counts[row])
        known = set(expected)
        result.doubled += sum(count - (1 if row in known else 0) for row, count in counts.items())
        if self.way.delivery != "append" or self.way.source == "files":
            result.in_order &= found == expected
            return
        places = {row: place for place, row in enumerate(found)}
        kept = [(place, row) for place, row in enumerate(expected) if row in places]
        result.in_order &= all(abs(places[row] - place) <= BATCH_ROWS for place, row in kept)
        for (_, before), (_, row) in itertools.pairwise(kept):
            if entry_of(before) == entry_of(row) and places[row] < places[before]:
                result.in_order = False


def entry_of(row: bytes) -> tuple[int, int]:
    """Return which entry of the input has a row: what it has is written by one task."""
    number = int(row.removeprefix(b"row ").removeprefix(b"\xff").rstrip(b"."))
    return number // BATCH_ROWS, number % BATCH_ROWS // ENTRY_ROWS


def bad_payload(number: int) -> bytes:
    """Return what no version of the schema fits."""
    return b"\xff%d" % number


async def prepare(uri: str) -> None:
    async with Namespace.open(f"{uri}#/streams", bind=True) as ns:
        for name in ROWS, BAD, INPUT:
            await ns.create_stream(name)
        await ns.stream(INPUT).set_schema(Schema(SchemaKind.AVRO, json.dumps(SCHEMA)))


async def append(uri: str, way: Way, numbers: range) -> None:
    """Append a batch's input, in entries of a few records."""
    async with Namespace.open(f"{uri}#/streams") as ns, ns.stream(INPUT).writer() as writer:
        decoder = await ns.stream(INPUT).decoder()

        def payload(number: int) -> bytes:
            if is_bad(way, number):
                return bad_payload(number)
            if way.source == "decoded":
                return decoder.encode({"n": number, "pad": "." * way.padding})
            return way.row(number)

        for first in range(numbers.start, numbers.stop, ENTRY_ROWS):
            some = range(first, min(first + ENTRY_ROWS, numbers.stop))
            await writer.append_batch([payload(n) for n in some])


def metadata(kind: str, directory: Path, stack: contextlib.ExitStack) -> str | None:
    """Start what keeps the metadata; its URI, or None for a file of the cluster's own."""
    if kind == "sqlite":
        return None
    place = directory / "metadata"
    place.mkdir()
    if kind == "etcd":
        server = EtcdServer(place)
        stack.callback(server.stop)
        return server.uri()
    zookeeper = start_zookeeper(str(place), find_classpath())
    stack.callback(zookeeper.stop)
    return f"zk://{zookeeper.address}/ledgers"


def run_one(way: Way, kills: int, seed: int, until_s: float) -> Result:
    """Run one way; where it is not good its logs stay.

    Raises:
        TimeIsUpError: it is later than ``until_s`` of the monotonic clock.
    """
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="spark-kills-"))
    (directory / "input").mkdir()
    with contextlib.ExitStack() as stack:
        leave = stack.enter_context(contextlib.ExitStack())
        leave.callback(shutil.rmtree, directory, ignore_errors=True)
        uri = metadata(way.metadata, directory, stack)
        cluster = stack.enter_context(LocalCluster(4, processes=True, metadata_uri=uri))
        loop = stack.enter_context(asyncio.Runner())
        loop.run(prepare(cluster.metadata_uri))
        torture = Torture(way, cluster, directory, loop, seed, until_s)
        failures = []
        try:
            torture.run(kills)
        except RuntimeError as error:
            failures.append(str(error))
        rows = torture.given * BATCH_ROWS
        result = Result(way, rows, torture.killed, torture.drivers, 0, failures=failures)
        result.seed, result.commit = seed, commit()
        # Each batch has two tasks at the most, and so has what is begun again after a kill.
        streams = 2 if way.source == "decoded" else 1
        result.most_segments = 2 * streams * (torture.batches_done() + torture.killed.total())
        loop.run(torture.count(result))
        if not result.is_good:
            leave.pop_all()
            print(f"logs: {directory}", flush=True)
    result.seconds = time.monotonic() - started
    return result


def commit() -> str:
    """Return which sources these are."""
    words = "git", "describe", "--always", "--dirty=+"
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


# The page ----------------------------------------------------------------------------------


def page(results: list[Result]) -> str:
    killed = sum((result.killed for result in results), Counter[str]())
    lines = [
        "# Random kills of Spark queries",
        "",
        "`make spark-torture` writes this. A streaming query on two executors writes streams; its "
        "Python workers, executors and driver, and the bookies, are killed with SIGKILL at random "
        "moments. Where a worker that plans or commits is among them the query ends too, and is "
        "started again on its checkpoint. `decoded` reads a stream by its schema, and a tenth of "
        "its records goes to a stream of dead letters. A batch of `transaction` has ledgers of its "
        "tasks' own, tasks of `packed` share one, `append` appends rows as they come. Sources of "
        "a commit with `+` had changes behind it.",
        "",
        f"{killed.total()} kills in {len({each.way for each in results})} of {len(all_ways())} "
        "ways: "
        + ", ".join(f"{killed[kind]} of {kind}s" for kind in KINDS)
        + f". Lost: {sum(each.lost for each in results)}. "
        f"Doubled: {sum(each.doubled for each in results)}. "
        f"Runs that are not good: {sum(not each.is_good for each in results)}.",
        "",
        "| metadata | source | delivery | records | kills (" + " + ".join(KINDS) + ") | drivers "
        "started | lost, doubled | in order | segments, of at most | attempts left, ledgers left "
        "after `gc-orphans` | seconds | commit, seed |",
        "|" + "---|" * 12,
        *(result.line() for result in results),
    ]
    return "\n".join(lines) + "\n"


def all_ways() -> list[Way]:
    """Return every way; the first nine have all pairs, and so have the second and the third."""
    return [
        Way(METADATA[one], SOURCES[two], DELIVERIES[(one + two + more) % 3])
        for more, one, two in itertools.product(range(3), repeat=3)
    ]


def run_all(given: argparse.Namespace) -> list[Result]:
    """Run each wanted way that has no good line yet, and write the page after each."""
    ways = [way for way in all_ways() if set(given.only) <= set(way)]
    kills = -(-given.kills // len(ways))
    until_s = time.monotonic() + 60 * given.minutes
    state: Path | None = given.report and given.report.with_suffix(".jsonl")
    results = []
    if state and state.exists():
        results = [Result.of_json(line) for line in state.read_text().splitlines()]
    done = {each.way for each in results if each.is_good and each.killed.total() >= kills}
    for way in ways:
        if way in done:
            continue
        try:
            results.append(run_one(way, kills, given.seed, until_s))
        except TimeIsUpError:
            break
        print(results[-1].line(), flush=True)
        if state:
            with state.open("a") as file:
                file.write(json.dumps(vars(results[-1])) + "\n")
            given.report.write_text(page(results))
    return results


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=108, help="in all ways together")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", action="append", default=[], help="a word of the wanted ways")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so many")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--drive", nargs=5)
    given = parser.parse_args()
    if given.drive:
        uri, place, *words = given.drive
        drive(uri, Path(place), Way(*words))
        return 0
    return 0 if all(result.is_good for result in run_all(given)) else 1


if __name__ == "__main__":
    sys.exit(main())
