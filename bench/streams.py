"""``make bench-streams``: measure streams beside DistributedLog's, raw ledgers and other logs.

Everything runs on this machine, in turn within each round, so that ratios are taken of what ran
right after one another.  Ours run over sqlite, DistributedLog over its own bookies and ZooKeeper.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

import report
import single_records
from other_logs import LOGS, OtherLog
from quorumbook.streams import Namespace
from quorumbook.streams.format.records import HEADER_SIZE_BYTES
from report import Figure, Goal, Scenario
from stream_load import (
    BATCH_BYTES,
    IN_FLIGHT,
    IN_FLIGHT_MAX,
    NAMESPACE,
    calls_under_way,
    disk_rate,
    measure_own,
    read,
    records_in_entry,
    small_segments,
    tail,
    take_over,
)
from systems import HERE, Java, Missing, Own, Peer

SIZES = {100: 1_000_000, 1000: 150_000}
#: Of an entry: what DistributedLog transmits by default, and larger ones.
BATCHES = (1024, 4 * 1024, 16 * 1024, BATCH_BYTES)
#: Small entries take their time; so many of them are enough.
ENTRIES_MAX = 20_000
SMALL_SEGMENTS = 200
#: The session of a metadata store, as long as it is by default.
SESSION_S = 10.0


class Streams:
    """What is measured, and what was found."""

    def __init__(self, work: Path, seconds: float) -> None:
        self.work = work
        self.seconds = seconds
        self.own = Own(work / "own")
        self.single = single_records.SingleRecords(work, self.own)
        self.on_zookeeper: Own | None = None
        self.java: Java | None = None
        self.peer: Peer | None = None
        self.others: list[OtherLog] = []
        self.scenarios: dict[str, Scenario] = {}
        self.notes = [
            "three bookies, E3/Qw3/Qa2, CRC-32 as is the default of both, every record synced "
            "before it is acknowledged; "
            f"{IN_FLIGHT} calls under way, with entries of 16 KB and less {IN_FLIGHT_MAX}, each "
            "with the records of one entry; ours makes 64 KB by default, DistributedLog 1 KB",
            "`disk`: records of that size that three journals on this disk would take, in synced "
            "groups of 256 KB and with nothing else written",
            "the peer is DistributedLog 4.18 on bookies of BookKeeper 4.18; of both the better of "
            "a call for each entry (`append_batch_nowait`, writeBulk) and a call for each record "
            "(`put`, write) counts; a JVM's first rounds are not counted",
            "readers make an object of every payload; `raw` reads the same ledgers and does not "
            "look into entries",
        ]

    def start(self) -> None:
        self.own.start()
        self.single.start()
        try:
            self.java = Java(self.work / "java")
            self.peer = Peer(self.java)
            self.peer.start()
            uri = self.java.uri.replace("/ledgers", "/own")
            self.on_zookeeper = Own(self.work / "zookeeper", uri=uri)
        except Missing as missing:
            self.notes.append(f"DistributedLog is not measured: {missing}")
        for name, log in LOGS.items():
            try:
                self.others.append(log(self.work / name))
            except Missing as missing:
                self.notes.append(f"{name} is not measured: {missing}")
        if self.others:
            names = ", ".join(log.name for log in self.others)
            self.notes.append(
                f"{names}: one server each, one copy of every record (of ours and the peer's "
                "there are three), synced before it is acknowledged, by their asyncio clients"
            )

    def stop(self) -> None:
        self.single.stop()
        for system in [*self.others, self.on_zookeeper, self.peer, self.own]:
            if system is not None:
                system.stop()

    def row(self, title: str, unit: str, *goals: Goal) -> Scenario:
        return self.scenarios.setdefault(title, Scenario(title, unit, list(goals)))

    # Rounds --------------------------------------------------------------------------------

    def rates(self, number: int, size: int) -> None:
        """Write and read streams of each system, with entries of several sizes."""
        peer = self._peer_rates(f"p{number}-{size}", size)
        # Three journals share the disk, and each record goes into all of them.
        disk = disk_rate(self.work / "disk") / 3 / (size + HEADER_SIZE_BYTES)
        for batch_bytes in BATCHES:
            title = f"{_size(size)}, entries of {_size(batch_bytes)}"
            # The peer writes an entry for each record by default.
            goal = 1 if records_in_entry(size, batch_bytes) == 1 else 2
            write = self.row(f"write, {title}", "records/s", Goal("own", "peer", goal))
            read = self.row(f"catch-up read, {title}", "records/s", Goal("own", "peer", 2))
            write.add("disk", disk)
            name = f"s{number}-{size}-{batch_bytes}"
            address = f"{self.own.uri}#{NAMESPACE}"
            records = _records(size, batch_bytes)
            found = uvloop.run(measure_own(address, name, size, records, batch_bytes))
            write.add("own", found["write"])
            read.add("own", found["read"])
            if batch_bytes in peer:
                write.add("peer", peer[batch_bytes][0])
                read.add("peer", peer[batch_bytes][1])
            if batch_bytes == BATCH_BYTES:
                self._rates_of_large_entries(name, size, found, write, read)

    def _rates_of_large_entries(
        self, name: str, size: int, found: dict[str, float], write: Scenario, read: Scenario
    ) -> None:
        read.goals[1:] = [Goal("own", "raw", 0.7)]
        read.add("raw", found["raw"])
        by_record = self.row(f"the same, record by record, {_size(size)}", "records/s")
        by_record.add("own", found["by record"])
        for log in self.others:
            records = _records(size, BATCH_BYTES) // log.share
            write.add(log.name, uvloop.run(log.write(name, size, records)))
            read.add(log.name, uvloop.run(log.read(name, size, records)))

    def _peer_rates(self, name: str, size: int) -> dict[int, tuple[float, float]]:
        """Return by size of entries what the peer writes and reads; nothing without it."""
        if self.java is None:
            return {}
        bulks, singles = [], []
        for batch_bytes in BATCHES:
            each, calls = records_in_entry(size, batch_bytes), calls_under_way(batch_bytes)
            records = _records(size, batch_bytes) // 2 // each * each
            bulks.append((batch_bytes, each, calls, records))
            singles.append((batch_bytes, 1, calls * each, records))
        # Where an entry takes one record they are the same.
        cases = list(dict.fromkeys(bulks + singles))
        written = dict(
            zip(cases, self.java.load_streams("write", 3, cases, stream=name, size=size),
                strict=True)
        )  # fmt: skip
        try:
            read = self.java.load_streams("read", 3, bulks, stream=name, size=size)
        except RuntimeError as error:
            # Its reader now and then waits for ever, as in apache/bookkeeper pull request 1973.
            print(f"DistributedLog reads again: {error}", file=sys.stderr)
            read = self.java.load_streams("read", 3, bulks, stream=name, size=size)
        return {
            bulk[0]: (max(written[bulk], written[single]), rate)
            for bulk, single, rate in zip(bulks, singles, read, strict=True)
        }

    def tails(self, number: int) -> None:
        """Follow a writer of each system at a thousand records a second."""
        name = f"t{number}"
        found = {"own": uvloop.run(_tail(f"{self.own.uri}#{NAMESPACE}", name, self.seconds))}
        for log in self.others:
            found[log.name] = uvloop.run(log.tail(name, self.seconds))
        for label, part in ("p50", 0.5), ("p99", 0.99):
            row = self.row(f"append to a reader in another process, {label}", "ms")
            for system, delays in found.items():
                row.add(system, delays[int(len(delays) * part)])

    def segments(self, number: int) -> None:
        """Read a stream of many small segments, ahead and one after the other."""
        row = self.row(
            f"catch-up read of {SMALL_SEGMENTS} segments of 100 records",
            "segments/s",
            Goal("own", "one at a time", None),
        )
        found = uvloop.run(_small(f"{self.own.uri}#{NAMESPACE}", f"m{number}"))
        for system, rate in found.items():
            row.add(system, rate)

    # Single figures ------------------------------------------------------------------------

    def figures(self, times: int) -> list[Figure]:
        """Kill writers and take over."""
        found = [_goal_figure(self.scenarios, "p50", 3), _goal_figure(self.scenarios, "p99", 8)]
        found += self._takeovers(self.own, "sqlite", times)
        if self.on_zookeeper is not None:
            self.on_zookeeper.start()
            found += self._takeovers(self.on_zookeeper, "ZooKeeper", times)
        return found

    def _takeovers(self, own: Own, store: str, times: int) -> list[Figure]:
        address = f"{own.uri}#{NAMESPACE}"
        forced = uvloop.run(_takeovers(address, "f", times, takeover="force"))
        print(f"takeover on {store}: {forced}", file=sys.stderr)
        worst = max(forced)
        figures = [
            Figure(
                f"kill -9 of a writer, takeover by force on {store}: from the decision to the "
                f"first record, {times} times",
                f"{statistics.median(forced):.3f} s, at most {worst:.3f} s",
                "< 1 s",
                worst < 1,
            )
        ]
        expired = uvloop.run(_takeovers(address, "e", 1, wait_for_lock_s=60))[0]
        figures.append(
            Figure(
                f"the same by expiry of the lock (sessions of {SESSION_S:g} s)",
                f"{expired:.2f} s",
                "session + 1 s",
                expired < SESSION_S + 1,
            )
        )
        return figures


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{round(size_bytes / 1024)} KB"


def _records(size: int, batch_bytes: int) -> int:
    return min(SIZES[size], ENTRIES_MAX * records_in_entry(size, batch_bytes))


async def _takeovers(address: str, prefix: str, times: int, **how: object) -> list[float]:
    async with Namespace.open(address, bind=True) as ns:
        return [await take_over(ns, address, f"{prefix}{n}", **how) for n in range(times)]


async def _tail(address: str, name: str, seconds: float) -> list[float]:
    async with Namespace.open(address, bind=True) as ns:
        return await tail(ns, address, name, seconds)


async def _small(address: str, name: str) -> dict[str, float]:
    async with Namespace.open(address, bind=True) as ns:
        await ns.create_stream(name)
        stream = ns.stream(name)
        await small_segments(stream, SMALL_SEGMENTS)
        per_segment = 100
        return {
            "own": await read(stream) / per_segment,
            "one at a time": await read(stream, read_ahead_bytes=0) / per_segment,
        }


def _goal_figure(scenarios: dict[str, Scenario], label: str, bound_ms: float) -> Figure:
    (row,) = (row for row in scenarios.values() if row.title.endswith(label))
    median = statistics.median(row.values["own"])
    title = f"append to a reader in another process at 1,000 records/s, {label}"
    return Figure(title, f"{median:.2f} ms", f"< {bound_ms:g} ms", median < bound_ms)


def write_report(streams: Streams, figures: list[Figure], rounds: int, target: Path) -> None:
    systems = ["own", "raw", "peer", "disk", "one at a time", *(log.name for log in streams.others)]
    rows = list(streams.scenarios.values())
    lines = ["# Measurements of streams", ""]
    lines += [f"`make bench-streams`, {rounds} alternating rounds.", ""]
    lines += [f"- {line}" for line in [*report.machine(), *streams.notes]]
    lines += ["", *report.table(rows, systems), *report.figure_table(figures)]
    lines += single_records.lines(streams.single)
    target.mkdir(parents=True, exist_ok=True)
    remarks = (HERE / "stream_remarks.md").read_text()
    (target / "streams.md").write_text("\n".join(lines) + "\n" + remarks)
    rows += streams.single.scenarios.values()
    raw = {row.title: {"unit": row.unit, **row.values} for row in rows}
    (target / "streams.json").write_text(json.dumps(raw, indent=1) + "\n")
    print("\n".join(lines))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="length of each tail")
    parser.add_argument("--takeovers", type=int, default=5)
    parser.add_argument("--target", type=Path, default=HERE.parent / "docs" / "reports")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    streams = Streams(work, options.seconds)
    parts: list[Callable[[int], None]] = [
        *(lambda number, size=size: streams.rates(number, size) for size in SIZES),
        streams.single.measure,
        streams.tails,
        streams.segments,
    ]
    try:
        streams.start()
        for number in range(options.rounds):
            for part in parts:
                part(number)
            newest = {
                row.title: {system: round(values[-1], 2) for system, values in row.values.items()}
                for row in streams.scenarios.values()
            }
            print(f"round {number + 1}: {newest}", file=sys.stderr)
        figures = streams.figures(options.takeovers)
    finally:
        streams.stop()
        shutil.rmtree(work, ignore_errors=True)
    write_report(streams, figures, options.rounds, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
