"""The peer, a ZooKeeper and clusters of all kinds, started once for each test process."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.clusters import Cluster
from interop.peer_driver import Peer
from interop.peer_java import Java, Missing, find_java
from interop.report import Report
from interop.sides import JavaSide, OwnSide, Side
from quorumbook.zookeeper_server import ZooKeeperServer

_NUMBERS = itertools.count()
#: How many bookies each kind of cluster has.
KINDS = {"own": {"own": 3}, "java": {"java": 3}, "mixed": {"own": 3, "java": 3}}


_report = Report() if os.environ.get("INTEROP") == "full" else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _report is not None and (report.when == "call" or report.outcome != "passed"):
        _report.add(report.nodeid, report.outcome, report.duration)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _report is not None and session.testscollected:
        _report.write()


@pytest.fixture(scope="session")
def java() -> Java:
    try:
        return find_java()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def peer(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    peer = Peer(java, tmp_path_factory.mktemp("peer"))
    yield peer
    peer.stop()


@pytest.fixture(scope="session")
def cluster_of(
    java: Java,
    peer: Peer,
    zookeeper: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Cluster]]:
    """Return the cluster of a kind: its bookies are ``own``, ``java`` or ``mixed``."""
    running: dict[str, Cluster] = {}

    async def get(kind: str) -> Cluster:
        if kind not in running:
            directory = tmp_path_factory.mktemp(kind)
            cluster = Cluster(java, peer, zookeeper.address, kind, directory)
            running[kind] = await cluster.start(**KINDS[kind])
        return running[kind]

    yield get
    for cluster in running.values():
        asyncio.run(cluster.stop())


@pytest.fixture
async def new_cluster(
    java: Java, peer: Peer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Cluster]]]:
    """Return what makes a cluster without bookies, for tests that kill some."""
    made: list[Cluster] = []

    async def make(**how: Any) -> Cluster:
        name = f"cluster-{next(_NUMBERS)}"
        cluster = Cluster(java, peer, zookeeper.address, name, tmp_path / name, **how)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        await cluster.stop()


@pytest.fixture(scope="session")
def java_clients() -> dict[str, JavaSide]:
    """The peer's clients that are kept; one takes two seconds to close."""
    return {}


@pytest.fixture
async def connect(
    peer: Peer, java_clients: dict[str, JavaSide]
) -> AsyncIterator[Callable[..., Awaitable[Side]]]:
    """Return what connects a side, by name, to a cluster; ours is closed after the test."""
    opened: list[OwnSide] = []

    async def connect(name: str, uri: str, **options: object) -> Side:
        if name == "own":
            opened.append(await OwnSide.connect(uri, **options))
            return opened[-1]
        key = f"{name} {uri} {options}"
        if key not in java_clients:
            java_clients[key] = await JavaSide.connect(peer, uri, v2=name == "java-v2", **options)
        return java_clients[key]

    yield connect
    for side in opened:
        await side.close()
