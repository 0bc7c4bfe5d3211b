"""Clusters for tests of streams, on each metadata store that users run."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from doubles.clusters import STORES, local_cluster, local_cluster_here
from quorumbook.streams import Namespace
from quorumbook.testing import LocalCluster

_numbers = itertools.count()

cluster = local_cluster_here(STORES)
#: For all tests of a module that harm none of its bookies.
standing_cluster = local_cluster(STORES, scope="module")


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
