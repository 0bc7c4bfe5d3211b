"""Clusters for tests of streams, on each metadata store that users run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from doubles.zookeeper import made_root
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "zookeeper"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """Three bookies in this process."""
    uri = None
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        root = await made_root(server)
        uri = f"zk://{server.address}/ledgers?chroot={root}"
    async with LocalCluster(bookies=3, metadata_uri=uri) as made:
        yield made


@pytest.fixture(scope="module", params=["sqlite", "zookeeper"])
def standing_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three bookies on a thread of their own, for all tests of a module that harm none of them."""
    uri = None
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        root = asyncio.run(made_root(server))
        uri = f"zk://{server.address}/ledgers?chroot={root}"
    with LocalCluster(bookies=3, metadata_uri=uri) as made:
        yield made


@pytest.fixture
async def ns(cluster: LocalCluster) -> AsyncIterator[Namespace]:
    """A namespace with a client of its own."""
    address = f"{cluster.metadata_uri}#/messaging/test-{next(_numbers)}"
    async with Namespace.open(address, bind=True, client_id="test") as made:
        yield made


@pytest.fixture
async def other(cluster: LocalCluster, ns: Namespace) -> AsyncIterator[Namespace]:
    """The same namespace as another process sees it."""
    async with Namespace.open(f"{cluster.metadata_uri}#{ns.path}") as made:
        yield made
