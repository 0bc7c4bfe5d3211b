"""The tree in etcd: keys, values, and transactions over a view of some of its nodes.

    quorumbook/1/node/<depth, 3 digits><path>     the root has depth 000 and the path "/"
    quorumbook/1/session/<lease, 16 hex digits>   <commits, 8 bytes>, bound to the lease

    value of a node, big-endian: format (1), version (8), children ever created (8),
                                 creation id (8), owner (8), ctime_ms (8), mtime_ms (8), data

With the depth in front, the children of a node are one range of keys, in the order of their
names.  An ephemeral node's key is bound to the lease that is its owner's session.  How many
children a node has is counted, not stored: leases take keys away without telling the parent.

A view holds the nodes that some calls need, all as of one revision, or as they were seen last
(``known``).  Calls change it in memory; then one transaction compares everything they looked at,
and writes what differs:

- Whoever creates a child rewrites the parent (its count).  So a name that was free is still free
  if the parent is unchanged, and a node without children has none if it is itself unchanged.
- A deletion rewrites nothing but the node.
- So an operation costs one comparison and at most two writes, and ``MULTI_LIMIT`` operations fit
  into a transaction of 128, etcd's default limit, of which 128 minus the comparisons are left to
  transactions inside the transaction.

A creation id is the revision of the view and a count.  A node can only be created again after
its deletion was seen, at a higher revision, or in the same view, with a higher count.  A guess has
the latest revision that its store has seen, which is not below that at which the parent was written
last: that the parent is unchanged is compared, and whoever made the node before rewrote it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quorumbook.errors import LocalProtocolError, MetadataFormatError, NodeNotEmptyError
from quorumbook.metadata.etcd.client import TARGET_MOD, messages
from quorumbook.metadata.etcd.known import KnownNodes, Seen
from quorumbook.metadata.store import Delete, split
from quorumbook.metadata.tree import Row, Stamp, Tree

_NODES = b"quorumbook/1/node/"
_SESSIONS = b"quorumbook/1/session/"
_FORMAT = 1
_HEAD = struct.Struct(">Bqqqqqq")

TXN_OPERATIONS_MAX = 128
#: Each operation compares one key, the session another.
MULTI_LIMIT = 100
_COMPARISONS_MAX = MULTI_LIMIT + 1


def node_key(path: str) -> bytes:
    """Return the key of a node."""
    depth = 0 if path == "/" else path.count("/")
    return b"%s%03d%s" % (_NODES, depth, path.encode())


def children_range(path: str) -> tuple[bytes, bytes]:
    """Return the first key of a node's children, and the first behind them."""
    depth = 1 if path == "/" else path.count("/") + 1
    first = b"%s%03d%s/" % (_NODES, depth, b"" if path == "/" else path.encode())
    return first, first[:-1] + b"0"


def session_key(session_id: int) -> bytes:
    """Return the key whose existence says that a session goes on."""
    return b"%s%016x" % (_SESSIONS, session_id)


def is_session(key: bytes) -> bool:
    """Tell whether a key is a session's."""
    return key.startswith(_SESSIONS)


def path_of(key: bytes) -> str | None:
    """Return the path of a node's key, None of another key."""
    return key[len(_NODES) + 3 :].decode() if key.startswith(_NODES) else None


def _encode(row: Row) -> bytes:
    head = _HEAD.pack(
        _FORMAT, row.version, row.created_count, row.creation_id, row.owner, row.ctime_ms,
        row.mtime_ms,
    )  # fmt: skip
    return head + row.data


def _stored(row: Row) -> tuple[object, ...]:
    return (row.version, row.created_count, row.creation_id, row.owner, row.mtime_ms, row.data)


