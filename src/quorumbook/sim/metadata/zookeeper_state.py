"""What the servers of a simulated ZooKeeper agree on, and what each of them has seen of it; pure.

A ``Replica`` is one server's tree.  ``Ensemble`` is the leader: it carries writes out in an order,
under one number each (zxid), and keeps the log from which the servers' replicas follow, each as
late as the world will have it.  Sessions belong to the leader: it ends those of which it heard
nothing for their timeout, and refuses what comes through a server that a session has left.

How requests travel is in ``zookeeper.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumbook.errors import (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
    QuorumbookError,
)
from quorumbook.metadata.memory import MemoryTree
from quorumbook.metadata.store import Create, Delete, Operation, Set, split
from quorumbook.metadata.tree import Row
from quorumbook.metadata.zookeeper.jute import Code, EventKind
from quorumbook.sim.kernel import MILLISECOND
from quorumbook.sim.metadata.zookeeper_bytes import Stat

_START_WALL_MS = 1_700_000_000_000
_FIRST_SESSION_ID = 1 << 56
_CODES: tuple[tuple[type[QuorumbookError], Code], ...] = (
    (NoSuchNodeError, Code.NO_NODE),
    (NodeExistsError, Code.NODE_EXISTS),
    (MetadataVersionConflict, Code.BAD_VERSION),
    (NodeNotEmptyError, Code.NOT_EMPTY),
    (LocalProtocolError, Code.BAD_ARGUMENTS),
)


class Transaction(NamedTuple):
    """One step of the log."""

    zxid: int
    session_id: int
    operations: tuple[Operation, ...]
    is_end_of_session: bool
    now_ms: int


class Event(NamedTuple):
    """What watches hear of a step."""

    kind: int
    path: str


class ServerFailure(NamedTuple):
    """Why nothing of a step was carried out."""

    code: int
    failed_at: int


class Replica:
    """The tree as one server has it."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        #: The last step that it has seen.
        self.zxid = 0
        #: Which operation of a step that raised was to blame.
        self.failed_at = 0
        #: By path: when a node was made, and its data and its children were changed last.
        self._zxids: dict[str, list[int]] = {"/": [0, 0, 0]}

    def apply(self, step: Transaction) -> tuple[list[str | Stat | None], list[Event]]:
        """Carry a step out; raises what the tree does, and changes nothing then."""
        operations: list[Operation] = list(step.operations)
        made: list[str | int | None] = []
        with self._tree.transaction(0) as tree:
            for self.failed_at, each in enumerate(operations):
                made.append(tree.apply(each, step.session_id, step.now_ms))
            if step.is_end_of_session:
                operations = [Delete(path) for path in tree.end_session(step.session_id)]
                made = [None] * len(operations)
        self.zxid = step.zxid
        events: list[Event] = []
        for operation, result in zip(operations, made, strict=True):
            self._note(operation, result, events)
        outcomes: list[str | Stat | None] = []
        for operation, result in zip(operations, made, strict=True):
            if isinstance(operation, Set):
                outcomes.append(self.stat(operation.path))
            else:
                outcomes.append(result if isinstance(result, str) else None)
        return outcomes, events

    def _note(self, operation: Operation, result: object, events: list[Event]) -> None:
        path = str(result) if isinstance(operation, Create) else operation.path
        match operation:
            case Create():
                self._zxids[path] = [self.zxid] * 3
                events.append(Event(EventKind.CREATED, path))
            case Set():
                self._zxids[path][1] = self.zxid
                events.append(Event(EventKind.DATA_CHANGED, path))
                return
            case Delete():
                self._zxids.pop(path, None)
                events.append(Event(EventKind.DELETED, path))
            case _:
                return
        parent, _name = split(path)
        if parent in self._zxids:
            self._zxids[parent][2] = self.zxid
        events.append(Event(EventKind.CHILDREN_CHANGED, parent))

    def find(self, path: str) -> Row | None:
        """Return a node, or None."""
        return self._tree.tree.find(path)

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        return self._tree.tree.children(path)

    def stat(self, path: str) -> Stat | None:
        """Return what a server tells of a node, or None."""
        row = self.find(path)
        if row is None:
            return None
        czxid, mzxid, pzxid = self._zxids[path]
        node = row.node
        return Stat(
            czxid,
            mzxid,
            node.ctime_ms,
            node.mtime_ms,
            node.version,
            node.child_version,
            node.owner,
            len(node.data),
            node.children_count,
            pzxid,
        )


@dataclass(slots=True)
class ServedSession:
    """A session, as the leader knows it."""

    id: int
    password: bytes = field(repr=False)
    timeout_ns: int
    heard_ns: int
    #: The server that its owner is connected with.
    server: str


class Ensemble:
    """The leader.

    Args:
        tree: Its tree, which others look at.
    """

    def __init__(self, tree: MemoryTree) -> None:
        self._replica = Replica(tree)
        self.zxid = 0
        self.log: list[Transaction] = []
        self.sessions: dict[int, ServedSession] = {}
        self._last_session_id = _FIRST_SESSION_ID
        #: How often a session carried out the same step, by session and step.
        self.carried_out: Counter[tuple[int, tuple[Operation, ...]]] = Counter()

    def begin_session(self, server: str, timeout_ns: int, now_ns: int) -> ServedSession:
        """Begin a session."""
        self._last_session_id += 1
        session_id = self._last_session_id
        password = session_id.to_bytes(16, "big")
        session = ServedSession(session_id, password, timeout_ns, now_ns, server)
        self.sessions[session_id] = session
        self._commit(session_id, (), now_ns)
        return session

    def take_up(
        self, session_id: int, password: bytes, server: str, now_ns: int
    ) -> ServedSession | None:
        """Move a session to another connection; None if it is over."""
        session = self.sessions.get(session_id)
        if session is None or session.password != password:
            return None
        session.server, session.heard_ns = server, now_ns
        return session

    def end_session(self, session_id: int, now_ns: int) -> None:
        """End a session; its ephemeral nodes go."""
        if self.sessions.pop(session_id, None) is not None:
            self._commit(session_id, (), now_ns, is_end_of_session=True)

    def write(
        self, session_id: int, server: str, operations: tuple[Operation, ...], now_ns: int
    ) -> list[str | Stat | None] | ServerFailure:
        """Carry a step out, or say why not."""
        session = self.sessions.get(session_id)
        if session is None:
            return ServerFailure(Code.SESSION_EXPIRED, 0)
        if session.server != server:
            return ServerFailure(Code.SESSION_MOVED, 0)
        try:
            outcomes = self._commit(session_id, operations, now_ns)
        except QuorumbookError as error:
            # A step that fails has a number too.
            self.log.append(Transaction(self.zxid, session_id, (), False, 0))
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            return ServerFailure(code, self._replica.failed_at)
        self.carried_out[session_id, operations] += 1
        return outcomes

    def made(self, path: str) -> Stat:
        """Return the stat of a node that was created just now."""
        stat = self._replica.stat(path)
        assert stat is not None
        return stat

    def _commit(
        self,
        session_id: int,
        operations: tuple[Operation, ...],
        now_ns: int,
        *,
        is_end_of_session: bool = False,
    ) -> list[str | Stat | None]:
        self.zxid += 1
        now_ms = _START_WALL_MS + now_ns // MILLISECOND
        step = Transaction(self.zxid, session_id, operations, is_end_of_session, now_ms)
        outcomes, _ = self._replica.apply(step)
        self.log.append(step)
        return outcomes
