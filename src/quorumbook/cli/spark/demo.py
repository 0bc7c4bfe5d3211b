"""``quorumbook spark demo``: flights through a stream and Spark into tables and a picture.

Four bookies and auto-recovery run as processes, and a Spark cluster of two executors beside them.
One streaming query appends 336,776 flights to a partitioned stream, each exactly once, although a
bookie and an executor are killed meanwhile; another keeps delays by carrier, airport and hour, with
events that come late.  Then the flights are joined with planes and weather into a Parquet table,
the stream's segments move into files and are read from there, and every copy is audited.  At the
end the stream gets a schema: SQL asks by its fields, a record that does not fit becomes a dead
letter, and Polars reads what does.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.cluster.commands import init_cluster
from quorumbook.cli.cluster.supervisor import BookieProcess, ChildProcess, RecoveryProcess
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.demo import flights
from quorumbook.cli.errors import DifferenceFoundError
from quorumbook.cli.ports import free_ports
from quorumbook.cli.spark.checks import audit
from quorumbook.cli.spark.run import check_spark
from quorumbook.cli.spark.tier import offload
from quorumbook.errors import QuorumbookError

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.spark.demo.queries import Fingerprint, Lake

_BOOKIES = 4
#: Files of the input, each a batch; of few flights there are half as many.
_FILES, _FEW = 12, 10_000
#: Every so many-th flight comes some files late; of the first ones some come at the very end.
_LATE_EVERY, _LATE_FILES = 997, 2
_TOO_LATE = range(50, 700, 100)
_EXECUTORS = "local-cluster[2,1,700]"
_HEALED_WITHIN_S = 300.0
_LOOK_S = 0.3
Say = Callable[[str], None]


class SparkDemoFailedError(QuorumbookError):
    """A step of the demo failed."""

    code = -1


@click.command(cls=ClusterCommand, forms=("table", "json"), has_metadata=False)
@click.option(
    "--events", type=click.IntRange(1000, flights.COUNT), default=flights.COUNT,
    show_default=True, help="How many flights.",
)  # fmt: skip
@click.option(
    "--to", "target", metavar="DIR", default="quorumbook-demo", show_default=True,
    help="Where tables, files and the picture go; it must not exist.",
)  # fmt: skip
@click.pass_obj
def demo(call: Call, events: int, target: str) -> None:
    """Ingest flights exactly once while things die, sum up, join, offload, audit, decode, draw."""
    check_spark()
    source = flights.path()
    target = os.path.abspath(target)
    if os.path.exists(target):
        raise click.UsageError(f"{target} is there already; remove it, or choose another --to")
    directory = tempfile.mkdtemp(prefix="quorumbook-demo-")
    try:
        call.run(_run(call, source, events, directory, target))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _run(call: Call, source: str, events: int, directory: str, target: str) -> None:
    call.use_metadata(f"sqlite:///{directory}/metadata.db")
    await init_cluster(call, is_existing_fine=False)
    words = ["--set", "http.enabled=false"]
    bookies = [
        BookieProcess(
            f"bookie-{number}", call.environment(), os.path.join(directory, f"bookie-{number}"),
            words, port=port,
        )
        for number, port in enumerate(free_ports(_BOOKIES), 1)
    ]  # fmt: skip
    recovery = RecoveryProcess(
        "recovery", call.environment(), os.path.join(directory, "recovery"), words
    )
    children: list[ChildProcess] = [*bookies, recovery]
    say = call.note if call.output.form == "json" else partial(print, flush=True)
    try:
        await asyncio.gather(*(child.start() for child in children))
        say(f"{_BOOKIES} bookies and auto-recovery run, each a process.")
        os.makedirs(target)
        await asyncio.to_thread(_write_input, source, events, os.path.join(target, "input"))
        lake = await asyncio.to_thread(_open_lake, call, target)
        say(f"Spark runs with two executors, each a process ({_EXECUTORS}).")
        try:
            await _play(call, lake, events, bookies, say)
        finally:
            await asyncio.to_thread(lake.spark.stop)
    finally:
        await asyncio.gather(*(child.stop() for child in children))


def _open_lake(call: Call, target: str) -> Lake:
    from quorumbook.spark.demo.queries import Lake
    from quorumbook.spark.session import spark_session

    configuration = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    with _errors_to(os.path.join(target, "spark.log")):
        spark = spark_session("quorumbook demo", master=_EXECUTORS, configuration=configuration)
    return Lake(spark, call.metadata_uri, target)


@contextlib.contextmanager
def _errors_to(path: str) -> Iterator[None]:
    """Have processes that are started meanwhile write their errors to a file."""
    kept = os.dup(2)
    try:
        with open(path, "ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _write_input(source: str, events: int, directory: str) -> None:
    """Write the flights as files of lines, in the order of their hours but for some."""
    os.makedirs(directory)
    count = _files(events)
    in_order = sorted(flights.events(source), key=_hour)[:events]
    paths = [os.path.join(directory, f"flights-{number:02}.jsonl") for number in range(count)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        for index, event in enumerate(in_order):
            number = index * count // events
            if index % _LATE_EVERY == 0:
                number = min(number + _LATE_FILES, count - 1)
            if index in _TOO_LATE:
                number = count - 1
            files[number].write(event + b"\n")
    # Spark takes files by their age.
    for number, path in enumerate(paths):
        os.utime(path, (number, 1_400_000_000 + number))


def _files(events: int) -> int:
    return _FILES if events > _FEW else _FILES // 2


def _hour(event: bytes) -> bytes:
    """Return the hour for which a flight was planned; texts sort as times do."""
    _, _, rest = event.partition(b'"time_hour":"')
    return rest[:20]


async def _play(
    call: Call, lake: Lake, events: int, bookies: Sequence[BookieProcess], say: Say
) -> None:
    async with call.connect() as client:
        await _make_stream(call, client)
        delays, killed, half_s, went_in = await _ingest(lake, events, bookies, say)
        await _heal(client, killed, say)
        await asyncio.to_thread(delays.processAllAvailable)
    await asyncio.to_thread(_tell_delays, lake, delays, say)
    await asyncio.to_thread(_join, lake, say)
    await _offload(call, lake, half_s, went_in, say)
    await _audit(call, lake, say)
    await _by_schema(call, lake, say)
    rows = await asyncio.to_thread(lake.delays_by_hour)
    await asyncio.to_thread(_show, call, lake, rows, say)


async def _make_stream(call: Call, client: BookKeeper) -> None:
    from quorumbook.spark.demo.queries import PARTITIONS, STREAM
    from quorumbook.streams import Namespace, PartitionedStream

    address = f"{call.metadata_uri}#/streams"
    async with Namespace.open(address, client=client, bind=True) as namespace:
        await PartitionedStream.create(namespace, STREAM, partitions=PARTITIONS)


async def _ingest(
    lake: Lake, events: int, bookies: Sequence[BookieProcess], say: Say
) -> tuple[Any, str, float, Fingerprint]:
    """Append everything, and kill a bookie and an executor on the way.

    Returns:
        The query that sums up, the bookie that is gone, when half of it was there, and what was
        appended.
    """
    began = half_s = time.monotonic()
    files = _files(events)
    delays = await asyncio.to_thread(lake.delays)
    query = await asyncio.to_thread(lake.ingest)
    killed = ""
    executor = 0
    while await asyncio.to_thread(lambda: query.isActive):
        progress = await asyncio.to_thread(lambda: query.lastProgress)
        batch = progress["batchId"] if progress else -1
        if not killed and batch >= files // 4:
            killed = bookies[0].bookie_id
            await bookies[0].kill()
            say(f"Bookie {killed} was killed with kill -9 after batch {batch}.")
        elif not executor and batch >= files // 2:
            half_s = time.monotonic()
            executor = await asyncio.to_thread(_kill_executor, lake)
            say(f"Executor process {executor} was killed with kill -9 after batch {batch}.")
        await asyncio.sleep(_LOOK_S)
    error = await asyncio.to_thread(query.exception)
    if error is not None:
        raise SparkDemoFailedError(f"the query that ingests failed: {error}")
    took_s = time.monotonic() - began
    went_in = await asyncio.to_thread(lake.fingerprint, of_input=True)
    came_out = await asyncio.to_thread(lake.fingerprint, of_input=False)
    if went_in != came_out or came_out.lines != events:
        raise DifferenceFoundError(f"{went_in} went into the stream, and {came_out} came out")
    say(
        f"{came_out.lines:,} flights were appended in {took_s:.0f} s, in {files} commits over four"
        " partitions; every line of the input is in the stream exactly once, by count and hash."
    )
    return delays, killed, half_s, went_in


def _kill_executor(lake: Lake) -> int:
    """Kill one of the session's executors; return its process id."""
    port = lake.spark.sparkContext.getConf().get("spark.driver.port")
    listed = subprocess.run(
        ["ps", "-axww", "-o", "pid=,command="], capture_output=True, text=True, check=True
    ).stdout
    for line in listed.splitlines():
        pid, _, command = line.strip().partition(" ")
        if "CoarseGrainedExecutorBackend" in command and f":{port} " in command:
            os.kill(int(pid), signal.SIGKILL)
            return int(pid)
    raise SparkDemoFailedError("there is no executor to kill")


