"""The console and the commands that look at everything, on a cluster of many ledgers and streams.

    make bench-console                        (three minutes; takes Debian's chromium)
    python -m bench.console --ledgers 20000 --streams 1000 [--report docs/reports/console.md]

Three bookies as processes, metadata in SQLite.  The ledgers are metadata alone, as a list sees
them: closed, with sizes, ages and custom metadata that differ.  For each page of the console a
real Chromium says when it painted first, from the click on; the first of the visits, which reads
what later ones find cached, is a row of its own.  For each command it is the time of the process
and its highest resident memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import quorumbook
from quorumbook.client.context import client_store
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

_PAGES = (
    ("overview", "/ui"),
    ("bookies", "/ui/bookies"),
    ("a bookie", "/ui/bookies/{bookie}"),
    ("ledgers", "/ui/ledgers"),
    ("ledgers, a search that finds few", "/ui/ledgers?text=customer-1999"),
    ("a ledger", "/ui/ledgers/1000"),
    ("streams", "/ui/streams"),
    ("a stream", "/ui/streams/tenant-5/stream-500"),
    ("auto-recovery", "/ui/recovery"),
    ("jobs", "/ui/jobs"),
    ("metadata, the ledgers' root", "/ui/metadata?path=/ledgers"),
    ("audit log", "/ui/audit"),
    ("tokens", "/ui/tokens"),
)
_COMMANDS = (
    ("status",),
    ("top", "--once", "--every", "1s"),
    ("bookie", "ls"),
    ("ledger", "ls", "-o", "jsonl"),
    ("ledger", "ls", "--limit", "100"),
    ("ledger", "ls", "--sort", "-bytes", "--limit", "10"),
    ("ledger", "ls", "--find", "customer-1999"),
    ("stream", "ls"),
    ("stream", "ls", "--long", "--sort", "-bytes", "--limit", "10"),
)
#: Runs a command, and says its highest resident memory at last.
_MEASURED = """
import sys
from quorumbook.cli.main import main
code = main(sys.argv[1:])
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0], file=sys.stderr)
sys.exit(code)
"""


async def _fill(cluster: LocalCluster, ledgers: int, streams: int) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as client:
        manager = LedgerManager(client_store(client))
        bookies = tuple(cluster.bookie_ids)
        now_ms = int(time.time() * 1000)

        async def make(number: int) -> None:
            metadata = LedgerMetadata(
                ledger_id=number,
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2,
                digest_type=DigestType.CRC32C, password=b"",
                fragments=(Fragment(0, bookies),),
                state=LedgerState.CLOSED, last_entry_id=number % 50,
                length=number * 7919 % 1_000_003,
                ctime_ms=now_ms - number * 60_000, is_ctime_stored=True,
                custom_metadata={"app": b"billing", "who": f"customer-{number}".encode()},
            )  # fmt: skip
            await manager.create(metadata)

        for first in range(0, ledgers, 200):
            await asyncio.gather(*map(make, range(first, min(first + 200, ledgers))))
        uri = f"{cluster.metadata_uri}#/streams"
        async with Namespace.open(uri, client=client, bind=True) as namespace:
            for number in range(streams):
                await namespace.create_stream(f"tenant-{number // 100}/stream-{number}")


@contextmanager
def _console(uri: str) -> Iterator[str]:
    words = [sys.executable, "-m", "quorumbook", "admin", "run", "--port", "0", "-o", "jsonl"]
    with subprocess.Popen(
        [*words, "--metadata", uri], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@contextmanager
def _painting() -> Iterator[Callable[[str], float]]:
    """Give what visits an address in Chromium and returns when it painted first, in ms."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))

    def visit(address: str) -> float:
        driver.get("about:blank")
        driver.get(address)
        asked = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
        while (painted := float(driver.execute_script(asked))) < 0:
            time.sleep(0.01)
        assert "did not work" not in driver.title, address
        return painted

    try:
        yield visit
    finally:
        driver.quit()


def _command(words: tuple[str, ...], uri: str) -> tuple[float, float]:
    """Run a command, and return its seconds and its highest resident megabytes."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words, "--metadata", uri],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return time.monotonic() - began, int(done.stderr.split()[-2]) / 1024


def _rows(cluster: LocalCluster, visits: int) -> Iterator[str]:
    with _console(cluster.metadata_uri) as url, _painting() as visit:
        yield "| page | first visit | median of the others | slowest of them |"
        yield "|---|---|---|---|"
        for name, path in _PAGES:
            address = url + path.format(bookie=cluster.bookie_ids[0])
            first, *others = [visit(address) for _ in range(visits + 1)]
            middle, worst = statistics.median(others), max(others)
            yield f"| {name} | {first:.0f} ms | {middle:.0f} ms | {worst:.0f} ms |"
    yield ""
    yield "| command | time | most memory |"
    yield "|---|---|---|"
    for words in _COMMANDS:
        seconds, megabytes = _command(words, cluster.metadata_uri)
        yield f"| `quorumbook {' '.join(words)}` | {seconds:.2f} s | {megabytes:.0f} MB |"


def main() -> None:
    """Measure, and print or write the report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ledgers", type=int, default=20_000)
    options.add_argument("--streams", type=int, default=1000)
    options.add_argument("--visits", type=int, default=5)
    options.add_argument("--report", type=Path)
    given = options.parse_args()
    with LocalCluster(bookies=3, processes=True) as cluster:
        began = time.monotonic()
        asyncio.run(_fill(cluster, given.ledgers, given.streams))
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        lines = [
            f"# The console with {given.ledgers:,} ledgers and {given.streams:,} streams",
            "",
            f"Measured with `make bench-console` on {os.cpu_count()} processors: three bookies as "
            "processes, metadata in SQLite, the console's server and Chromium on the same machine.",
            "A page's time is from the click to its first paint with content, in a window that was "
            "empty. The goal is below one second.",
            "A command's time includes the start of its process.",
            "",
        ]
        for line in _rows(cluster, given.visits):
            print(line, flush=True)
            lines.append(line)
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
