"""Namespaces: a node of the metadata tree under which streams lie, with a policy for all of them.

async with Namespace.open("sqlite:///data/metadata.db#/orders", bind=True) as ns:
    await ns.create_stream("eu/orders")
    async with ns.stream("eu/orders").writer() as writer:
        await writer.append(b"...")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.client.waiting.closing import Closing
from quorumbook.client.waiting.opening import Opening
from quorumbook.env import Env, logger
from quorumbook.errors import (
    LocalProtocolError,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.metadata.election import Election, named_election
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.store import Create, Delete, MetadataStore, Operation, Set, Watch
from quorumbook.metadata.uri import open_store
from quorumbook.options import takes
from quorumbook.streams.errors import (
    AccessDeniedError,
    StreamError,
    StreamExistsError,
)
from quorumbook.streams.format.binding import AccessControl, Binding
from quorumbook.streams.format.names import (
    ELECTIONS_NAME,
    StreamPaths,
    check_stream_name,
    is_stream_part,
)
from quorumbook.streams.metadata.address import NamespaceAddress, parse_address, servers_of
from quorumbook.streams.metadata.namespace_nodes import (
    NamespaceIdentity,
    connect_as_bound,
    read_binding,
    read_policy,
    write_binding,
    write_policy,
)
from quorumbook.streams.metadata.namespace_options import NamespaceOptions
from quorumbook.streams.metadata.policy import DEFAULTS, StreamPolicy
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.retention.deletion import delete_all
from quorumbook.streams.retention.orphans import Orphan, OrphanFinder
from quorumbook.streams.stream import Stream, StreamInfo
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.tables.tabular import TabularNamespace
from quorumbook.streams.views.state_snapshots import snapshot_ledgers

_log = logger("streams")


class NamespaceEvent(NamedTuple):
    """A stream that was created or deleted."""

    name: str
    is_deleted: bool


class Namespace(TabularNamespace, Closing):
    """One namespace, opened; made by ``Namespace.open``."""

    def __init__(
        self,
        client: BookKeeper,
        store: MetadataStore,
        path: str,
        binding: Binding,
        *,
        client_id: str,
        is_read_only: bool,
        owned: contextlib.AsyncExitStack,
    ) -> None:
        """Take what ``open`` made."""
        self._client = client
        self._store = store
        self._path = path
        self._binding = binding
        self._client_id = client_id
        self._is_read_only = is_read_only
        self._owned = owned
        self._identity = NamespaceIdentity(store, path)

    # Life ----------------------------------------------------------------------------------

    @classmethod
    @takes(NamespaceOptions)
    def open(cls, address: str, **options: Any) -> Opening[Namespace]:
        """Open a namespace: ``async with Namespace.open(address) as ns``, or await it.

        Args:
            address: Such as ``sqlite:///data/metadata.db#/orders``; see ``metadata.address``.
            options: Others of ``NamespaceOptions``.

        Raises:
            NamespaceNotBoundError: the node is not a namespace.
            ConfigError: the address cannot be understood.
        """
        parsed, own = parse_address(address), NamespaceOptions.of({"address": address} | options)
        return Opening(lambda: cls._open(parsed, own))

    @classmethod
    async def _open(cls, parsed: NamespaceAddress, own: NamespaceOptions) -> Namespace:
        client = own.client
        async with contextlib.AsyncExitStack() as owned:
            if own.bind:
                await cls._bind_once(parsed, client, own.env)
            if client is not None and not parsed.is_peer_form:
                store = client_store(await client.start())
                binding = await read_binding(store, parsed.path)
            else:
                client, store, binding = await connect_as_bound(parsed, own.env, own, owned)
            return cls(
                client,
                store,
                parsed.path,
                binding,
                client_id=own.client_id or f"quorumbook-{store.env.random.getrandbits(32):08x}",
                is_read_only=own.read_only,
                owned=owned.pop_all(),
            )

    @staticmethod
    async def bind(
        address: str,
        *,
        ledgers_path: str | None = None,
        acl_root: str | None = None,
        first_segment: int | None = None,
        policy: StreamPolicy | None = None,
        exist_ok: bool = False,
        env: Env | None = None,
    ) -> None:
        """Make a node a namespace.

        Args:
            address: Which; see ``metadata.address``.
            ledgers_path: Where the cluster's ledgers are in the tree; as the address says if not
                given.
            acl_root: The node below the namespace that holds access control; by default there is
                none.
            first_segment: The number of a new stream's first segment; 1 if not given.
            policy: What holds for all its streams.
            exist_ok: If it exists already, leave it as it is, instead of raising an error.
            env: The world it lives in.

        Raises:
            StreamExistsError: there is a namespace.
        """
        parsed = parse_address(address)
        store = await open_store(parsed.metadata_uri, env)
        try:
            await write_binding(
                store,
                parsed.path,
                Binding(
                    bk_servers=(servers := servers_of(parsed.metadata_uri)),
                    ledgers_path=ledgers_path or store.ledgers_root,
                    bk_servers_for_reader=servers,
                    dl_servers=servers,
                    dl_servers_for_reader=servers,
                    acl_root=acl_root,
                    first_segment=first_segment,
                ),
                exist_ok=exist_ok,
            )
            if policy is not None:
                await write_policy(store, parsed.path, policy)
        finally:
            await store.close()

    @staticmethod
    async def unbind(address: str, *, env: Env | None = None) -> None:
        """Remove the mark that makes a metadata node a namespace; its streams are not deleted.

        Raises:
            NamespaceNotBoundError: it is none.
        """
        parsed = parse_address(address)
        store = await open_store(parsed.metadata_uri, env)
        try:
            await read_binding(store, parsed.path)
            await store.set(parsed.path, b"")
        finally:
            await store.close()

    def __repr__(self) -> str:
        return f"<Namespace {self.path}>"

    async def close(self) -> None:
        """Close the client that ``open`` made; close writers and readers first."""
        await self._owned.aclose()

    @property
    def client(self) -> BookKeeper:
        """The client of the cluster that holds the ledgers."""
        return self._client

    @property
    def path(self) -> str:
        """The namespace's node."""
        return self._path

    # Policies and access -------------------------------------------------------------------

    async def policy(self) -> StreamPolicy:
        """Return the policy of streams without one of their own; None where no value was set."""
        return await read_policy(self._store, self._path)

    async def set_policy(
        self, policy: StreamPolicy, *, expected: StreamPolicy | None = None
    ) -> None:
        """Replace the policy for all streams.

        Args:
            policy: The new one.
            expected: The policy that the stream or namespace must still have; None: replace any.

        Raises:
            PolicyConflictError: somebody else changed it.
            ConfigError: it contradicts the defaults of what it leaves out.
        """
        self._check_writable()
        policy.over(DEFAULTS)
        await write_policy(self._store, self._path, policy, expected)

    async def orphans(self, *, delete: bool = False, grace_s: float = 3600.0) -> list[Orphan]:
        """Return the ledgers of this namespace's streams that nothing refers to.

        Args:
            delete: Mark the ledgers that are found, and delete those that were marked ``grace_s``
                ago and that provably belong to nobody; without it nothing is changed.
            grace_s: How long what is marked stays.
        """
        if delete:
            self._check_writable()
        return await OrphanFinder(self, self._identity).run(delete=delete, grace_s=grace_s)

    async def access(self, name: str) -> AccessControl:
        """Return what nobody may do with a stream, by access control and by policy."""
        return await stream_context(self.stream(name)).access()

    async def _access_control(self, name: str) -> AccessControl:
        if self._binding.acl_root is None:
            return AccessControl()
        root = f"{self._path}/{self._binding.acl_root.strip('/')}"
        for path in f"{root}/{name}", root:
            node = await self._store.exists(path)
            if node is not None:
                return AccessControl.decode(node.data)
        return AccessControl()

    # Streams -------------------------------------------------------------------------------

    def stream(self, name: str) -> Stream:
        """Return a stream by name; whether it exists is seen when it is used.

        Raises:
            InvalidStreamNameError: no stream is called that.
        """
        name = check_stream_name(name)
        return Stream(
            StreamContext(
                client=self._client,
                store=self._store,
                nodes=StreamNodes(self._store, StreamPaths(self._path, name)),
                client_id=self._client_id,
                first_segment=self._binding.first_segment or 1,
                is_read_only=self._is_read_only,
                namespace_policy=self.policy,
                access_control=lambda: self._access_control(name),
                namespace_id=self._identity.made,
            )
        )

    async def create_stream(
        self, name: str, *, policy: StreamPolicy | None = None, exist_ok: bool = False
    ) -> StreamInfo:
        """Create a stream.

        Args:
            name: Its name; parts are separated by slashes.
            policy: What it says for itself.
            exist_ok: If it exists already, leave it as it is, instead of raising an error.

        Raises:
            StreamExistsError: there is one of this name.
            InvalidStreamNameError: no stream is called that.
            ConfigError: the policy contradicts what the stream inherits.
        """
        self._check_writable()
        stream = self.stream(name)
        if policy is not None:
            policy.over((await self.policy()).over(DEFAULTS))
        try:
            await stream_context(stream).nodes.create((policy or StreamPolicy()).encode())
        except StreamExistsError:
            if not exist_ok:
                raise
        return await stream.info()

    async def streams(
        self, prefix: str = "", *, recursive: bool = True
    ) -> AsyncGenerator[str, None]:
        """Yield the names of all streams, sorted.

        Args:
            prefix: Only names that begin so.
            recursive: Also streams below other streams, which Java's DistributedLog does not list.
        """
        async for name in self._walk("", recursive=recursive):
            if name.startswith(prefix):
                yield name

    async def watch(self) -> AsyncGenerator[NamespaceEvent, None]:
        """Yield the streams that there are, and then what is created and deleted.

        A stream that is renamed is deleted and created; one that comes and goes at once may be
        missed.
        """
        known: set[str] = set()
        changed = asyncio.Event()
        try:
            while True:
                changed.clear()
                now = {name async for name in self._walk("", recursive=True, watch=changed.set)}
                for name in sorted(known ^ now):
                    yield NamespaceEvent(name, is_deleted=name in known)
                known = now
                await changed.wait()
                self._store.unwatch(changed.set)
        finally:
            self._store.unwatch(changed.set)

    def election(self, name: str, candidate: str = "") -> Election:
        """Return a candidate of an election of this namespace.

        It only keeps processes from doing the same work at the same time, and gives no safety:
        that comes from the fence, which the next writer of a stream puts up.  See
        ``BookKeeper.election``.

        Args:
            name: Which; others of the same name stand in the same.
            candidate: The candidate's name, which no other candidate may have; one is made up if
                not given.

        Raises:
            LocalProtocolError: an election cannot have that name, or nothing may be changed here.
        """
        self._check_writable()
        return named_election(self._store, f"{self._path}/{ELECTIONS_NAME}", name, candidate)

    async def _walk(
        self, above: str, *, recursive: bool, watch: Watch | None = None
    ) -> AsyncGenerator[str, None]:
        path = f"{self._path}/{above}".rstrip("/")
        with contextlib.suppress(NoSuchNodeError):
            for part in filter(is_stream_part, await self._store.children(path, watch)):
                name = f"{above}{part}"
                if await StreamNodes(self._store, StreamPaths(self._path, name)).exists():
                    yield name
                if recursive:
                    async for nested in self._walk(f"{name}/", recursive=True, watch=watch):
                        yield nested

    async def delete_stream(
        self, name: str, *, missing_ok: bool = False, forget_files: bool = False
    ) -> list[str]:
        """Delete a stream with its ledgers and files.

        Args:
            name: Which.
            missing_ok: Whether there may be none.
            forget_files: Delete the stream even if some of its files are out of reach; these files
                may stay.

        Returns:
            Where files may have stayed.

        Raises:
            StreamNotFoundError: there is none.
            StreamExistsError: there are streams below it.
            WriterBusyError: somebody writes it.
            AccessDeniedError: the namespace forbids it.
            FilesUnavailableError: files are out of reach; nothing was deleted.
        """
        self._check_writable()
        stream = self.stream(name)
        context = stream_context(stream)
        if missing_ok and not await context.nodes.exists():
            return []
        if (await context.access()).denies_delete:
            raise AccessDeniedError(f"nobody may delete stream {stream.name}")
        async for nested in self._walk(f"{stream.name}/", recursive=True):
            raise StreamExistsError(
                f"stream {stream.name} has {nested} below it; delete that first"
            )
        lock = context.lock()
        await lock.acquire()
        try:
            snapshots = await snapshot_ledgers(context)
            left = await delete_all(context, snapshots, forget_files=forget_files)
            with contextlib.suppress(NodeNotEmptyError, NoSuchNodeError):
                path = context.nodes.paths.stream
                while path != self._path:
                    await self._store.delete(path)
                    path = path.rpartition("/")[0]
        finally:
            await lock.release()
        return left

    async def rename_stream(self, old: str, new: str) -> None:
        """Give a stream another name, in one step; subscriptions go along.

        Raises:
            StreamNotFoundError: there is none of the old name.
            StreamExistsError: there is one of the new name.
            WriterBusyError: somebody writes it.
            StreamError: it has more segments than the metadata store moves in one step.
            MetadataVersionConflict: it was changed meanwhile, its policy say; nothing was moved.
        """
        self._check_writable()
        source, target = self.stream(old), self.stream(new)
        nodes, paths = stream_context(source).nodes, stream_context(target).nodes.paths
        lock = stream_context(source).lock()
        await lock.acquire()
        try:
            if await stream_context(target).nodes.exists():
                raise StreamExistsError(f"stream {target.name} exists already")
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._store, paths.stream)
            operations = await self._moves(nodes.paths.root, paths.root, nodes.paths.lock)
            data, revision = await nodes.read_data()
            # The old one too, which may stay: who read the policy there changes it no more.
            operations += [Set(nodes.paths.stream, data, *revision), Set(paths.stream, data)]
            if len(operations) > self._store.multi_limit:
                raise StreamError(
                    f"stream {source.name} cannot be renamed: {len(operations)} changes are more "
                    f"than the {self._store.multi_limit} the metadata store makes in one step"
                )
            await lock.release()  # its member lies in what is moved
            await nodes.change(operations, stream_context(target).nodes.exists, "renaming a stream")
            with contextlib.suppress(NodeNotEmptyError, NoSuchNodeError):
                await self._store.delete(nodes.paths.stream)
        finally:
            await lock.release()

    async def _moves(self, old: str, new: str, without: str) -> list[Operation]:
        """Return what moves a tree: first all is made anew, then the old deleted from below."""
        creates: list[Operation] = []
        deletes: list[Operation] = []
        waiting = [old]
        while waiting:
            path = waiting.pop()
            node = await self._store.get(path)
            if node.is_ephemeral:
                if not path.startswith(f"{without}/"):
                    raise StreamError(f"somebody holds {path}; the stream cannot be renamed now")
                continue
            creates.append(Create(new + path.removeprefix(old), node.data))
            # Versions see to it that nothing is lost that changes meanwhile.
            deletes.append(Delete(path, *node.revision))
            waiting += [f"{path}/{name}" for name in await self._store.children(path)]
        return [*creates, *reversed(deletes)]

    def _check_writable(self) -> None:
        if self._is_read_only:
            raise LocalProtocolError(f"namespace {self._path} was opened read-only")

    @classmethod
    async def _bind_once(
        cls, parsed: NamespaceAddress, client: BookKeeper | None, env: Env | None
    ) -> None:
        if client is not None:
            node = await client_store(await client.start()).exists(parsed.path)
            if node is not None and node.data:
                return
        await cls.bind(f"{parsed.metadata_uri}#{parsed.path}", exist_ok=True, env=env)
