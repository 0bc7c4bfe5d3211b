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
from typing import NamedTuple

from quorumbook.admin.access.roles import Who
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
from quorumbook.streams.format.names import check_stream_name
from quorumbook.streams.metadata.address import parse_address

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


class MemberKey(NamedTuple):
    """Whose member it is: two tokens that give theirs the same name have two members."""

    #: How it was let in, and its name.
    who: tuple[str, str]
    #: Both in normal form.
    namespace: str
    stream: str
    group: str
    name: str


@dataclass(slots=True)
class HeldMember:
    """A member of a group, and what it has in hand."""

    consumer: Consumer
    #: By partition and sequence id.
    in_hand: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    idle: patience.Timer | None = None
    #: How many requests are about it; it stays while there are any.
    wanted: int = 0


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
        self._members: dict[MemberKey, HeldMember] = {}
        self._joining = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def namespace(self, path: str, *, bind: bool = False) -> Namespace:
        """Return a namespace; the one that was asked for least recently makes place for it.

        Raises:
            NamespaceNotBoundError: There are no streams at this path.
            ConfigError: It is not a path.
        """
        path = self._normal(path)
        found = self._namespaces.pop(path, None)
        if found is None:
            client = await self._client()
            found = await Namespace.open(f"{self._uri}#{path}", client=client, bind=bind)
            # Its streams go on: what they use is the client, which is not the namespace's.
            if (other := self._namespaces.pop(path, None)) is not None:
                await other.close()
            while len(self._namespaces) >= _NAMESPACES_MAX:
                await self._namespaces.pop(next(iter(self._namespaces))).close()
        self._namespaces[path] = found
        return found

    def _normal(self, path: str) -> str:
        """Return a namespace's path as it is spelt once: /streams for /streams/ and nothing."""
        return parse_address(f"{self._uri}#{path}").path

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
        key = (self._normal(path), stream.name)
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

    async def let_go(self, path: str, found: Stream | PartitionedStream) -> None:
        """Have no writer of our own stand in the way of one that opens a stream otherwise."""
        for part in [found] if isinstance(found, Stream) else found.partitions:
            held = self._writers.get((self._normal(path), part.name))
            if held is not None:
                async with held.lock:
                    await self._drop(held)

    # Members of groups ---------------------------------------------------------------------

    def member_key(self, who: Who, path: str, stream: str, group: str, name: str) -> MemberKey:
        """Return which member somebody means.

        Raises:
            ConfigError: The namespace's path is none.
            InvalidStreamNameError: A stream cannot be called that.
        """
        stream = check_stream_name(stream)
        return MemberKey((who.how, who.name), self._normal(path), stream, group, name)

    @contextlib.asynccontextmanager
    async def member(self, key: MemberKey, *, joins: bool) -> AsyncIterator[HeldMember]:
        """Hold a member of a group for the length of a block.

        Args:
            key: Which one.
            joins: It joins the group if it is new.

        Raises:
            ApiError: It is not there, the stream has no partitions, or too many members are there.
        """
        known = self._members.get(key)
        if known is None and not joins:
            raise ApiError(
                409,
                "not-in-hand",
                f"member {key.name} has nothing in hand: it never asked for records here, or was "
                f"silent for {MEMBER_IDLE_S:.0f} s; what it had is handed out again",
            )
        found = known or await self._joined(key)
        found.wanted += 1
        if found.idle is not None:
            found.idle.cancel()
            found.idle = None
        try:
            yield found
        finally:
            found.wanted -= 1
            if not found.wanted and self._members.get(key) is found:
                found.idle = patience.Timer(MEMBER_IDLE_S, partial(self._leave, key))

    async def _joined(self, key: MemberKey) -> HeldMember:
        async with self._joining:
            found = self._members.get(key)
            if found is None:
                if len(self._members) >= _MEMBERS_MAX:
                    raise ApiError(
                        429, "too-many-members", f"{_MEMBERS_MAX} members are here already"
                    )
                stream = await self.whole(key.namespace, key.stream)
                if isinstance(stream, Stream):
                    await stream.info()  # says so if there is none
                    raise ApiError(
                        400,
                        "not-partitioned",
                        f"stream {key.stream} is not partitioned, so it has no groups; read it by "
                        "a position, or create it with partitions",
                    )
                found = HeldMember(await stream.consumer(key.group, auto_commit_s=0))
                self._members[key] = found
        return found

    def _leave(self, key: MemberKey) -> None:
        member = self._members.get(key)
        if member is not None and not member.wanted:
            del self._members[key]
            self._in_background(member.consumer.close())

    async def leave(self, key: MemberKey) -> bool:
        """Have a member leave its group, and tell whether there was one."""
        found = self._members.pop(key, None)
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
            await self.leave(key)
        for task in list(self._ending):
            await task
        await cancel_and_wait(list(self._ending))
        for namespace in self._namespaces.values():
            await namespace.close()
        self._namespaces.clear()
