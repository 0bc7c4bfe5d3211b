"""``make bench-revisions BEFORE=v``: measure an older revision and this tree in turn.

Says whether a change of the insides costs anybody speed: both run on three bookies of their own,
one after the other, the older one first in even rounds.  Bookies are begun anew in each round:
processes keep their luck (memory, cores) for as long as they live, and a revision beside itself
differed by a fifth with every round on one side while they stood for the whole run.  Each is loaded
by its own client, through its own ``quorumbook bench`` and ``stream_load.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from report import machine
from systems import HERE, Own

THREE = ("--ensemble-size", "3", "--write-quorum", "3", "--ack-quorum", "2")
STREAM = """
import json, uvloop, stream_load
done = stream_load.measure_own({uri!r}, {name!r}, 100, 400_000, stream_load.BATCH_BYTES)
print(json.dumps(uvloop.run(done)))
"""


class Revision:
    """One of the two: its sources, and three bookies of them."""

    def __init__(self, tree: Path, work: Path) -> None:
        self._tree = tree
        self._ledger = ""
        with self._sources():
            # Options of another revision may have other names, so its own bench says them.
            said = runpy.run_path(str(tree / "bench" / "systems.py"))
            self.bookies = Own(work, always=said["FULL_DISKS"])
            self.bookies.start(said["PEER_CACHES"])

    @contextlib.contextmanager
    def _sources(self) -> Iterator[None]:
        """Let what is started meanwhile run this revision."""
        os.environ["PYTHONPATH"] = f"{self._tree / 'src'}{os.pathsep}{self._tree / 'bench'}"
        try:
            yield
        finally:
            del os.environ["PYTHONPATH"]

    def measure(self) -> dict[str, float]:
        """Return each figure's value."""
        with self._sources():
            self._append(1024, 20_000)  # to get warm
            return {
                **self._appends(), **self._reads(), **self._one_add(), **self._one_stream(),
            }  # fmt: skip

    def _load(self, what: str, count: int, *words: str) -> dict[str, float]:
        """Load the bookies; return the rate, and what an entry costs the bookies."""
        began_s = self.bookies.processes.processor_s()
        done = self.bookies.load(*words, "--count", str(count))
        cost_us = (self.bookies.processes.processor_s() - began_s) / count * 1e6
        self._ledger = str(int(done.get("ledger_id", 0)))
        return {f"{what}, entries/s": done["entries_per_s"], f"{what}, us of the bookies": cost_us}

    def _append(self, size: int, count: int) -> dict[str, float]:
        words = ("write", *THREE, "--entry-size", str(size), "--in-flight", "1000")
        return self._load(f"append E3/Qw3/Qa2 {size:,} B", count, *words)

    def _appends(self) -> dict[str, float]:
        return {**self._append(100, 200_000), **self._append(1024, 120_000)}

    def _reads(self) -> dict[str, float]:
        read = ("read", "--ledger", self._ledger)
        return {
            **self._load("sequential read 1,024 B", 120_000, *read),
            **self._load("one read at a time", 5_000, *read, "--random", "--in-flight", "1"),
        }

    def _one_add(self) -> dict[str, float]:
        words = ("write", *THREE, "--in-flight", "1")
        return self._load("one add at a time", 3_000, *words)

    def _one_stream(self) -> dict[str, float]:
        uri = f"{self.bookies.uri}#/messaging/bench"
        script = STREAM.format(uri=uri, name="s")
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
        values: dict[str, float] = json.loads(done.stdout)
        return {
            "stream written in batches 100 B, records/s": values["write"],
            "stream read in batches 100 B, records/s": values["read"],
            "stream read by record 100 B, records/s": values["by record"],
        }


def table(before: list[dict[str, float]], after: list[dict[str, float]]) -> str:
    """Return medians, and the median and the spread of each round's ratio, as Markdown."""
    lines = [
        "| figure | before | now | now/before (lowest to highest) |",
        "|---|---|---|---|",
    ]
    for name in before[0]:
        ratios = sorted(now[name] / then[name] for then, now in zip(before, after, strict=True))
        then_median = statistics.median(values[name] for values in before)
        now_median = statistics.median(values[name] for values in after)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {name} | {then_median:,.4g} | {now_median:,.4g} | {spread} |")
    return "\n".join(lines)


@contextlib.contextmanager
def checkout(revision: str, work: Path) -> Iterator[Path]:
    """Lay out a revision of this repository beside it."""
    tree = work / "tree"
    git = ["git", "-C", str(HERE)]
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), revision], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def measure(tree: Path, work: Path) -> dict[str, float]:
    """Return each figure's value of one revision, on bookies that are begun for it."""
    with tempfile.TemporaryDirectory(dir=work) as directory:
        revision = Revision(tree, Path(directory))
        try:
            return revision.measure()
        finally:
            revision.bookies.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="the older revision")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="quorumbook-bench-") as directory,
        contextlib.ExitStack() as until_end,
    ):
        work = Path(directory)
        tree = until_end.enter_context(checkout(arguments.before, work))
        both = [tree, HERE.parent]
        values: list[list[dict[str, float]]] = [[], []]
        for round_number in range(arguments.rounds):
            for which in (0, 1) if round_number % 2 == 0 else (1, 0):
                values[which].append(measure(both[which], work))
            print(f"round {round_number + 1} of {arguments.rounds}", file=sys.stderr)
    for fact in machine():
        print(f"- {fact}")
    print(f"- {arguments.rounds} alternating rounds, revision {arguments.before} before\n")
    print(table(values[0], values[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
