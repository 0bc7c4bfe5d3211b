"""The rules of the tree, once for every driver that keeps its own rows.

``Tree`` turns the operations of ``store.MetadataStore`` into reads and writes of rows and checks
what they demand.  Where the rows are (a dictionary, a database), what makes a transaction of them
and who calls the watches is the driver's affair; ``WatchTable`` helps it to know which to call.
``DriverStore`` is what all drivers do alike, ZooKeeper's too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, cast

from quorumbook.env import Env, logger
from quorumbook.env.forks import watch
from quorumbook.errors import (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Set,
    Watch,
    check_data,
    check_path,
    split,
)

_log = logger("metadata")


class Stamp(NamedTuple):
    """What changes when a node does."""

    creation_id: int
    version: int
    created_count: int
    children_count: int


@dataclass(slots=True)
class Row:
    """One node as a driver keeps it."""

    data: bytes
    version: int = 0
    #: How many children were ever created; the next sequential child gets this number.
    created_count: int = 0
    children_count: int = 0
    #: Given by the driver when the row is inserted.
    creation_id: int = 0
    owner: int = 0
    ctime_ms: int = 0
    mtime_ms: int = 0

    @property
    def stamp(self) -> Stamp:
        """What changes when the node does."""
        return Stamp(self.creation_id, self.version, self.created_count, self.children_count)

    def copy(self) -> Row:
        """Return another row alike."""
        return Row(
            self.data,
            self.version,
            self.created_count,
            self.children_count,
            self.creation_id,
            self.owner,
            self.ctime_ms,
            self.mtime_ms,
        )

    @property
    def node(self) -> Node:
        """The node as readers see it."""
        return Node(
            data=self.data,
            version=self.version,
            # Every child still there was created and not deleted, any other was both.
            child_version=2 * self.created_count - self.children_count,
            creation_id=self.creation_id,
            owner=self.owner,
            ctime_ms=self.ctime_ms,
            mtime_ms=self.mtime_ms,
            children_count=self.children_count,
        )


class TreeRows(Protocol):
    """Where a driver keeps its rows; calls happen inside the driver's transaction."""

    def find(self, path: str) -> Row | None:
        """Return a copy of the row, or None."""
        ...

    def insert(self, path: str, row: Row) -> None:
        """Add a row and give it the next creation id."""
        ...

    def save_data(self, path: str, row: Row) -> None:
        """Write back data, version and mtime."""
        ...

    def save_counts(self, path: str, row: Row) -> None:
        """Write back the counts of children."""
        ...

    def remove(self, path: str) -> None:
        """Remove a row that has no children."""
        ...

    def child_names(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""
        ...

    def paths_owned_by(self, session_id: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes."""
        ...


def sequence_suffix(created_count: int) -> str:
    """Return the ten digits of a sequential name: a signed 32-bit number that wraps around.

    >>> sequence_suffix(7), sequence_suffix(2**31)
    ('0000000007', '-2147483648')
    """
    number = (created_count + 2**31) % 2**32 - 2**31
    return f"{number:010d}"


class Tree:
    """The operations on one driver's rows; remembers in ``touched`` which paths changed."""

    def __init__(self, rows: TreeRows) -> None:
        self._rows = rows
        self.touched: set[str] = set()

    def get(self, path: str) -> Row:
        """Return the row of a node that must exist."""
        row = self.find(path)
        if row is None:
            raise NoSuchNodeError(f"metadata node {path} does not exist")
        return row

    def find(self, path: str) -> Row | None:
        """Return the row of a node, or None."""
        check_path(path)
        return self._rows.find(path)

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the children of a node that must exist."""
        self.get(path)
        return self._rows.child_names(path)

    def create(self, operation: Create, session_id: int, now_ms: int) -> str:
        """Create a node and return its path."""
        path = operation.path
        # A sequential name may be digits only: "/queue/" makes "/queue/0000000000".
        check_path(f"{path}0" if operation.sequential else path)
        check_data(path, operation.data)
        if path == "/":
            raise NodeExistsError("metadata node / exists already")
        parent_path, _ = split(path)
        parent = self._rows.find(parent_path)
        if parent is None:
            raise NoSuchNodeError(f"metadata node {parent_path}, parent of {path}, does not exist")
        if parent.owner:
            raise LocalProtocolError(f"metadata node {parent_path} is ephemeral: no children")
        if operation.sequential:
            path += sequence_suffix(parent.created_count)
        if self._rows.find(path) is not None:
            raise NodeExistsError(f"metadata node {path} exists already")
        owner = session_id if operation.ephemeral else 0
        self._rows.insert(path, Row(operation.data, owner=owner, ctime_ms=now_ms, mtime_ms=now_ms))
        parent.created_count += 1
        parent.children_count += 1
        self._rows.save_counts(parent_path, parent)
        self.touched.update((path, parent_path))
        return path

    def set(self, operation: Set, now_ms: int) -> int:
        """Replace the data of a node; return its new version."""
        check_data(operation.path, operation.data)
        row = self._demanded(operation)
        row.data = operation.data
        row.version += 1
        row.mtime_ms = now_ms
        self._rows.save_data(operation.path, row)
        self.touched.add(operation.path)
        return row.version

    def delete(self, operation: Delete) -> None:
        """Delete a node without children."""
        path = operation.path
        row = self._demanded(operation)
        if path == "/":
            raise LocalProtocolError("metadata node / cannot be deleted")
        if row.children_count:
            raise NodeNotEmptyError(f"metadata node {path} has {row.children_count} children")
        self._rows.remove(path)
        parent_path, _ = split(path)
        parent = self.get(parent_path)
        parent.children_count -= 1
        self._rows.save_counts(parent_path, parent)
        self.touched.update((path, parent_path))

    def check(self, operation: Check) -> None:
        """Demand that a node exists and has a version."""
        self._demanded(operation)

    def replace(self, path: str, data: bytes, ephemeral: bool, session: int, now_ms: int) -> None:
        """Delete a node, if it is there, and create it anew."""
        if self.find(path) is not None:
            self.delete(Delete(path))
        self.create(Create(path, data, ephemeral), session, now_ms)

    def apply(self, operation: Operation, session_id: int, now_ms: int) -> str | int | None:
        """Carry out one operation of a ``multi``."""
        match operation:
            case Create():
                return self.create(operation, session_id, now_ms)
            case Set():
                return self.set(operation, now_ms)
            case Delete():
                self.delete(operation)
            case Check():
                self.check(operation)
        return None

    def end_session(self, session_id: int) -> list[str]:
        """Remove the ephemeral nodes of a session; return their paths."""
        paths = self._rows.paths_owned_by(session_id)
        for path in paths:
            self.delete(Delete(path))
        return paths

    def _demanded(self, operation: Set | Delete | Check) -> Row:
        path, version = operation.path, operation.version
        row = self.get(path)
        if operation.creation_id not in (None, row.creation_id):
            raise MetadataVersionConflict(f"metadata node {path} was deleted and made again")
        if version not in (ANY_VERSION, row.version):
            raise MetadataVersionConflict(
                f"metadata node {path}: version {row.version}, not {version}"
            )
        return row


class WatchKind(Enum):
    """What a watch is about."""

    NODE = "node"
    CHILDREN = "children"


_State = tuple[int, ...] | None


def _state(kind: WatchKind, stamp: Stamp | None) -> _State:
    if stamp is None:
        return None
    if kind is WatchKind.NODE:
        return (stamp.creation_id, stamp.version)
    return (stamp.creation_id, stamp.created_count, stamp.children_count)


@dataclass(slots=True)
class WatchTable:
    """Watches with the state each of them last saw; not thread-safe."""

    _by_path: dict[str, dict[tuple[WatchKind, Watch], _State]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def add(self, kind: WatchKind, path: str, watch: Watch, stamp: Stamp | None) -> None:
        """Remember a watch with the state that the read it came with returned."""
        # A watch that waits already keeps the older state: what changed since must reach it.
        self._by_path.setdefault(path, {}).setdefault((kind, watch), _state(kind, stamp))

    def remove(self, watch: Watch) -> list[str]:
        """Forget a callback wherever it waits; return where that was."""
        found = []
        for path in list(self._by_path):
            waiting = self._by_path[path]
            keys = [key for key in waiting if key[1] == watch]
            for key in keys:
                del waiting[key]
            if keys:
                found.append(path)
            if not waiting:
                del self._by_path[path]
        return found

    def clear(self) -> None:
        """Forget all watches."""
        self._by_path.clear()

    def kinds(self, path: str) -> set[WatchKind]:
        """Return what the watches that wait at a path are about."""
        return {kind for kind, _ in self._by_path.get(path, ())}

    def take_changed(
        self, stamp_of: Callable[[str], Stamp | None], paths: Iterable[str] | None = None
    ) -> Sequence[Watch]:
        """Remove and return the watches whose state differs, at these paths or at all."""
        changed: dict[Watch, None] = {}
        for path in list(self._by_path) if paths is None else paths:
            waiting = self._by_path.get(path)
            if waiting is None:
                continue
            stamp = stamp_of(path)
            for key in [key for key, state in waiting.items() if state != _state(key[0], stamp)]:
                del waiting[key]
                changed[key[1]] = None
            if not waiting:
                del self._by_path[path]
        return list(changed)


class Callbacks:
    """Callbacks that stay until they are removed, such as those for the end of a session."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Keep a callback; return its removal."""
        key = object()
        self._by_key[key] = callback

        def remove() -> None:
            self._by_key.pop(key, None)

        return remove

    def present(self) -> list[Callable[[], None]]:
        """Return those that are there now; running one may add and remove others."""
        return list(self._by_key.values())

    def clear(self) -> None:
        """Forget all."""
        self._by_key.clear()


def run_callbacks(callbacks: Sequence[Callable[[], None]]) -> None:
    """Run callbacks so that one watcher's mistake does not keep the news from the others."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            _log.exception("a metadata watch failed")


class DriverStore:
    """One session on a tree; a driver implements the rest of ``store.MetadataStore``."""

    def __init__(self, uri: str, env: Env, ledgers_root: str, multi_limit: int) -> None:
        """Take what the store was opened with, and how many operations a ``multi`` may have."""
        self.uri = uri
        self.env = env
        self.ledgers_root = ledgers_root
        self.multi_limit = multi_limit
        self._on_expired = Callbacks()
        self._is_closed = False
        self._forked: LocalProtocolError | None = None
        watch(self, DriverStore.abandon)

    def on_session_expired(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback run whenever a session ends; return its removal."""
        return self._on_expired.add(callback)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path."""
        made = await self._write_one(Create(path, bytes(data), ephemeral, sequential))
        assert isinstance(made, str)
        return made

    async def set(
        self, path: str, data: bytes, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> int:
        """Replace the data of a node; return the new version."""
        raised = await self._write_one(Set(path, bytes(data), version, creation_id))
        assert isinstance(raised, int)
        return raised

    async def delete(
        self, path: str, version: int = ANY_VERSION, creation_id: int | None = None
    ) -> None:
        """Delete a node."""
        await self._write_one(Delete(path, version, creation_id))

    async def _write_one(self, operation: Operation) -> str | int | None:
        """Carry out an operation; return the path that was created, or the new version."""
        raise NotImplementedError

    async def create_node(self, path: str, data: bytes) -> Node | None:
        """Create a persistent node and return it.

        Where the answer to the creation does not tell, what is asked behind it comes in one answer
        with it, where all goes well.
        """
        store = cast(MetadataStore, self)
        made, node = await asyncio.gather(
            store.create(path, data), store.exists(path), return_exceptions=True
        )
        if isinstance(made, BaseException):
            raise made
        return node if isinstance(node, Node) else None

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return nodes, None for each that does not exist."""
        store = cast(MetadataStore, self)
        nodes = await asyncio.gather(*map(store.get, paths), return_exceptions=True)
        for node in nodes:
            if isinstance(node, BaseException) and not isinstance(node, NoSuchNodeError):
                raise node
        return [node if isinstance(node, Node) else None for node in nodes]

    def abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: refuse everything; see ``env.forks``."""
        del may_act
        self._forked, self._is_closed = error, True

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._forked or LocalProtocolError(f"metadata store {self.uri} is closed")

    def _check_size(self, operations: Sequence[Operation]) -> None:
        """Raise LocalProtocolError for more operations than one ``multi`` may have."""
        if len(operations) > self.multi_limit:
            raise LocalProtocolError(f"more than {self.multi_limit} operations in one multi")
