"""What all parts of one stream share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from quorumbook.client.client import BookKeeper
from quorumbook.errors import LocalProtocolError, MetadataVersionConflict, NoSuchNodeError
from quorumbook.metadata.nodes import set_alike
from quorumbook.metadata.store import MetadataStore
from quorumbook.streams.errors import PolicyConflictError, StreamNotFoundError
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.metadata.policy import DEFAULTS, StreamPolicy
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.metrics import STREAM_METRICS, StreamNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContext:
    """What all parts of one stream share."""

    client: BookKeeper
    store: MetadataStore
    nodes: StreamNodes
    #: Under which name locks are held; writers add something to it.
    client_id: str
    first_segment: int
    is_read_only: bool
    namespace_policy: Callable[[], Awaitable[StreamPolicy]]
    #: What nobody may do, whatever the policies say.
    access_control: Callable[[], Awaitable[AccessControl]]
    #: What the namespace's ledgers carry.
    namespace_id: Callable[[], Awaitable[bytes]]
    #: The peer's ledgers have no password unless it is configured.
    password: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.nodes.paths.name

    def numbers(self) -> StreamNumbers:
        """Return what this process counts of the stream."""
        return STREAM_METRICS.of(self.nodes.paths.namespace, self.name)

    def lock(self) -> StreamLock:
        """Return a new candidate for the stream's lock."""
        return self.lock_at(self.nodes.paths.lock)

    def lock_at(self, path: str) -> StreamLock:
        """Return a new candidate for a lock."""
        token = self.store.env.random.getrandbits(32)
        client_id = f"{self.client_id}-{token:08x}"
        return StreamLock(self.store, path, client_id, self.nodes.not_found)

    async def policy(self) -> StreamPolicy:
        """Return what holds for the stream, with nothing left out."""
        own = await self.own_policy()
        return own.over((await self.namespace_policy()).over(DEFAULTS))

    async def policy_and_access(self) -> tuple[StreamPolicy, AccessControl]:
        """Return what holds for the stream, and what nobody may do with it by that or otherwise."""
        policy = await self.policy()
        return policy, policy.denials() | await self.access_control()

    async def access(self) -> AccessControl:
        """Return what nobody may do with the stream, also before it is there."""
        try:
            return (await self.policy_and_access())[1]
        except StreamNotFoundError:
            policy = await self.namespace_policy()
        return policy.denials() | await self.access_control()

    async def own_policy(self) -> StreamPolicy:
        """Return what the stream says for itself."""
        data, _ = await self.nodes.read_data()
        return StreamPolicy.decode(data, self.nodes.paths.stream)

    async def set_policy(self, policy: StreamPolicy, expected: StreamPolicy | None) -> None:
        """Replace what the stream says for itself; see ``Stream.set_policy``."""
        self.check_writable()
        path = self.nodes.paths.stream
        data, revision = await self.nodes.read_data()
        if data and not StreamPolicy.is_in(data):
            raise LocalProtocolError(f"{path} holds data of an application's, not a policy")
        # One that is damaged can be replaced by whoever expects nothing of it.
        if expected is not None and StreamPolicy.decode(data, path) != expected:
            raise PolicyConflictError(f"the policy of {path} was changed meanwhile; read it again")
        try:
            await set_alike(self.store, path, policy.encode(), revision)
        except (MetadataVersionConflict, NoSuchNodeError) as error:
            raise PolicyConflictError(f"somebody else changes the policy of {path}") from error

    def check_writable(self) -> None:
        """Raise LocalProtocolError if the namespace was opened read-only."""
        if self.is_read_only:
            raise LocalProtocolError(f"stream {self.name} was opened read-only")


class _HasContext(Protocol):
    _context: StreamContext


def stream_context(stream: _HasContext) -> StreamContext:
    """Return what the parts of a stream share, for what is built on streams."""
    return stream._context  # noqa: SLF001 - programs get no handle on it


class _Namespace(Protocol):
    _store: MetadataStore

    def stream(self, name: str) -> _HasContext: ...


class ManyContexts:
    """What the parts of many streams of a namespace share; its policy is read once for all."""

    def __init__(self, namespace: _Namespace) -> None:
        """Take the namespace."""
        self._namespace = namespace
        self._reading: asyncio.Task[StreamPolicy] | None = None

    def of(self, name: str) -> StreamContext:
        """Return what the parts of one stream share."""
        context = stream_context(self._namespace.stream(name))
        read = context.namespace_policy

        async def policy() -> StreamPolicy:
            if self._reading is None:
                self._reading = asyncio.ensure_future(read())
            # Whoever gives up leaves it to the others.
            return await asyncio.shield(self._reading)

        return replace(context, namespace_policy=policy)


def namespace_store(namespace: _Namespace) -> MetadataStore:
    """Return the store that holds the metadata of a namespace's streams."""
    return namespace._store  # noqa: SLF001 - programs get no handle on it
