"""A metadata store in one file: the embedded default, for several processes of one host.

``file`` has the tables, ``thread`` the thread, the transactions, leases and watches;
here operations become calls of that thread.  A write that returned is synced to disk; a process
killed at any moment leaves each of its writes done or not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from quorumbook.env import Env
from quorumbook.metadata.sqlite.thread import SqliteCall, SqliteThread
from quorumbook.metadata.store import (
    DEFAULT_LEDGERS_ROOT,
    DEFAULT_SESSION_TIMEOUT_S,
    Node,
    Operation,
    Watch,
)
from quorumbook.metadata.tree import DriverStore, WatchKind, run_callbacks

T = TypeVar("T")
MULTI_LIMIT = 10_000


class SqliteStore(DriverStore):
    """One session on a metadata file; implements ``store.MetadataStore``."""

    def __init__(
        self, path: str, env: Env, *, uri: str, create: bool, session_timeout_s: float
    ) -> None:
        super().__init__(uri, env, DEFAULT_LEDGERS_ROOT, MULTI_LIMIT)
        self.session_timeout_s = session_timeout_s
        self._thread = SqliteThread(
            path,
            env,
            uri=uri,
            create=create,
            session_timeout_s=session_timeout_s,
            on_expired=self._tell_expired,
        )

    @classmethod
    async def open(
        cls,
        path: str,
        env: Env,
        *,
        uri: str,
        create: bool = False,
        session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
    ) -> SqliteStore:
        """Open the file and begin a session."""
        store = cls(path, env, uri=uri, create=create, session_timeout_s=session_timeout_s)
        try:
            await store._thread.start()
        except BaseException:
            store._thread.stop()
            raise
        return store

    @property
    def session_id(self) -> int:
        """The present session, also when it is over."""
        return self._thread.session_id

    async def renew_session(self) -> int:
        """Begin another session if the present one is over."""
        return await self._write(self._thread.renew_session, needs_session=False)

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node."""

        def get() -> Node:
            node = self._thread.tree.get(path).node
            self._thread.watch(WatchKind.NODE, path, watch)
            return node

        return await self._read(get)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return nodes, None for each that does not exist."""

        def get_many() -> list[Node | None]:
            rows = map(self._thread.tree.find, paths)
            return [None if row is None else row.node for row in rows]

        return await self._read(get_many)

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node or None."""

        def exists() -> Node | None:
            row = self._thread.tree.find(path)
            self._thread.watch(WatchKind.NODE, path, watch)
            return None if row is None else row.node

        return await self._read(exists)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted."""

        def children() -> list[str]:
            names = self._thread.tree.children(path)
            self._thread.watch(WatchKind.CHILDREN, path, watch)
            return names

        return await self._read(children)

    async def _write_one(self, operation: Operation) -> str | int | None:
        thread = self._thread
        return await self._write(
            lambda: thread.tree.apply(operation, thread.session_id, self._now_ms())
        )

    async def replace(self, path: str, data: bytes, ephemeral: bool) -> None:
        """Delete the node, if there is one, and create it anew."""
        thread = self._thread
        await self._write(
            lambda: thread.tree.replace(
                path, bytes(data), ephemeral, thread.session_id, self._now_ms()
            )
        )

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or none."""
        self._check_size(operations)
        thread = self._thread

        def multi() -> list[str | int | None]:
            now_ms = self._now_ms()
            return [thread.tree.apply(each, thread.session_id, now_ms) for each in operations]

        return await self._write(multi)

    def unwatch(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        self._thread.unwatch(watch)

    async def close(self) -> None:
        """End the session and wait until everything handed in is done."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_expired.clear()
        self._thread.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._call(work, is_write=False, needs_session=False)

    async def _write(self, work: Callable[[], T], *, needs_session: bool = True) -> T:
        return await self._call(work, is_write=True, needs_session=needs_session)

    async def _call(self, work: Callable[[], T], *, is_write: bool, needs_session: bool) -> T:
        self._check_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._thread.submit(SqliteCall(work, future, is_write, needs_session))
        return await future

    def _now_ms(self) -> int:
        return self.env.clock.wall_ms()

    def _tell_expired(self) -> None:
        run_callbacks(self._on_expired.present())