async def _heal(client: BookKeeper, lost: str, say: Say) -> None:
    """Wait until no ledger names a bookie any more."""
    began = time.monotonic()
    while True:
        left = [m async for m in client.list_ledgers() if _names(m, lost)]
        if not left:
            say(
                "Auto-recovery has made again every replica that was on the killed bookie: no "
                f"ledger names it any more, {time.monotonic() - began:.0f} s after the last commit."
            )
            return
        if time.monotonic() - began > _HEALED_WITHIN_S:
            raise SparkDemoFailedError(f"{len(left)} ledgers still name bookie {lost}")
        await asyncio.sleep(_LOOK_S)


def _names(metadata: Any, bookie_id: str) -> bool:
    return any(bookie_id in fragment.ensemble for fragment in metadata.fragments)


def _tell_delays(lake: Lake, delays: Any, say: Say) -> None:
    from quorumbook.spark.demo.queries import LATENESS, dropped_late

    dropped = dropped_late(delays)
    batches = len([p for p in delays.recentProgress if p["numInputRows"]])
    delays.stop()
    say(
        f"Meanwhile {batches} batches kept delays by carrier, airport and hour up to date, flights"
        f" that came late counted; {dropped} that came more than {LATENESS} behind the newest one"
        f" changed no window (they are in the stream): {lake.windows}"
    )


