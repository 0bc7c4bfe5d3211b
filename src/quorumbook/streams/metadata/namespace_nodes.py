"""What lies at a namespace's own nodes: its binding, its policy, its identity."""

from __future__ import annotations

import contextlib

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.client.options import ClientOptions
from quorumbook.env import Env
from quorumbook.errors import MetadataVersionConflict, NodeExistsError, NoSuchNodeError
from quorumbook.metadata.nodes import create_with_parents, set_alike
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.streams.errors import NamespaceNotBoundError, PolicyConflictError, StreamExistsError
from quorumbook.streams.format.binding import Binding
from quorumbook.streams.format.names import IDENTITY_NAME, POLICY_NAME
from quorumbook.streams.metadata.address import NamespaceAddress, servers_of
from quorumbook.streams.metadata.policy import StreamPolicy


async def connect_as_bound(
    parsed: NamespaceAddress,
    env: Env | None,
    options: ClientOptions,
    owned: contextlib.AsyncExitStack,
) -> tuple[BookKeeper, MetadataStore, Binding]:
    """Open client and store as the binding says."""
    if not parsed.is_peer_form:
        client = await owned.enter_async_context(
            BookKeeper(parsed.metadata_uri, options=options, env=env)
        )
        return (
            client,
            client_store(client),
            await read_binding(client_store(client), parsed.path),
        )
    # Locks of streams are in this session, registrations and ledgers in the client's.
    store = await open_store(parsed.metadata_uri, env, session_timeout_s=options.session_timeout_s)
    owned.push_async_callback(store.close)
    binding = await read_binding(store, parsed.path)
    servers = binding.bk_servers or servers_of(parsed.metadata_uri)
    uri = f"zk://{servers}{binding.ledgers_path}"
    client = await owned.enter_async_context(BookKeeper(uri, options=options, env=env))
    return client, store, binding


async def read_binding(store: MetadataStore, path: str) -> Binding:
    """Return what a node is bound to.

    Raises:
        NamespaceNotBoundError: it is no namespace.
    """
    hint = "; `quorumbook stream create` makes it one, and Namespace.bind"
    try:
        node = await store.get(path)
    except NoSuchNodeError as error:
        raise NamespaceNotBoundError(
            f"there are no streams yet, nor their namespace {path}; "
            "`quorumbook stream create NAME` makes both, and Namespace.bind the namespace"
        ) from error
    try:
        return Binding.decode(node.data)
    except NamespaceNotBoundError as error:
        raise NamespaceNotBoundError(
            f"{path} is not a namespace of streams: {error}{hint}"
        ) from error


async def write_binding(
    store: MetadataStore, path: str, binding: Binding, *, exist_ok: bool
) -> None:
    """Make a node a namespace.

    Raises:
        StreamExistsError: it is one.
    """
    data = binding.encode()
    try:
        await create_with_parents(store, path, data)
    except NodeExistsError:
        node = await store.get(path)
        if not node.data:
            await set_alike(store, path, data, node.revision)
        elif not exist_ok:
            raise StreamExistsError(f"{path} is a namespace of streams already") from None


async def read_policy(store: MetadataStore, path: str) -> StreamPolicy:
    """Return what a namespace says for all its streams, as far as it was set."""
    node = await store.exists(f"{path}/{POLICY_NAME}")
    return StreamPolicy() if node is None else StreamPolicy.decode(node.data, path)


async def write_policy(
    store: MetadataStore, path: str, policy: StreamPolicy, expected: StreamPolicy | None = None
) -> None:
    """Replace a namespace's policy, if it is as expected.

    Raises:
        PolicyConflictError: it is not.
    """
    where = f"{path}/{POLICY_NAME}"
    node = await store.exists(where)
    if expected is not None:
        found = StreamPolicy() if node is None else StreamPolicy.decode(node.data, where)
        if found != expected:
            raise PolicyConflictError(f"the policy of {path} was changed meanwhile; read it again")
    try:
        if node is None:
            await store.create(where, policy.encode())
        else:
            await set_alike(store, where, policy.encode(), node.revision)
    except (NodeExistsError, NoSuchNodeError, MetadataVersionConflict) as error:
        raise PolicyConflictError(f"somebody else changes the policy of {path}") from error


class NamespaceIdentity:
    """What tells a namespace from any other that lies at the same path of another store.

    Ledgers carry it, since one cluster may hold the ledgers of many namespaces.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = f"{path}/{IDENTITY_NAME}"
        self._known: bytes | None = None

    async def read(self) -> bytes | None:
        """Return it; None if no ledger carries it yet."""
        node = await self._store.exists(self._path)
        return None if node is None else node.data

    async def made(self) -> bytes:
        """Return it, made if there is none."""
        if self._known is None:
            token = f"{self._store.env.random.getrandbits(128):032x}".encode()
            with contextlib.suppress(NodeExistsError):
                await self._store.create(self._path, token)
            self._known = (await self._store.get(self._path)).data
        return self._known
