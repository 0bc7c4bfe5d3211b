"""The fixture ``cluster``: what it is stands here once, and a module of tests says which it means.

cluster = local_cluster(scope="module")     # bookies on a thread of their own
cluster = local_cluster_here(STORES)        # on the loop of the test, on each of these stores
cluster = scripted_cluster(bookies=5)       # mock bookies, which do what a test tells them to
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest

from doubles.mock_bookie import MockCluster, mock_cluster
from doubles.zookeeper import made_root
from quorumbook.testing import LocalCluster

#: The metadata stores that users of streams run.
STORES = ("sqlite", "zookeeper")


def local_cluster(
    stores: tuple[str, ...] = (),
    *,
    bookies: int = 3,
    scope: Literal["function", "module", "session"] = "function",
    before_its_end: Callable[[LocalCluster], object] = lambda _: None,
) -> Any:
    """Return a fixture of bookies in this process, on a thread of their own."""

    @pytest.fixture(scope=scope, params=stores or None)
    def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
        server = _zookeeper(request)
        uri = server and asyncio.run(_uri_on(server))
        with LocalCluster(bookies=bookies, metadata_uri=uri) as made:
            yield made
            before_its_end(made)

    return cluster


def local_cluster_here(stores: tuple[str, ...] = ()) -> Any:
    """Return a fixture of three bookies on the loop of the test, which may stop and start them."""

    @pytest.fixture(params=stores or None)
    async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
        server = _zookeeper(request)
        uri = server and await _uri_on(server)
        async with LocalCluster(bookies=3, metadata_uri=uri) as made:
            yield made

    return cluster


def scripted_cluster(bookies: int = 3) -> Any:
    """Return a fixture of mock bookies."""

    @pytest.fixture
    async def cluster() -> AsyncIterator[MockCluster]:
        async with mock_cluster(bookies) as made:
            yield made

    return cluster


def _zookeeper(request: pytest.FixtureRequest) -> Any:
    is_on_it = getattr(request, "param", None) == "zookeeper"
    return request.getfixturevalue("zookeeper") if is_on_it else None


async def _uri_on(server: Any) -> str:
    return f"zk://{server.address}/ledgers?chroot={await made_root(server)}"