def _join(lake: Lake, say: Say) -> None:
    directory = os.path.dirname(flights.path())
    tables = {name: os.path.join(directory, f"{name}.csv") for name in ("planes", "weather")}
    count = lake.join(tables)
    say(f"Joined with their planes and the weather, {count:,} flights are a table: {lake.flights}")
    for row in lake.delays_by_weather():
        say(f"  weather: {row['weather']:<14} {row['flights']:>8,} flights left"
            f" {row['mean_delay']:5.1f} minutes late in the mean")  # fmt: skip


async def _offload(call: Call, lake: Lake, half_s: float, went_in: Fingerprint, say: Say) -> None:
    """Move segments that were complete at a time into files, and read everything again."""
    tier = os.path.join(lake.directory, "tier")
    reports = []
    # The first run copies and verifies; the second one, later, deletes what bookies have of it.
    for _ in range(2):
        older_s = f"{time.monotonic() - half_s:.1f}"
        words = ["--to", tier, "--older-than", older_s, "--delete-lag", "0"]
        reports.append(await _job(call, lake, "offload", *words))
    first, second = reports
    deleted = first["bookie_copies_deleted"] + second["bookie_copies_deleted"]
    read = await asyncio.to_thread(lake.fingerprint, of_input=False)
    if read != went_in:
        raise DifferenceFoundError(f"{went_in} went into the stream, and {read} are in its files")
    say(
        f"{first['files']} older segments became Parquet files in {tier}, and"
        f" {deleted} are on no bookie any more; read again through the stream, every flight is"
        " there."
    )


