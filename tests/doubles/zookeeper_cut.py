"""A client that is cut off from its ZooKeeper in the middle of a write, while others go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from doubles.zookeeper import close_session, made_root
from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper.jute import Op
from quorumbook.metadata.zookeeper.store import ZooKeeperStore
from quorumbook.zookeeper_server import ZooKeeperServer

_WRITES = {Op.CREATE, Op.CREATE2, Op.SET, Op.DELETE, Op.MULTI}
#: What becomes of a write, and whether the session ends meanwhile.
FATES = [
    (Mishap.NOT_SENT, False), (Mishap.NOT_ANSWERED, False),
    (Mishap.NOT_SENT, True), (Mishap.NOT_ANSWERED, True),
]  # fmt: skip


class Cut:
    """Cuts the client of a proxy off at one of its writes.

    Args:
        server: Behind the proxy.
        proxy: Before the server.
        store: The client's.
    """

    def __init__(self, server: ZooKeeperServer, proxy: Proxy, store: ZooKeeperStore) -> None:
        self._server = server
        self._proxy = proxy
        self._store = store
        self._is_cut = asyncio.Event()
        self._mishap = Mishap.NONE

    def at_next_write(self, mishap: Mishap, *, skip: int = 0) -> None:
        """Cut it off at the next write, or behind some more of them; it has this mishap."""
        self._is_cut.clear()
        self._mishap = mishap
        left = skip

        def choose(number: int) -> Mishap:
            nonlocal left
            if number not in _WRITES:
                return Mishap.NONE
            if left:
                left -= 1
                return Mishap.NONE
            self._proxy.is_deaf = True
            self._proxy.on_request = lambda _op: Mishap.NONE
            self._is_cut.set()
            return mishap

        self._proxy.on_request = choose

    async def happened(self) -> None:
        """Wait until the write has become what it is to become."""
        await self._is_cut.wait()
        await self._proxy.deafen()

    async def end(self, *, is_over: bool) -> None:
        """Let the client come back, in another session maybe."""
        if is_over:
            await close_session(self._store, (self._server.host, self._server.port))
        self._proxy.is_deaf = False
        self._proxy.cut()

    async def overtaken(
        self,
        write: Callable[[], Awaitable[Any]],
        mishap: Mishap,
        rival: Callable[[], Awaitable[Any]] | None,
        *,
        is_over: bool,
        skip: int = 0,
    ) -> Any:
        """Return the result or error of a write, after what a rival does meanwhile.

        ``Uncut`` if it was over before it made as many writes as are skipped.
        """
        self.at_next_write(mishap, skip=skip)
        task = asyncio.ensure_future(_ended(write))
        happened = asyncio.ensure_future(self.happened())
        await asyncio.wait([task, happened], return_when=asyncio.FIRST_COMPLETED)
        if not self._is_cut.is_set():
            self._proxy.on_request = lambda _op: Mishap.NONE
            happened.cancel()
            return Uncut(await task)
        await happened
        if rival is not None:
            await rival()
        await self.end(is_over=is_over)
        return await task


class Uncut(NamedTuple):
    """What became of something that was over before it was cut off."""

    result: Any


async def _ended(write: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await write()
    except QuorumbookError as error:
        return error


@contextlib.asynccontextmanager
async def cut_store(
    server: ZooKeeperServer,
) -> AsyncIterator[tuple[Cut, ZooKeeperStore, ZooKeeperStore]]:
    """Yield what cuts a store off, that store, and another one of the same tree."""
    root = await made_root(server)
    async with Proxy(server.host, server.port) as proxy:
        mine = await open_store(f"zk://127.0.0.1:{proxy.port}/ledgers?chroot={root}")
        theirs = await open_store(f"zk://{server.address}/ledgers?chroot={root}")
        try:
            yield Cut(server, proxy, mine), mine, theirs
        finally:
            await mine.close()
            await theirs.close()
