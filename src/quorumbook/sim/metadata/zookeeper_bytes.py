"""The server's side of ZooKeeper's bytes: requests in, answers out; pure.

The layouts are those of ``metadata.zookeeper.jute``, which has the client's side.  Only what our
client sends is read; access control lists are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from quorumbook.metadata.store import Check, Create, Delete, Operation, Set
from quorumbook.metadata.zookeeper.jute import Code, JuteReader, Op, buffer, frame, string

_HEADER = struct.Struct(">iqi")
_INT = struct.Struct(">i")
_STAT = struct.Struct(">qqqqiiiqiiq")
_CONNECT = struct.Struct(">iqiqi16s?")
_CONNECTED = struct.Struct(">iiqi16s?")
_MULTI_HEADER = struct.Struct(">i?i")
_MULTI_END = _MULTI_HEADER.pack(-1, True, -1)
_REQUEST_SIZE = 8
#: A connection state, in events: connected.
_CONNECTED_STATE = 3
_EPHEMERAL, _SEQUENTIAL = 1, 2


class Greeting(NamedTuple):
    """The first frame of a connection."""

    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"Greeting(session_id={self.session_id:#x}, last_zxid={self.last_zxid})"


class ZooKeeperRequest(NamedTuple):
    """Any other frame: its number, what it asks for, and the record behind that."""

    xid: int
    operation: int
    record: RequestReader


class Stat(NamedTuple):
    """What a server tells of a node beside its data."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    child_version: int
    owner: int
    data_size: int
    children: int
    pzxid: int


class RequestReader(JuteReader):
    """Reads the record of a request."""

    def long(self) -> int:
        """Read an int64."""
        return (self.integer() << 32) | (self.integer() & 0xFFFFFFFF)

    def flag(self) -> bool:
        """Read a bool."""
        value = self._body[self._offset]
        self._offset += 1
        return bool(value)

    def operation(self, kind: int) -> Operation:
        """Read one write or check."""
        path = self.string()
        match kind:
            case Op.CREATE | Op.CREATE2:
                data = self.buffer()
                for _ in range(self.integer()):
                    self.integer(), self.string(), self.string()
                flags = self.integer()
                return Create(path, data, bool(flags & _EPHEMERAL), bool(flags & _SEQUENTIAL))
            case Op.SET:
                return Set(path, self.buffer(), self.integer(), creation_id=None)
            case Op.DELETE:
                return Delete(path, self.integer(), creation_id=None)
            case Op.CHECK:
                return Check(path, self.integer(), creation_id=None)
        raise AssertionError(f"operation {kind} is not modelled")

    def operations(self) -> list[tuple[int, Operation]]:
        """Read a multi: operations with the numbers they were asked for by."""
        found: list[tuple[int, Operation]] = []
        while True:
            kind, is_end, _ = _MULTI_HEADER.unpack_from(self._body, self._offset)
            self._offset += _MULTI_HEADER.size
            if is_end:
                return found
            found.append((kind, self.operation(kind)))


def frames(received: bytearray) -> Iterable[bytes]:
    """Take the complete frames out of what arrived."""
    while len(received) >= _INT.size:
        end = _INT.size + _INT.unpack_from(received)[0]
        if len(received) < end:
            return
        yield bytes(received[_INT.size : end])
        del received[:end]


def greeting(body: bytes) -> Greeting:
    """Read the first frame."""
    _, last_zxid, timeout_ms, session_id, _, password, _ = _CONNECT.unpack_from(body)
    return Greeting(last_zxid, timeout_ms, session_id, password)


def request(body: bytes) -> ZooKeeperRequest:
    """Read any other frame."""
    xid, operation = _INT.unpack_from(body)[0], _INT.unpack_from(body, _INT.size)[0]
    return ZooKeeperRequest(xid, operation, RequestReader(body, _REQUEST_SIZE))


def connected(timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """Return the answer to the first frame; a timeout of 0 says that the session is over."""
    return frame(_CONNECTED.pack(0, timeout_ms, session_id, 16, password, False))


def answer(xid: int, zxid: int, error: int, record: bytes = b"") -> bytes:
    """Return the answer to a request."""
    return frame(_HEADER.pack(xid, zxid, error), record)


def event(zxid: int, kind: int, path: str) -> bytes:
    """Return the news of a watch."""
    news = _INT.pack(kind) + _INT.pack(_CONNECTED_STATE) + string(path)
    return frame(_HEADER.pack(-1, zxid, 0), news)


def stat(of: Stat) -> bytes:
    """Return a stat's bytes."""
    return _STAT.pack(
        of.czxid,
        of.mzxid,
        of.ctime_ms,
        of.mtime_ms,
        of.version,
        of.child_version,
        0,
        of.owner,
        of.data_size,
        of.children,
        of.pzxid,
    )


def data_and_stat(data: bytes, of: Stat) -> bytes:
    """Return the record of a read."""
    return buffer(data) + stat(of)


def strings(texts: list[str]) -> bytes:
    """Return a vector of strings."""
    return _INT.pack(len(texts)) + b"".join(map(string, texts))


def result(kind: int, outcome: str | Stat | None, made: Callable[[str], Stat]) -> bytes:
    """Return the record of one write that was carried out.

    Args:
        kind: The number that it was asked for by.
        outcome: The path of what was created, or the stat of what was set.
        made: Returns the stat of a node that was created.
    """
    if isinstance(outcome, str):
        return string(outcome) + (stat(made(outcome)) if kind == Op.CREATE2 else b"")
    return b"" if outcome is None else stat(outcome)


def multi_results(kinds: Sequence[int], records: Iterable[bytes]) -> bytes:
    """Return the record of a multi that was carried out, from those of its operations."""
    parts = [
        _MULTI_HEADER.pack(kind, False, 0) + record
        for kind, record in zip(kinds, records, strict=True)
    ]
    return b"".join(parts) + _MULTI_END


def multi_failure(count: int, failed_at: int, code: int) -> bytes:
    """Return the record of a multi of which nothing was carried out."""
    parts = []
    for i in range(count):
        around = Code.OK if i < failed_at else Code.RUNTIME_INCONSISTENCY
        each = code if i == failed_at else around
        parts.append(_MULTI_HEADER.pack(-1, False, each) + _INT.pack(each))
    return b"".join(parts) + _MULTI_END