async def _audit(call: Call, lake: Lake, say: Say) -> None:
    found = await _job(call, lake, "audit")
    say(
        f"The audit read {found['copies']:,} copies of entries from their bookies, and found no"
        " damage."
    )


async def _by_schema(call: Call, lake: Lake, say: Say) -> None:
    """Give the stream a schema; ask by its fields, and set aside what does not fit."""
    from quorumbook.spark.demo.queries import BAD, SCHEMA, STREAM
    from quorumbook.streams import Namespace, PartitionedStream, Schema, SchemaKind

    async with Namespace.open(f"{call.metadata_uri}#/streams") as namespace:
        stream = await PartitionedStream.open(namespace, STREAM)
        await stream.set_schema(Schema(SchemaKind.JSON, SCHEMA))
        async with stream.writer() as writer:
            await writer.append(b"this is no flight")
        say("The stream got a schema, and a record that does not fit it.")
        latest = await asyncio.to_thread(lake.latest_carriers)
        found = ", ".join(f"{row['carrier']} {row['late']} min" for row in latest)
        say(f"SQL asks by the schema's fields. The latest carriers: {found}")
        letters = await asyncio.to_thread(lake.set_aside)
        say(f"{len(letters)} dead letter is in the stream {BAD}: {letters[0]}")
        if importlib.util.find_spec("polars") is None:
            say("Polars reads the stream as well: pip install polars")
            return
        frame = await stream.to_polars(
            ["origin", "dep_delay"], decode=await stream.decoder(), on_bad="drop"
        )
        by_origin = frame.group_by("origin").mean().sort("origin")
        say(f"Without Spark, by Polars, the mean of {len(frame):,} flights:\n{by_origin}")


async def _job(call: Call, lake: Lake, name: str, *words: str) -> dict[str, Any]:
    """Run a job as anybody would, but on the session that is there, and return its report."""
    job = {"audit": audit, "offload": offload}[name]
    given = [*words, "--json-report", "-", "--state-dir", os.path.join(lake.directory, "jobs")]
    given += ["--metadata", call.metadata_uri, *call.forwarded()]
    for override in call.overrides:
        given += ["--set", override]
    from quorumbook.spark.session import activate

    out, err = io.StringIO(), io.StringIO()

    def run() -> Any:
        activate(lake.spark)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return job.main(args=given, prog_name=f"quorumbook spark {name}", standalone_mode=False)

    code = await asyncio.to_thread(run)
    if code:
        raise SparkDemoFailedError(
            f"quorumbook spark {name} ended with {code}:"
            f" {err.getvalue()[-1000:]}{out.getvalue()[-1000:]}"
        )
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def _show(call: Call, lake: Lake, rows: Sequence[dict[str, Any]], say: Say) -> None:
    """Print the table of delays by carrier and hour, and draw it."""
    from quorumbook.spark.demo.picture import heatmap

    sums: dict[tuple[str, int], tuple[int, float]] = {}
    for row in rows:
        key = (row["carrier"], row["hour"])
        count, minutes = sums.get(key, (0, 0.0))
        sums[key] = count + row["departed"], minutes + row["delay_minutes"]
    means = {key: (n, minutes / n) for key, (n, minutes) in sums.items() if n}
    names = _carriers()
    note = f"{sum(n for n, _ in means.values()):,} departures, summed up by Spark while they came"
    path = os.path.join(lake.directory, "delays.svg")
    with open(path, "w", encoding="utf-8") as file:
        file.write(heatmap(means, names, note))
    hours = sorted({hour for _, hour in means})
    call.output.rows(
        [
            {
                "carrier": names.get(carrier, carrier),
                **{
                    str(hour): round(means[carrier, hour][1])
                    for hour in hours
                    if (carrier, hour) in means
                },
            }
            for carrier in sorted({carrier for carrier, _ in means})
        ],
        ["carrier", *map(str, hours)],
    )
    say(f"The same as a picture: {path}\nInput, tables and files stay in {lake.directory}.")


def _carriers() -> dict[str, str]:
    path = os.path.join(os.path.dirname(flights.path()), "airlines.csv")
    with open(path, encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
