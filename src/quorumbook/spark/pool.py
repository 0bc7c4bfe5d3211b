"""One client for each process and cluster, on a loop in a thread of its own.

Spark's Python workers run task after task, and planners live as long as their query; a client is
made at the first one and stays.  Nothing is to be done at the end: workers are killed at any time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.env import forks
from quorumbook.errors import LocalProtocolError
from quorumbook.loop_thread import LoopBound
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.spark.connection import Connection
from quorumbook.streams.namespace import Namespace

T = TypeVar("T")


class ClusterClient(LoopBound):
    """A cluster as one process sees it; made by ``connected``.

    ``run`` waits for a coroutine, ``iterate_ahead`` for what an asynchronous generator yields.
    """

    def __init__(self, connection: Connection) -> None:
        """Connect."""
        super().__init__()
        self.connection = connection
        self._namespace: Namespace | None = None
        options = connection.client_options()
        uri = connection.metadata_uri
        if uri.startswith("distributedlog"):
            # The namespace's binding says where its ledgers are.
            self._namespace = self.run(lambda: Namespace.open(uri, **options.keywords()))
            self.client = self._namespace.client
        else:
            self.client = BookKeeper(uri, options=options)
            self.run(self.client.start)
        self.instance_id = self.run(lambda: read_instance_id(client_store(self.client)))

    @property
    def is_of_this_process(self) -> bool:
        """Whether it was not made by a parent of this process."""
        return self._process_generation == forks.generation

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for what a coroutine returns."""
        return self._run(work)

    def namespace(self) -> Namespace:
        """Return the namespace of the streams.

        Raises:
            NamespaceNotBoundError: there is none.
        """
        return self.run(self.opened_namespace)

    async def opened_namespace(self) -> Namespace:
        """Return the same, on the loop."""
        if self._namespace is None:
            address = self.connection.namespace_address
            self._namespace = await Namespace.open(address, client=self.client)
        return self._namespace

    def run_in_turn(self, works: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run coroutines one after the other; while one runs, the next one is got ready."""
        self._check_process()
        under_way: concurrent.futures.Future[None] | None = None
        try:
            for work in works:
                if under_way is not None:
                    under_way.result()
                under_way = asyncio.run_coroutine_threadsafe(work(), self._loop_thread.loop)
            if under_way is not None:
                under_way.result()
        finally:
            if under_way is not None:
                under_way.cancel()

    def iterate_ahead(self, start: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """Run an asynchronous iteration; two items are made ahead of the one that is used."""
        items: queue.SimpleQueue[tuple[T] | BaseException | None] = queue.SimpleQueue()
        room = asyncio.Semaphore(2)

        async def work() -> None:
            try:
                async with contextlib.aclosing(start()) as iteration:
                    async for item in iteration:
                        items.put((item,))
                        await room.acquire()
                items.put(None)
            except BaseException as error:
                items.put(error)
                raise

        self._check_process()
        task = asyncio.run_coroutine_threadsafe(work(), self._loop_thread.loop)
        try:
            while (found := items.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found[0]
                self._loop_thread.loop.call_soon_threadsafe(room.release)
        finally:
            task.cancel()


class _Turn:
    """One thread at a time connects; in a child made by fork none of the parent's does."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        forks.watch(self, _Turn.abandon)

    def abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child: begin with a lock that nobody holds."""
        del error, may_act
        self.lock = threading.Lock()
        forks.watch(self, _Turn.abandon)


_clusters: dict[Connection, ClusterClient] = {}
_turn = _Turn()


def connected(connection: Connection) -> ClusterClient:
    """Return this process's client of a cluster.

    Raises:
        ConfigError: the options are wrong.
        ClusterNotInitializedError: there is no cluster.
        MetadataUnavailableError: the metadata store does not answer.
    """
    with _turn.lock:
        found = _clusters.get(connection)
        if found is None or not found.is_of_this_process:
            found = _clusters[connection] = ClusterClient(connection)
        return found
