"""Whose batch is a table's next one, where its files cannot decide that.

The node ``<ledgers root>-tables/<32 hex digits of SHA-256 over the table's place>`` holds the name
of the last batch that was decided on, as ASCII.  Who replaces the revision that it has read may
make that batch visible; so may everybody else, as what is visible then is the same.
"""

from __future__ import annotations

import hashlib
import re

from quorumbook.client.context import client_store
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import create_with_parents, with_living_session
from quorumbook.metadata.store import Revision
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams.tier.places import bare


class NextBatchNode:
    """The node of one table; all calls block."""

    def __init__(self, cluster: ClusterClient, location: str) -> None:
        """Take the table's path or URI."""
        self._cluster = cluster
        self._store = client_store(cluster.client)
        place = re.sub("^s3a://", "s3://", bare(location).rstrip("/"))
        name = hashlib.sha256(place.encode()).hexdigest()[:32]
        self._path = f"{self._store.ledgers_root}-tables/{name}"

    def read(self) -> tuple[str, Revision | None]:
        """Return what was decided on last, and the revision of that; empty, None: nothing was."""
        node = self._cluster.run(lambda: self._store.exists(self._path))
        return ("", None) if node is None else (node.data.decode(), node.revision)

    def take(self, batch: str, revision: Revision | None) -> bool:
        """Decide on a batch, whose name is nobody else's; False: somebody else was first."""
        return self._cluster.run(lambda: self._take(batch.encode(), revision))

    async def _take(self, data: bytes, revision: Revision | None) -> bool:
        async def write() -> None:
            if revision is None:
                await create_with_parents(self._store, self._path, data)
            else:
                await self._store.set(self._path, data, *revision)

        try:
            await with_living_session(self._store, write)
        except (
            MetadataVersionConflict,
            NodeExistsError,
            NoSuchNodeError,
            MetadataFateUnknownError,
        ):
            # An answer that was lost may have been that it is done.
            node = await self._store.exists(self._path)
            return node is not None and node.data == data
        return True
