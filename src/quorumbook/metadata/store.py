"""The metadata store: a small tree of versioned nodes with sessions and watches.

Everything a cluster shares (ledger metadata, who is alive, cookies, locks) lives in such a tree.
This module says what a store is; ``memory``, ``sqlite`` and ``zookeeper`` are stores,
``uri.open_store`` picks one, and the managers (``ledgers``, ``registration``, ``cookies``, ...)
are written once on top.

A node has data, a version that every ``set`` raises by one, and children.  Paths are absolute,
``/`` separates names, ``/`` itself always exists.  A name is any text; a ZooKeeper refuses
characters of two UTF-16 units.  A parent must exist before its child.  An ephemeral node belongs
to the session that made it, cannot have children, and disappears with the session.  The name of a
sequential node gets ten digits appended: the number of children its parent ever had, as a signed
32-bit integer.

Sessions.  A store has one session at a time, kept alive by a heartbeat.  Reads need no session.
Once the session is over (the process was paused beyond its lease, say) every write raises
``SessionExpiredError``, until somebody calls ``renew_session``, which begins another session and
brings no ephemeral node back.  The callbacks of ``on_session_expired`` run first, so that whoever
believes to hold an ephemeral node learns of its loss before anything goes on.  A store that does
not answer for a while (``MetadataUnavailableError``) has not thereby ended the session.

Watches.  A watch is a plain callback; it runs once, on the event loop of its store, after a
change of what the read it came with had returned.  It does not say what changed: read again.
Several changes may end in one call, and a change may be visible to reads before its call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from quorumbook.env import Env
from quorumbook.errors import LocalProtocolError

Watch: TypeAlias = Callable[[], None]

#: "Whatever the version is", where an operation takes a version.
ANY_VERSION = -1
#: The largest value of a node, the peer's store's own limit.
MAX_DATA_SIZE_BYTES = 1_000_000
#: Where a cluster's tree begins unless its URI says otherwise.
DEFAULT_LEDGERS_ROOT = "/ledgers"
DEFAULT_SESSION_TIMEOUT_S = 10.0


class Revision(NamedTuple):
    """What a change names that goes by a node as it was read: ``Set(path, data, *revision)``."""

    version: int
    #: Versions begin anew with a node that is deleted and made again; this does not.
    creation_id: int

    @property
    def next(self) -> Revision:
        """What the node is after one ``set``."""
        return Revision(self.version + 1, self.creation_id)


@dataclass(frozen=True, slots=True)
class Node:
    """What a read returns."""

    data: bytes
    #: Raised by one with every ``set``; 0 after ``create``.
    version: int
    #: Counts creations and deletions of children.
    child_version: int
    #: Unique for ever and ascending: a node deleted and created again has another one.
    creation_id: int
    #: The session an ephemeral node belongs to; 0 for a persistent node.
    owner: int
    ctime_ms: int
    mtime_ms: int
    children_count: int

    @property
    def revision(self) -> Revision:
        """What a change names that is based on this."""
        return Revision(self.version, self.creation_id)

    @property
    def is_ephemeral(self) -> bool:
        """Tell whether the node goes with its session."""
        return self.owner != 0


@dataclass(frozen=True, slots=True)
class Create:
    """In ``multi``: create a node; the result is its path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """In ``multi``: set the data of a node; the result is its new version."""

    path: str
    data: bytes
    version: int = ANY_VERSION
    #: Which node of this path, if any other that was made after it must not be taken for it.
    creation_id: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """In ``multi``: delete a node; the result is None."""

    path: str
    version: int = ANY_VERSION
    creation_id: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """In ``multi``: demand that a node exists, and has this version; the result is None."""

    path: str
    version: int = ANY_VERSION
    creation_id: int | None = None


Operation: TypeAlias = Create | Set | Delete | Check


