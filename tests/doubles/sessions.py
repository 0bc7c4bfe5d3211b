"""Ends a metadata session from elsewhere, as if its process had been paused for too long."""

from __future__ import annotations

import contextlib
import sqlite3

from doubles.zookeeper import end_session
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.zookeeper.store import ZooKeeperStore


async def end_session_of(store: MetadataStore) -> None:
    """End the session of a store on SQLite or ZooKeeper; its owner finds out by itself."""
    if isinstance(store, ZooKeeperStore):
        await end_session(store)
        return
    path = store.uri.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        ended = connection.execute(
            "UPDATE session SET lease_end_ns = 0 WHERE id = ?", (store.session_id,)
        )
        assert ended.rowcount == 1
