"""Measure what bookies do in the background: deleted ledgers, and compaction beside a writer.

    python bench/background.py [--metadata zookeeper] [--rounds 3] [--target docs/reports]

Both are figures of processes with our defaults, but for intervals that would take an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from report import Figure, machine
from systems import HERE, Own, wait_until

LEDGERS = 10_000
#: Written in turn, so that their runs lie side by side in every entry log.
COMPACTED_LEDGERS = 400
COMPACTED_ENTRIES = 300_000
RATE = 3_000
SECONDS = 12
SETTINGS = {
    "QUORUMBOOK_HTTP_ENABLED": "true",
    "QUORUMBOOK_HTTP_PORT": "0",
    "QUORUMBOOK_GC_INTERVAL_S": "3600",
    "QUORUMBOOK_GC_CONFIRM_INTERVAL_S": "0",
    "QUORUMBOOK_GC_MAX_LEDGERS_SHARE": "1",
    "QUORUMBOOK_STORAGE_ENTRY_LOG_SIZE_BYTES": str(64 << 20),
}
E3 = ["--ensemble-size", "3", "--write-quorum", "3", "--ack-quorum", "2"]


def ask(address: str, method: str, path: str) -> dict[str, float]:
    request = urllib.request.Request(f"{address}/api/v1/bookie/{path}", method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, float] = json.load(answer)
    return found


def addresses(own: Own) -> list[str]:
    """Return where the bookies serve HTTP; they say so when they start."""
    found = []
    for name in own.processes.running:
        words = own.processes.output(name).split()
        found.append(next(word.strip('",') for word in words if "http://" in word))
    return found


async def delete(uri: str, every: int) -> list[int]:
    """Delete all ledgers but each ``every``-th one; return those."""
    from quorumbook.env import Env
    from quorumbook.metadata.ledgers import LedgerManager
    from quorumbook.metadata.uri import open_store

    store = await open_store(uri, Env())
    try:
        ledgers = LedgerManager(store)
        ids = [ledger_id async for ledger_id in ledgers.list()]
        kept = ids[::every] if every else []
        gone = sorted(set(ids) - set(kept))
        for start in range(0, len(gone), 200):
            await asyncio.gather(*map(ledgers.delete, gone[start : start + 200]))
        return gone
    finally:
        await store.close()


def passes(own: Own, kind: str = "") -> None:
    """Have every bookie make a whole pass from now on."""
    for address in addresses(own):
        before = ask(address, "GET", "gc_details")["passes"]
        ask(address, "PUT", f"gc{kind}")
        wait_until(
            lambda address=address, before=before: (
                ask(address, "GET", "gc_details")["passes"] > before
            ),
            address,
            600,
        )


def deleted_ledgers(own: Own) -> Figure:
    own.load("write", "--ledgers", str(LEDGERS), *E3, "--entry-size", "1024", "--count", "100000")
    gone = len(asyncio.run(delete(own.uri, 0)))
    began = time.monotonic()
    passes(own)
    passes(own)
    took = time.monotonic() - began
    details = [ask(address, "GET", "gc_details") for address in addresses(own)]
    assert [one["deleted_ledgers"] for one in details] == [gone] * len(details), details
    logs = sum(one["active_logs"] for one in details)
    return Figure(
        f"{gone:,} deleted ledgers of 3 bookies collected, one after the other; logs left: {logs}",
        f"{took:.1f} s",
        "< 60 s",
        took < 60,
    )


def write_open_loop(own: Own) -> float:
    words = [*E3, "--entry-size", "1024", "--count", str(RATE * SECONDS), "--rate", str(RATE)]
    return own.load("write", *words, "--in-flight", "5000")["p99_ms"]


def beside_compaction(own: Own, rounds: int) -> list[Figure]:
    quiet, beside, moved = [], [], []
    for _ in range(rounds):
        words = ["--ledgers", str(COMPACTED_LEDGERS), *E3, "--entry-size", "1024"]
        own.load("write", *words, "--count", str(COMPACTED_ENTRIES))
        # A flush is over, and what is deleted is found, before the quiet half begins.
        asyncio.run(delete(own.uri, 2))
        passes(own)
        passes(own)
        quiet.append(write_open_loop(own))
        before = compacted(own)
        stop = threading.Event()
        pressing = threading.Thread(target=press, args=(own, stop))
        pressing.start()
        beside.append(write_open_loop(own))
        stop.set()
        pressing.join()
        moved.append((compacted(own) - before) / 3 / SECONDS / 1e6)
        print(f"quiet {quiet[-1]:.2f} ms, beside {beside[-1]:.2f} ms, {moved[-1]:.1f} MB/s",
              file=sys.stderr)  # fmt: skip
    ratios = [b / q for b, q in zip(beside, quiet, strict=True)]
    return [
        Figure(
            f"p99 of {RATE:,} adds/s of 1 KB at E3 while all three bookies compact "
            f"({statistics.median(moved):.1f} MB/s moved by each)",
            f"{statistics.median(beside):.2f} ms ({min(beside):.2f} to {max(beside):.2f}), quiet "
            f"{statistics.median(quiet):.2f} ms ({min(quiet):.2f} to {max(quiet):.2f}): "
            f"{statistics.median(ratios):.2f}-fold",
            "< 3-fold",
            statistics.median(ratios) < 3,
        )
    ]


def compacted(own: Own) -> float:
    return sum(ask(address, "GET", "gc_details")["compacted_bytes"] for address in addresses(own))


def press(own: Own, stop: threading.Event) -> None:
    while not stop.is_set():
        for address in addresses(own):
            ask(address, "PUT", "gc?major=true")
        stop.wait(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="ledgers or compaction")
    parser.add_argument("--target", type=Path, default=HERE.parent / "docs" / "reports")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    own = Own(work)
    figures = []
    try:
        own.start(SETTINGS)
        if arguments.only in ("", "ledgers"):
            figures.append(deleted_ledgers(own))
        if arguments.only in ("", "compaction"):
            figures += beside_compaction(own, arguments.rounds)
    finally:
        own.stop()
        shutil.rmtree(work, ignore_errors=True)
    write(figures, arguments)
    return 0


def write(figures: list[Figure], arguments: argparse.Namespace) -> None:
    lines = ["# Work in the background", ""]
    lines += [f"`make bench-background`, {arguments.rounds} rounds."]
    lines += [
        "",
        *(f"- {line}" for line in machine()),
        "",
        "| figure | measured | goal | reached |",
    ]
    lines.append("|---|---|---|---|")
    for figure in figures:
        mark = "yes" if figure.reached else "**no**"
        lines.append(f"| {figure.title} | {figure.value} | {figure.goal} | {mark} |")
    arguments.target.mkdir(parents=True, exist_ok=True)
    (arguments.target / "background.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