def decode_row(value: bytes, path: str) -> Row:
    """Return the row of a node's value, without the count of its children.

    Raises:
        MetadataFormatError: it is something else.
    """
    if len(value) < _HEAD.size or value[0] != _FORMAT:
        raise MetadataFormatError(f"metadata node {path}: etcd holds something else in its place")
    _, version, created, creation_id, owner, ctime_ms, mtime_ms = _HEAD.unpack_from(value)
    return Row(
        value[_HEAD.size :], version, created, 0, creation_id, owner, ctime_ms, mtime_ms
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Need:
    """A node that a call looks at, and what else of it."""

    path: str
    is_counted: bool = False
    has_names: bool = False

    def with_all_of(self, other: Need) -> Need:
        """Return the need for what either needs."""
        return Need(
            self.path, self.is_counted or other.is_counted, self.has_names or other.has_names
        )


@dataclass(slots=True)
class _FoundRow:
    row: Row | None
    mod_revision: int


class EtcdTree(Tree):
    """The rules of the tree; a deletion leaves the parent alone."""

    def __init__(self, rows: EtcdView) -> None:
        super().__init__(rows)
        self._view = rows

    def delete(self, operation: Delete) -> None:
        """Delete a node without children."""
        row = self._demanded(operation)
        if operation.path == "/":
            raise LocalProtocolError("metadata node / cannot be deleted")
        if row.children_count:
            raise NodeNotEmptyError(
                f"metadata node {operation.path} has {row.children_count} children"
            )
        self._view.remove(operation.path)


class EtcdView:
    """Some nodes as of one revision, and what calls made of them; ``tree.Rows`` of an EtcdTree."""

    def __init__(self, needs: Iterable[Need], session_id: int) -> None:
        merged: dict[str, Need] = {}
        for need in needs:
            merged[need.path] = need.with_all_of(merged.get(need.path, need))
        self._needs = list(merged.values())
        self._session_key = session_key(session_id)
        self._found: dict[str, _FoundRow] = {}
        self._names: dict[str, list[str]] = {}
        self._now: dict[str, Row | None] = {}
        self._looked_at: set[str] = set()
        #: Nodes whose children were counted, or that have none as they are made here.
        self._counted: set[str] = set()
        #: Nodes that are created here.
        self.made: set[str] = set()
        self._creations = 0
        self._undo: list[tuple[str, Row | None]] = []
        #: Taken to be free without having been looked at; the transaction compares them, too.
        self.assumed: set[str] = set()
        #: The etcd revision that everything is as of.
        self.revision = 0
        #: When the session's key was last written; 0 if the session is over.
        self.session_revision = 0

    # Filling it

    def requests(self) -> list[Any]:
        """Return the reads that fill the view, for ``fill``; the session's key is the first."""
        ranges = [messages["RangeRequest"](key=self._session_key)]
        for need in self._needs:
            first, end = children_range(need.path)
            ranges.append(messages["RangeRequest"](key=node_key(need.path)))
            if need.has_names:
                ranges.append(messages["RangeRequest"](key=first, range_end=end, keys_only=1))
            elif need.is_counted:
                ranges.append(messages["RangeRequest"](key=first, range_end=end, count_only=1))
        return ranges

    @property
    def reads(self) -> int:
        """How many reads fill it."""
        return 1 + sum(1 + (need.is_counted or need.has_names) for need in self._needs)

    def fill(self, responses: Sequence[Any], revision: int) -> None:
        """Take the answers to ``requests``."""
        self.revision = revision
        answers = iter(responses)
        session = next(answers)
        self.session_revision = session.kvs[0].mod_revision if session.kvs else 0
        counts: dict[str, int] = {}
        for need in self._needs:
            path = need.path
            kvs = next(answers).kvs
            if kvs:
                self._found[path] = _FoundRow(decode_row(kvs[0].value, path), kvs[0].mod_revision)
            else:
                # The root is always there, if need be unwritten.
                self._found[path] = _FoundRow(Row(b"") if path == "/" else None, 0)
            if need.has_names:
                start = len(children_range(path)[0])
                names = [kv.key[start:].decode() for kv in next(answers).kvs]
                self._names[path] = names
                counts[path] = len(names)
            elif need.is_counted:
                counts[path] = next(answers).count
        for path, found in self._found.items():
            if found.row is not None:
                found.row.children_count = counts.get(path, 0)
            self._now[path] = found.row
        self._counted.update(counts)

    def guess(self, known: KnownNodes, session_revision: int) -> bool:
        """Fill it from what was seen last; False if something has to be read.

        Args:
            known: What was seen.
            session_revision: When the session's key was last written; 0: that is not known.
        """
        if not session_revision:
            return False
        for need in self._needs:
            if need.has_names or known.rests(need.path):
                return False
            seen = known.find(need.path)
            if seen is None:
                if need.is_counted:
                    return False
                continue
            if need.is_counted and not seen.is_counted:
                return False
            self._found[need.path] = _FoundRow(seen.row, seen.mod_revision)
            self._now[need.path] = seen.row
            if seen.is_counted:
                self._counted.add(need.path)
        self.revision, self.session_revision = known.revision, session_revision
        return True

    def tell(self, known: KnownNodes, revision: int = 0) -> None:
        """Tell what was found, or written by a transaction of a revision."""
        known.revision = max(known.revision, revision, self.revision)
        for path, row in self._now.items():
            found = self._found.get(path)
            before = None if found is None else found.row
            if row is None:
                known.learn(path, None)
            elif found is None or before is None or _stored(row) != _stored(before):
                known.learn(path, Seen(row, revision, path in self._counted))
            else:
                known.learn(path, Seen(row, found.mod_revision, path in self._counted))

    def tell_nothing(self, known: KnownNodes) -> None:
        """Tell that these nodes are not what they were."""
        for path in self._now:
            known.learn(path, None)

    def tell_wrong(self, known: KnownNodes, guess: EtcdView) -> None:
        """Tell which nodes a guess had wrong, by what this view has found."""
        for path, found in self._found.items():
            guessed = guess._found.get(path)
            if found.mod_revision != (0 if guessed is None else guessed.mod_revision):
                known.was_wrong(path)

    # The rows of a tree

    def find(self, path: str) -> Row | None:
        """Return a copy of the row, or None."""
        if path not in self._now:
            self.assumed.add(path)
            self._now[path] = None
        self._looked_at.add(path)
        row = self._now[path]
        return None if row is None else replace(row)

    def stamp(self, path: str) -> Stamp | None:
        """Return what changes when the node does."""
        row = self._now.get(path)
        return None if row is None else row.stamp

    def insert(self, path: str, row: Row) -> None:
        """Add a row and give it the next creation id."""
        self._creations += 1
        row.creation_id = (self.revision << 16) + self._creations
        self._counted.add(path)
        self.made.add(path)
        self._put(path, row)

    def save_data(self, path: str, row: Row) -> None:
        """Write back data, version and mtime."""
        self._put(path, row)

    def save_counts(self, path: str, row: Row) -> None:
        """Write back the counts of children."""
        self._put(path, row)

    def remove(self, path: str) -> None:
        """Remove a row that has no children."""
        self._put(path, None)
        parent_path, _ = split(path)
        parent = self._now.get(parent_path)
        if parent is not None:
            self._put(parent_path, replace(parent, children_count=parent.children_count - 1))

    def child_names(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""
        names = set(self._names[path])
        for other, row in self._now.items():
            parent, name = split(other)
            if parent == path and name:
                names.discard(name) if row is None else names.add(name)
        return sorted(names)

    def paths_owned_by(self, session_id: int) -> list[str]:
        """Nothing: leases end sessions here."""
        del session_id
        return []

    def begin(self) -> None:
        """Begin a call."""
        self._undo.clear()

    def roll_back(self) -> None:
        """Take back what the call did since ``begin``."""
        for path, row in reversed(self._undo):
            self._now[path] = row

    def _put(self, path: str, row: Row | None) -> None:
        self._undo.append((path, self._now.get(path)))
        self._now[path] = row

    # Writing it back

    def writes(self) -> list[Any]:
        """Return the writes that carry every change."""
        operations = []
        for path, row in self._now.items():
            found = self._found.get(path)
            before = found.row if found is not None else None
            if row is None:
                if before is not None:
                    request = messages["DeleteRangeRequest"](key=node_key(path))
                    operations.append(messages["RequestOp"](request_delete_range=request))
            elif before is None or _stored(row) != _stored(before):
                request = messages["PutRequest"](
                    key=node_key(path), value=_encode(row), lease=row.owner
                )
                operations.append(messages["RequestOp"](request_put=request))
        return operations

    def comparisons(self) -> list[Any] | None:
        """Return what must still be as it was seen; None if too much was only assumed."""
        found = [self._unchanged(self._session_key, self.session_revision)]
        for path in self._looked_at:
            known = self._found.get(path)
            if known is None:
                found.append(self._unchanged(node_key(path), 0))
            elif known.row is not None or not self._is_guarded(path):
                found.append(self._unchanged(node_key(path), known.mod_revision))
        return found if len(found) <= _COMPARISONS_MAX or not self.assumed else None

    def commit(
        self, comparisons: list[Any], writes: list[Any], session: Any, after: EtcdView
    ) -> Any:
        """Return the transaction; if it fails, its answers fill ``after``."""
        writes = [*writes, messages["RequestOp"](request_put=session)]
        if len(writes) > TXN_OPERATIONS_MAX:
            size = TXN_OPERATIONS_MAX - len(comparisons)
            parts = [writes[start : start + size] for start in range(0, len(writes), size)]
            writes = [
                messages["RequestOp"](request_txn=messages["TxnRequest"](success=part))
                for part in parts
            ]
        looks = [messages["RequestOp"](request_range=each) for each in after.requests()]
        return messages["TxnRequest"](compare=comparisons, success=writes, failure=looks)

    def _is_guarded(self, path: str) -> bool:
        """Tell whether the parent, which is compared, proves that the node is still missing."""
        parent, _ = split(path)
        return path != "/" and parent in self._looked_at and parent in self._found

    @staticmethod
    def _unchanged(key: bytes, revision: int) -> Any:
        return messages["Compare"](target=TARGET_MOD, key=key, mod_revision=revision)
