"""Streams that a server keeps open between requests: namespaces, writers, members of groups.

A stream has one writer, so a writer is kept for a moment after an append and then lets go; others
that want the stream wait for it or take it over.  A member of a group is kept as long as it comes
back for more; after that its partitions go to others, and what was not acknowledged is handed
out again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from quorumbook.admin.http.problems import ApiError
from quorumbook.client.client import BookKeeper
from quorumbook.env import patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.streams import (
    Consumer,
    Delivery,
    Namespace,
    PartitionedStream,
    Stream,
    StreamWriter,
)
from quorumbook.streams.errors import StreamNotFoundError

#: So long a writer keeps its stream after an append.
_WRITER_IDLE_S = 2.0
#: So long a member stays in its group without asking for more.
MEMBER_IDLE_S = 60.0
_WRITERS_MAX = 64
_MEMBERS_MAX = 64
_NAMESPACES_MAX = 64
#: Records that a member may have in hand, so that nobody fills memory by never acknowledging.
IN_HAND_MAX = 10_000
_WAIT_FOR_WRITER_S = 5.0


@dataclass(slots=True)
class _HeldWriter:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    producer: str | None = None
    writer: StreamWriter | None = None
    idle: patience.Timer | None = None
    #: How many requests want it; it stays while there are any.
    wanted: int = 0


@dataclass(slots=True)
class HeldMember:
    """A member of a group, and what it has in hand."""

    consumer: Consumer
    #: By partition and sequence id.
    in_hand: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: patience.Timer | None = None


class HeldStreams:
    """What one server holds.

    Args:
        client: Returns the client of the cluster, started.
        metadata_uri: Where the cluster's metadata is.
    """

    def __init__(self, client: Callable[[], Awaitable[BookKeeper]], metadata_uri: str) -> None:
        self._client = client
        self._uri = metadata_uri
        self._namespaces: dict[str, Namespace] = {}
        self._writers: dict[tuple[str, str], _HeldWriter] = {}
        self._members: dict[tuple[str, str, str, str], HeldMember] = {}
        self._joining = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def namespace(self, path: str, *, bind: bool = False) -> Namespace:
        """Return a namespace.

        Raises:
            NamespaceNotBoundError: There are no streams at this path.
        """
        found = self._namespaces.get(path)
        if found is None:
            client = await self._client()
            found = await Namespace.open(f"{self._uri}#{path}", client=client, bind=bind)
            if len(self._namespaces) >= _NAMESPACES_MAX:
                self._namespaces.pop(next(iter(self._namespaces)))
            self._namespaces[path] = found
        return found

    async def whole(self, path: str, name: str) -> Stream | PartitionedStream:
        """Return a stream, or all partitions of a partitioned one."""
        namespace = await self.namespace(path)
        try:
            return await PartitionedStream.open(namespace, name)
        except StreamNotFoundError:
            return namespace.stream(name)

    async def one(self, path: str, name: str, partition: int | None) -> Stream:
        """Return a stream, or one partition.

        Raises:
            ApiError: It is partitioned, and no partition is named, or there is none of this number.
        """
        found = await self.whole(path, name)
        if isinstance(found, Stream):
            if partition is not None:
                raise ApiError(400, "not-partitioned", f"stream {name} has no partitions")
            return found
        count = len(found.partitions)
        if partition is None:
            raise ApiError(
                400,
                "partition-missing",
                f"stream {name} has {count} partitions; say which: partition=0 to {count - 1}",
            )
        if partition >= count:
            raise ApiError(404, "no-such-partition", f"stream {name} has {count} partitions")
        return found.partitions[partition]

    # Writers -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def writing(
        self, path: str, stream: Stream, producer: str | None
    ) -> AsyncIterator[StreamWriter]:
        """Hold a stream's writer for the length of a block; requests come one after the other."""
        key = (path, stream.name)
        if key not in self._writers and len(self._writers) >= _WRITERS_MAX:
            raise ApiError(429, "too-many-writers", f"{_WRITERS_MAX} streams are written already")
        held = self._writers.setdefault(key, _HeldWriter())
        held.wanted += 1
        try:
            async with held.lock:
                if held.idle is not None:
                    held.idle.cancel()
                    held.idle = None
                yield await self._writer(stream, held, producer)
        except BaseException:
            # It may have failed for good; the next request opens another.
            async with held.lock:
                await self._drop(held)
            raise
        finally:
            held.wanted -= 1
            if not held.wanted:
                delay_s = _WRITER_IDLE_S if held.writer else 0
                held.idle = patience.Timer(delay_s, partial(self._let_go, key))

    async def _writer(
        self, stream: Stream, held: _HeldWriter, producer: str | None
    ) -> StreamWriter:
        if held.writer is not None and held.producer != producer:
            await self._drop(held)
        if held.writer is None:
            held.writer = await stream.writer(producer=producer, wait_for_lock_s=_WAIT_FOR_WRITER_S)
            held.producer = producer
        return held.writer

    async def _drop(self, held: _HeldWriter) -> None:
        writer, held.writer = held.writer, None
        if writer is not None:
            with contextlib.suppress(Exception):
                await writer.close()

    def _let_go(self, key: tuple[str, str]) -> None:
        held = self._writers.get(key)
        if held is None or held.wanted:
            return
        del self._writers[key]
        self._in_background(self._drop(held))

    # Members of groups ---------------------------------------------------------------------

    async def member(self, path: str, name: str, group: str, member: str) -> HeldMember:
        """Return a member of a group, which joins it if it is new.

        Raises:
            ApiError: The stream has no partitions, or too many members are there.
        """
        key = (path, name, group, member)
        async with self._joining:
            found = self._members.get(key)
            if found is None:
                if len(self._members) >= _MEMBERS_MAX:
                    raise ApiError(
                        429, "too-many-members", f"{_MEMBERS_MAX} members are here already"
                    )
                stream = await self.whole(path, name)
                if isinstance(stream, Stream):
                    await stream.info()  # says so if there is none
                    raise ApiError(
                        400,
                        "not-partitioned",
                        f"stream {name} is not partitioned, so it has no groups; read it by a "
                        "position, or create it with partitions",
                    )
                found = HeldMember(await stream.consumer(group, auto_commit_s=0))
                self._members[key] = found
        if found.idle is not None:
            found.idle.cancel()
        found.idle = patience.Timer(MEMBER_IDLE_S, partial(self._leave, key))
        return found

    def _leave(self, key: tuple[str, str, str, str]) -> None:
        member = self._members.pop(key, None)
        if member is not None:
            self._in_background(member.consumer.close())

    async def leave(self, path: str, name: str, group: str, member: str) -> bool:
        """Have a member leave its group, and tell whether there was one."""
        found = self._members.pop((path, name, group, member), None)
        if found is None:
            return False
        if found.idle is not None:
            found.idle.cancel()
        await found.consumer.close()
        return True

    # The end -------------------------------------------------------------------------------

    def _in_background(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with contextlib.suppress(Exception):
                await work

        task = asyncio.ensure_future(run())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close all."""
        for held in list(self._writers.values()):
            if held.idle is not None:
                held.idle.cancel()
            await self._drop(held)
        for key in list(self._members):
            await self.leave(*key)
        for task in list(self._ending):
            await task
        await cancel_and_wait(list(self._ending))
        for namespace in self._namespaces.values():
            await namespace.close()
        self._namespaces.clear()
