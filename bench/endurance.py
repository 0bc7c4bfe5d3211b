"""Figures that need minutes or many ledgers: open loop, memory, start-up, replay."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

from report import Figure
from scenarios import Systems, own_append
from systems import Own, quorumbook

RATE = 20_000
#: Write caches (two) and the read cache of a bookie, as configured by default.
CACHES_MB = 64 + 64 + 32
MEMORY_GOAL_MB = 120 + CACHES_MB
OPEN_LEDGERS, OPEN_LEDGERS_MB = 100_000, 400


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


class MemoryWatch:
    """Samples the resident memory of processes until stopped."""

    def __init__(self, pids: list[int]) -> None:
        self.samples: list[float] = []
        self._pids = pids
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(1.0):
            self.samples.append(max(map(resident_mb, self._pids)))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def open_loop(own: Own, minutes: float) -> list[Figure]:
    """20,000 adds/s of 1 KB at E3 with flushes and rolls, and the memory meanwhile."""
    watch = MemoryWatch(own.pids())
    result = own.load(
        "write",
        "--ensemble-size",
        "3",
        "--write-quorum",
        "3",
        "--ack-quorum",
        "2",
        "--entry-size",
        "1024",
        "--count",
        str(int(RATE * 60 * minutes)),
        "--rate",
        str(RATE),
        "--in-flight",
        "5000",
    )
    watch.stop()
    half = len(watch.samples) // 2
    early, late = max(watch.samples[:half], default=0.0), max(watch.samples[half:], default=0.0)
    title = f"open loop, {RATE:,} adds/s of 1 KB at E3 for {minutes:g} minutes"
    return [
        Figure(f"{title}: p99", f"{result['p99_ms']:.2f} ms", "< 5 ms", result["p99_ms"] < 5),
        Figure(f"{title}: p99.9", f"{result['p999_ms']:.2f} ms", "< 20 ms", result["p999_ms"] < 20),
        Figure(
            "resident memory of a bookie meanwhile, first and second half",
            f"{early:.0f} MB, {late:.0f} MB",
            f"≤ {MEMORY_GOAL_MB} MB ({CACHES_MB} MB of them caches), flat",
            late <= MEMORY_GOAL_MB and late < early * 1.2,
        ),
    ]


def tail(own: Own) -> Figure:
    result = own.load("tail", "--entry-size", "1024", "--count", "5000", "--rate", "1000")
    return Figure(
        "tail of a ledger from another process: p50",
        f"{result['p50_ms']:.2f} ms",
        "< 5 ms",
        result["p50_ms"] < 5,
    )


def start_up(own: Own) -> Figure:
    own.stop_bookies()
    took = []
    for index in range(len(own.ports)):
        began = time.monotonic()
        own.start_bookie(index, {})
        own.wait_ready(index)
        took.append(time.monotonic() - began)
    return Figure(
        "start-up of a bookie with its data", f"{max(took):.2f} s", "< 1 s", max(took) < 1.0
    )


def replay(work: Path) -> Figure:
    """Kill a bookie that never flushed 1 GB, and time its way back."""
    own = Own(work / "replay", bookies=1)
    subprocess.run(
        quorumbook("cluster", "init", "--metadata", own.uri), check=True, stdout=subprocess.DEVNULL
    )
    own.start_bookie(
        0,
        {
            "QUORUMBOOK_STORAGE_WRITE_CACHE_SIZE_BYTES": str(3 << 30),
            "QUORUMBOOK_STORAGE_FLUSH_INTERVAL_S": "3600",
        },
    )
    own.wait_ready(0)
    own_append(own, (1, 1, 1), 1024, 1 << 20)
    own.processes.stop("bookie0", signal.SIGKILL)
    began = time.monotonic()
    own.start_bookie(0, {})
    own.wait_ready(0, 120)
    took = time.monotonic() - began
    own.stop()
    return Figure("replay of 1 GB of unflushed journal", f"{took:.1f} s", "< 30 s", took < 30)


def many_ledgers(own: Own) -> Figure:
    rates = {}
    for ledgers in (100, 20_000):
        rates[ledgers] = own.load(
            "write",
            "--ledgers",
            str(ledgers),
            "--ensemble-size",
            "3",
            "--write-quorum",
            "3",
            "--ack-quorum",
            "2",
            "--entry-size",
            "1024",
            "--count",
            "100000",
            "--in-flight",
            "1000",
        )["entries_per_s"]
    ratio = rates[20_000] / rates[100]
    return Figure(
        "20,000 ledgers written in turn against 100",
        f"{rates[20_000]:,.0f} / {rates[100]:,.0f} entries/s = {ratio:.2f}",
        "≥ 0.6",
        ratio >= 0.6,
    )


def open_ledgers(own: Own, ledgers: int = OPEN_LEDGERS) -> Figure:
    """Return what a bookie's memory is at most while so many ledgers are open and written."""
    watch = MemoryWatch(own.pids())
    try:
        own.load("write", "--ledgers", str(ledgers), "--count", str(2 * ledgers),
                 "--ensemble-size", "3", "--write-quorum", "3", "--ack-quorum", "2",
                 "--entry-size", "100", "--in-flight", "1000")  # fmt: skip
    finally:
        watch.stop()
    most = max(watch.samples, default=0.0)
    title = f"{ledgers:,} open ledgers on three bookies, two entries each: memory of a bookie"
    return Figure(title, f"{most:,.0f} MB", f"≤ {OPEN_LEDGERS_MB} MB", most <= OPEN_LEDGERS_MB)


def measure(systems: Systems, work: Path, minutes: float) -> list[Figure]:
    own = systems.own
    systems.floor.stop()
    if systems.peer is not None:
        systems.peer.stop_bookies()
    # From here on with the caches a bookie has by default.
    own.stop_bookies()
    own.start_bookies({})
    figures = open_loop(own, minutes)
    figures.append(tail(own))
    figures.append(many_ledgers(own))
    figures.append(open_ledgers(own))
    figures.append(start_up(own))
    figures.append(replay(work))
    return figures