class MetadataStore(Protocol):
    """One open store; made by ``uri.open_store``.

    An operation that is cancelled, or fails with ``MetadataUnavailableError``, may have happened.
    One that returns has happened: what it wrote was this caller's own, never the same bytes of
    somebody else.  A deletion that returns says that the node is gone.

    Versions begin anew with a node that is deleted and created again, so whoever goes by a version
    names the ``creation_id`` as well (``Revision``).  ZooKeeper knows no such condition: its driver
    looks before the write, and fails with ``MetadataVersionConflict`` if the node was replaced in
    between.
    """

    @property
    def uri(self) -> str:
        """What the store was opened with; for messages."""
        ...

    @property
    def env(self) -> Env:
        """The world that the managers on top of this store live in."""
        ...

    @property
    def ledgers_root(self) -> str:
        """The path below which the cluster's tree lies."""
        ...

    @property
    def multi_limit(self) -> int:
        """How many operations ``multi`` takes at most."""
        ...

    @property
    def session_timeout_s(self) -> float:
        """How long a session outlives the last sign of its process."""
        ...

    @property
    def session_id(self) -> int:
        """The present session, also when it is over."""
        ...

    async def renew_session(self) -> int:
        """Begin another session if the present one is over; return the living one's id."""
        ...

    def on_session_expired(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback run on the loop whenever a session ends; return its removal."""
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path.

        Raises:
            NodeExistsError: there is one already.
            NoSuchNodeError: the parent does not exist.
            SessionExpiredError: as from every other write.
        """
        ...

    async def create_node(self, path: str, data: bytes) -> Node | None:
        """Create a persistent node and return it; it may have been changed or replaced since.

        Returns:
            None where the store did not tell; whoever needs it looks.

        Raises:
            NodeExistsError: there is one already.
            NoSuchNodeError: the parent does not exist.
        """
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Return a node; the watch runs when it is set or deleted.

        Raises:
            NoSuchNodeError: there is none; no watch is left then.
        """
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return nodes, None for each that does not exist; each is read at a moment of its own."""
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        """Return a node or None; the watch runs when it is created, set or deleted."""
        ...

    async def set(
        self, path: str, data: bytes, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> int:
        """Replace the data of a node if it has this version; return the new version.

        Raises:
            NoSuchNodeError: there is none.
            MetadataVersionConflict: it has another version, or is another node.
        """
        ...

    async def delete(
        self, path: str, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> None:
        """Delete a node if it has this version.

        Raises:
            NoSuchNodeError: there is none.
            MetadataVersionConflict: it has another version, or is another node.
            NodeNotEmptyError: it has children.
        """
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted; the watch runs when they change.

        Raises:
            NoSuchNodeError: the node does not exist; no watch is left then.
        """
        ...

    async def replace(self, path: str, data: bytes, ephemeral: bool) -> None:
        """Delete the node, if there is one, and create it anew, in one step.

        The new node is owned by this session if it is ephemeral, whoever owned the old one.
        """
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """Carry out all operations or, raising the first one's error that fails, none."""
        ...

    def unwatch(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        ...

    async def close(self) -> None:
        """End the session, with its ephemeral nodes, and let go of everything."""
        ...


def check_path(path: str) -> None:
    """Raise ``LocalProtocolError`` unless the path is absolute and clean."""
    if path == "/":
        return
    if not path.startswith("/") or "\0" in path:
        raise LocalProtocolError(f"metadata path {path!r} is not absolute")
    names = path[1:].split("/")
    if "" in names or "." in names or ".." in names:
        raise LocalProtocolError(f"metadata path {path!r} has an empty or relative name in it")


def check_data(path: str, data: bytes) -> None:
    """Raise ``LocalProtocolError`` if the data is too large for a node."""
    if len(data) > MAX_DATA_SIZE_BYTES:
        raise LocalProtocolError(
            f"metadata node {path}: {len(data)} bytes are more than the {MAX_DATA_SIZE_BYTES} "
            "a node holds"
        )


def split(path: str) -> tuple[str, str]:
    """Return parent and name of a path other than the root's."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name
