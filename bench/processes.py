"""Measure 1, 2 and 3 bookies of one machine, as ``bookie run --processes`` runs them.

    python bench/processes.py [--rounds 3]

What tells how it goes on with more cores than this machine has is the processor time of an entry:
as long as more processes do not raise it, rates rise with the cores.  Each round measures every
number once, in turn, with as many writers at a time as processes; each entry has one replica, so
that the writers do not take the processors from the bookies.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from report import machine
from systems import FULL_DISKS, PEER_CACHES, Processes, quorumbook

COUNTS = (1, 2, 3)
SIZES = {100: 300_000, 1024: 150_000}
SINGLE = ("--ensemble-size", "1", "--write-quorum", "1", "--ack-quorum", "1")


def children(pid: int) -> list[int]:
    """Return the processes that one has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processor_s(pids: list[int]) -> float:
    """Return the processor time that these have taken."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(directory: Path, count: int) -> Iterator[tuple[str, list[int]]]:
    """Run so many bookies; yield where their metadata is, and their process ids."""
    uri = f"sqlite:///{directory}/metadata.db"
    processes = Processes(directory)
    words = quorumbook("cluster", "init", "--metadata", uri)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    run = quorumbook("bookie", "run", "-o", "json", "--port", "0", "--metadata", uri,
                     "--data-dir", str(directory / "data"), "--processes", str(count))  # fmt: skip
    pid = processes.start("bookies", run, {**PEER_CACHES, **FULL_DISKS})
    try:
        while processes.output("bookies").count('"bookie_id"') < count:
            time.sleep(0.05)
        yield uri, children(pid) if count > 1 else [pid]
    finally:
        processes.stop_all()


def write(uri: str, writers: int, size: int) -> float:
    """Append by so many processes at a time; return entries a second of all."""
    words = quorumbook("bench", "write", "-o", "json", "--metadata", uri, *SINGLE,
                       "--entry-size", str(size),
                       "--count", str(SIZES[size] // writers))  # fmt: skip
    with ThreadPoolExecutor(writers) as threads:
        running = [
            threads.submit(subprocess.check_output, words, stderr=subprocess.DEVNULL)
            for _ in range(writers)
        ]
        answers = [json.loads(each.result()) for each in running]
    return sum(float(answer["entries_per_s"]) for answer in answers)


def measure(count: int, size: int) -> tuple[float, float]:
    """Return entries a second, and what one costs the bookies in µs of processor time."""
    directory = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    try:
        with service(directory, count) as (uri, pids):
            write(uri, count, size)  # connections, files and the interpreter are warm
            before_s = processor_s(pids)
            rate = write(uri, count, size)
            entries = SIZES[size] // count * count
            return rate, (processor_s(pids) - before_s) / entries * 1e6
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def spread(values: list[float], digits: int) -> str:
    """Return a median with the lowest and the highest."""
    numbers = statistics.median(values), min(values), max(values)
    return "{:,.{d}f} ({:,.{d}f} to {:,.{d}f})".format(*numbers, d=digits)


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    costs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for size in SIZES:
            for count in COUNTS:
                rate, cost = measure(count, size)
                rates[size, count].append(rate)
                costs[size, count].append(cost)
                print(f"{size} B, {count}: {rate:,.0f}/s, {cost:.2f} us", file=sys.stderr)
    print("\n".join(machine()), f"- {rounds} alternating rounds\n", sep="\n")
    print("| entry | processes | entries/s | µs of the bookies an entry |\n|---|---|---|---|")
    for (size, count), found in rates.items():
        print(f"| {size} B | {count} | {spread(found, 0)} | {spread(costs[size, count], 2)} |")


if __name__ == "__main__":
    main()
