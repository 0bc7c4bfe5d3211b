"""A row of ``spark.py`` about a job, as its command runs it: its own process, session and JVM."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import uvloop

import spark_load as load
import spark_many as many
from quorumbook.cli.demo import flights
from report import Figure
from spark_measure import Bench, said

#: The first flights of the year: 43 days and a part of one.
FLIGHTS = 40_000
WORDS = (
    "--create-stream", "--schema", "carrier string, time_hour timestamp, dep_delay int",
    "--time", "time_hour", "--window", "1 day", "--watermark", "1 day",
    "--measure", "avg(dep_delay) AS delay", "--measure", "count(*) AS flights",
)  # fmt: skip


def analytics(bench: Bench) -> Iterator[Figure]:
    """Compute a measure for each day of a stream's events, and write it to a stream."""
    events = list(itertools.islice(flights.events(flights.path()), FLIGHTS))
    uvloop.run(load.write_stream(bench.uri, "flights", events, FLIGHTS))
    took: list[tuple[float, float]] = []
    rows = 0
    for _ in range(bench.rounds):
        name = bench.name("delays")
        report = bench.work / f"{name}.json"
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "quorumbook", "spark", "analytics", "--metadata", bench.uri,
             "--from", "stream:flights", "--to", f"stream:{name}", "--master", "local[2]",
             "--state-dir", str(bench.work), "--json-report", str(report), *WORDS],
            check=True,
        )  # fmt: skip
        took.append((time.perf_counter() - begin, json.loads(report.read_text())["seconds"]))
        rows = uvloop.run(many.read_stream(bench.uri, name))[0]
    command, job = (statistics.median(each) for each in zip(*took, strict=True))
    yield said(
        f"the command `quorumbook spark analytics` over {FLIGHTS:,} events, {rows} windows of a "
        "day into a stream",
        f"{command:.1f} s ({min(took)[0]:.1f} to {max(took)[0]:.1f}), of which {job:.1f} s the job",
    )
