r"""The cluster as such: its root, its layout and its instance id.

LAYOUT holds ``2\n<class the peer knows the ledger manager by>:1`` without a line end, INSTANCEID
a UUID as text.  A store without INSTANCEID holds no cluster, and nothing but ``init_cluster`` makes
one.  Apache Pulsar's own setup makes INSTANCEID alone and writes hierarchical nodes whatever LAYOUT
says, so whoever first asks such a cluster for its layout writes that one, as a Java bookie does.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

from quorumbook.errors import (
    ClusterExistsError,
    ClusterNotInitializedError,
    ConfigError,
    MetadataFateUnknownError,
    MetadataFormatError,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import create_with_parents, with_living_session
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.store import Create, MetadataStore, split

_FORMAT_VERSION = 2
_MANAGER_VERSION = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Which rule the paths of a cluster's ledgers follow."""

    kind: LayoutKind = LayoutKind.HIERARCHICAL

    def encode(self) -> bytes:
        """Return the content of the LAYOUT node."""
        return f"{_FORMAT_VERSION}\n{self.kind.factory}:{_MANAGER_VERSION}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Layout:
        """Read the content of a LAYOUT node.

        Raises:
            MetadataFormatError: it is damaged, of a newer format, or names an unknown manager.
        """
        lines = data.decode("utf-8", errors="replace").strip().split("\n")
        if len(lines) != 2 or lines[0] not in ("1", "2"):
            raise MetadataFormatError(f"LAYOUT is not of format 1 or 2: {data[:100]!r}")
        factory, _, version = lines[1].rpartition(":")
        for kind in LayoutKind:
            if kind.factory == factory and version == str(_MANAGER_VERSION):
                return cls(kind)
        raise MetadataFormatError(f"LAYOUT names an unknown ledger manager: {lines[1]!r}")


async def init_cluster(
    store: MetadataStore, *, layout: Layout | None = None, instance_id: str | None = None
) -> str:
    """Make a new, empty cluster in one step and return its instance id.

    Raises:
        ClusterExistsError: there is one already.
    """
    paths = TreePaths(store.ledgers_root)
    if instance_id is None:
        bits = store.env.random.getrandbits(128)
        instance_id = str(uuid.UUID(int=bits, version=4))
    above, _ = split(paths.root)
    if above != "/":
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(store, above)
    nodes = [
        Create(paths.root),
        Create(paths.available),
        Create(paths.read_only),
        Create(paths.instance_id, instance_id.encode()),
        Create(paths.layout, (layout or Layout()).encode()),
    ]
    try:
        try:
            await store.multi(nodes)
        except NodeExistsError:
            # A root with nothing below it is no cluster; an administrator made it for its ACL.
            if await store.children(paths.root):
                raise
            await store.multi(nodes[1:])
    except NodeExistsError as error:
        raise ClusterExistsError(f"{store.uri} already holds a cluster") from error
    except MetadataFateUnknownError:
        # The id tells whose cluster it is that is there.
        if await read_instance_id(store) != instance_id:
            raise
    return instance_id


async def check_layout(store: MetadataStore, wanted: LayoutKind | None) -> None:
    """Compare the cluster's layout with the one somebody named; no cluster is fine.

    Raises:
        ConfigError: it is another one.
    """
    if wanted is None:
        return
    with contextlib.suppress(ClusterNotInitializedError):
        kind = (await read_layout(store)).kind
        if kind is not wanted:
            raise ConfigError(
                f"{store.uri}: the cluster's layout is {kind.value}, not {wanted.value}; "
                "name that one, or none: zk://"
            )


async def read_layout(store: MetadataStore) -> Layout:
    """Return the cluster's layout; a cluster without one gets the hierarchical one.

    Raises:
        ClusterNotInitializedError: there is no cluster.
    """
    path = TreePaths(store.ledgers_root).layout
    with contextlib.suppress(NoSuchNodeError):
        return Layout.decode((await store.get(path)).data)
    await read_instance_id(store)
    # Somebody else may be faster, with another one.
    with contextlib.suppress(NodeExistsError):
        await with_living_session(store, lambda: store.create(path, Layout().encode()))
    return Layout.decode(await _read(store, path))


async def read_instance_id(store: MetadataStore) -> str:
    """Return the cluster's instance id.

    Raises:
        ClusterNotInitializedError: there is no cluster.
    """
    data = await _read(store, TreePaths(store.ledgers_root).instance_id)
    return data.decode("utf-8", errors="replace").strip()


def not_initialized(store: MetadataStore) -> ClusterNotInitializedError:
    """Return the error for a store without a cluster, naming the command that makes one."""
    return ClusterNotInitializedError(
        f"{store.uri} holds no cluster; make one with: "
        f"quorumbook cluster init --metadata {store.uri}"
    )


async def _read(store: MetadataStore, path: str) -> bytes:
    try:
        return (await store.get(path)).data
    except NoSuchNodeError as error:
        raise not_initialized(store) from error
