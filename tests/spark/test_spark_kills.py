"""A Spark query whose executor and bookie are killed in the middle of its batches, and whose driver
stands still there with all that belongs to it, until another one has done the rest.

What stands still and goes on later has done all that what is killed has done, and more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark_copy

from doubles.file_server import file_server
from doubles.spark import descendants
from doubles.zookeeper import fresh_root
from quorumbook.metadata.store import DEFAULT_SESSION_TIMEOUT_S
from quorumbook.metadata.uri import open_store
from quorumbook.streams import Namespace
from quorumbook.streams.transactions import Place, collect_orphans
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.faults
PATIENCE_S = 240
VICTIMS = "executor", "bookie", "driver"
#: The driver runs the same sources as this process.
_PATHS = os.pathsep.join(["tests", *filter(None, [os.environ.get("PYTHONPATH")])])


class Driver:
    """A query's process, with what it started."""

    def __init__(self, *words: str, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, spark_copy.__file__, *words],
                stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": _PATHS},
                cwd=Path(__file__).parents[2],
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver, its JVM first, and then what its executors would end with."""
        pids = [*descendants(self._process.pid), self._process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """Have the driver, its executors and their workers stand still, as a frozen machine."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> str:
        """Have them go on, to their end or for a minute; return what the driver says."""
        self._signal(signal.SIGCONT)
        # On a busy machine Spark first starts executors again, which it gave up meanwhile.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        return self._log.read_text()

    def _signal(self, number: signal.Signals) -> None:
        for pid in [self._process.pid, *descendants(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def holds(self, told: Path) -> int:
        """Wait until a task holds, and return its executor."""
        deadline = time.monotonic() + PATIENCE_S
        while not told.exists():
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"no {told.name}: {self._log.read_text()[-3000:]}"
            time.sleep(0.05)
        return int(told.read_text())


@pytest.fixture
def where(spark_ends_first: None, zookeeper: ZooKeeperServer) -> Iterator[tuple[LocalCluster, str]]:
    """A cluster of processes on ZooKeeper, and where its streams are."""
    root = fresh_root()

    async def make_root() -> None:
        everything = await open_store(f"zk://{zookeeper.address}/ledgers")
        await everything.create(root)
        await everything.close()

    asyncio.run(make_root())
    uri = f"zk://{zookeeper.address}{root}/ledgers"
    with LocalCluster(bookies=4, processes=True, metadata_uri=uri) as cluster:
        yield cluster, f"{root}/streams"


def rows() -> list[bytes]:
    """Return three batches, with a row in the middle of each at which somebody dies."""
    found = [b"row %d" % number for number in range(len(VICTIMS) * spark_copy.BATCH)]
    for number, name in enumerate(VICTIMS):
        found[number * spark_copy.BATCH + 45] = b"hold " + name.encode()
    return found


def test_an_executor_and_a_bookie_die_the_driver_stands_still_and_each_row_is_there_once(
    spark: Any, where: tuple[LocalCluster, str], tmp_path: Path
) -> None:
    cluster, namespace = where
    address = f"{cluster.metadata_uri}#{namespace}"

    async def prepare() -> None:
        async with Namespace.open(address, bind=True) as ns:
            for name in "in", "out":
                await ns.create_stream(name)
            async with ns.stream("in").writer() as writer:
                for first in range(0, len(rows()), spark_copy.ROWS):
                    await writer.append_batch(rows()[first : first + spark_copy.ROWS])

    async def look() -> tuple[list[bytes], set[int]]:
        async with Namespace.open(address) as ns:
            async with ns.stream("out").reader(tail=False) as reader:
                found = [record.payload async for record in reader]
            await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))
            used = {
                segment.metadata.ledger_id
                for name in ("in", "out")
                for segment in await ns.stream(name).segments()
            }
            return found, {each async for each in ns.client.list_ledger_ids()} - used

    asyncio.run(prepare())
    # The cluster keeps the checkpoint as well.
    with file_server(cluster.metadata_uri) as files:
        checkpoint = f"{files}/checkpoint"
        own = f"checkpointLocation={checkpoint}"
        words = cluster.metadata_uri, namespace, str(tmp_path), "", own
        driver = Driver(*words, log=tmp_path / "driver.log")
        try:
            for victim in VICTIMS:
                executor = driver.holds(tmp_path / f"{victim}.at")
                if victim == "executor":
                    os.kill(executor, signal.SIGKILL)
                elif victim == "bookie":
                    cluster.kill(cluster.bookie_ids[0])
                else:
                    driver.pause()
                    paused_s = time.monotonic()
                (tmp_path / f"{victim}.go").touch()
            # Another driver goes on from the checkpoint.
            spark_copy.copy(
                spark, cluster.metadata_uri, namespace, tmp_path, checkpointLocation=checkpoint
            )
            # By then nobody waits for the first one any more.
            time.sleep(max(0, paused_s + 1.5 * DEFAULT_SESSION_TIMEOUT_S - time.monotonic()))
            told = driver.go_on()
        finally:
            driver.kill()
    assert not (tmp_path / "checkpoint").exists()
    found, leaked = asyncio.run(look())
    assert found == rows(), told[-3000:]
    assert leaked == set(), told[-3000:]
