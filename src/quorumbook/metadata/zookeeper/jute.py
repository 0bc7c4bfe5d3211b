"""ZooKeeper's bytes; pure.

    frame     int32 size, then that many bytes; everything is big-endian
    buffer    int32 size (-1: none), bytes; a string is a buffer of UTF-8
    vector    int32 count (-1: none), elements

    connect   int32 version 0, int64 last zxid seen, int32 timeout in ms, int64 session,
              buffer password[16], bool read-only
    answer    int32 version, int32 timeout in ms (0: the session is over), int64 session,
              buffer password
    request   int32 xid, int32 operation, record of the operation
    answer    int32 xid, int64 zxid, int32 error, record if the error is 0
    event     the header of an answer with xid -1, int32 kind, int32 state, string path
    stat      int64 czxid mzxid ctime mtime, int32 version cversion aversion, int64 owner,
              int32 data length, children, int64 pzxid
    multi     for each operation: int32 operation, bool done, int32 error, record; then
              -1, true, -1

Connections, sessions and what an error means to us are the business of the modules beside.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from quorumbook.errors import RemoteProtocolError
from quorumbook.metadata.store import Check, Create, Delete, Node, Operation, Set

#: Answers above this are refused; only the children of a very large node come near.
MAX_FRAME_SIZE_BYTES = 256 << 20
WATCH_EVENT_XID = -1
PING_XID = -2
AUTH_XID = -4
SET_WATCHES_XID = -8
PASSWORD_SIZE_BYTES = 16

_HEADER = struct.Struct(">iqi")
_TWO_INTS = struct.Struct(">ii")
_INT = struct.Struct(">i")
_STAT = struct.Struct(">qqqqiiiqiiq")
_CONNECT = struct.Struct(">iqiqi16s?")
_CONNECTED = struct.Struct(">iiqi")
_MULTI_HEADER = struct.Struct(">i?i")
_MULTI_END = _MULTI_HEADER.pack(-1, True, -1)


class Op(IntEnum):
    """Operations, by the numbers they have on the wire."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET = 4
    SET = 5
    SYNC = 9
    PING = 11
    CHILDREN = 12
    CHECK = 13
    MULTI = 14
    #: CREATE whose answer has the node's stat too.
    CREATE2 = 15
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    CLOSE = -11


class Code(IntEnum):
    """Errors that we tell apart."""

    OK = 0
    CONNECTION_LOSS = -4
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    RUNTIME_INCONSISTENCY = -2
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    QUOTA_EXCEEDED = -125
    SASL_REQUIRED = -124
    THROTTLED = -127


class EventKind(IntEnum):
    """What a watch event tells."""

    SESSION = -1
    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class Connected(NamedTuple):
    """What the server says to a connection."""

    #: 0: the session asked for is over.
    timeout_ms: int
    session_id: int
    password: bytes

    def __repr__(self) -> str:
        return f"Connected(timeout_ms={self.timeout_ms}, session_id={self.session_id:#x})"


class AnswerHeader(NamedTuple):
    """What every answer and event begins with."""

    xid: int
    zxid: int
    error: int


class Acl(NamedTuple):
    """Who may do what: permissions as bits, a scheme, and who that is there."""

    permissions: int
    scheme: str
    identity: str


ALL_PERMISSIONS = 31
#: Everybody may do everything, the default of a cluster.
OPEN_ACL = (Acl(ALL_PERMISSIONS, "world", "anyone"),)
#: Only who authenticated as the creator did.
CREATOR_ACL = (Acl(ALL_PERMISSIONS, "auth", ""),)


def frame(*parts: bytes) -> bytes:
    """Put a size in front."""
    return _INT.pack(sum(map(len, parts))) + b"".join(parts)


def connect(last_zxid: int, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """Return the frame that opens a connection; session 0 asks for a new one."""
    secret = password or bytes(PASSWORD_SIZE_BYTES)
    return frame(
        _CONNECT.pack(0, last_zxid, timeout_ms, session_id, PASSWORD_SIZE_BYTES, secret, False)
    )


def connected(body: bytes) -> Connected:
    """Read the answer to ``connect``."""
    try:
        _, timeout_ms, session_id, size = _CONNECTED.unpack_from(body)
    except struct.error as error:
        raise _damaged("answer to a connection") from error
    password = body[_CONNECTED.size : _CONNECTED.size + size]
    if size < 0 or len(password) != size:
        raise _damaged("answer to a connection")
    return Connected(timeout_ms, session_id, password)


def request(xid: int, operation: Op, record: bytes = b"") -> bytes:
    """Return the frame of a request."""
    return _INT.pack(_TWO_INTS.size + len(record)) + _TWO_INTS.pack(xid, operation) + record


def header(body: bytes) -> AnswerHeader:
    """Read the header of an answer or event."""
    if len(body) < _HEADER.size:
        raise _damaged("answer")
    return AnswerHeader(*_HEADER.unpack_from(body))


# Records of requests


def string(text: str) -> bytes:
    """Return a string's bytes."""
    return buffer(text.encode())


def buffer(data: bytes) -> bytes:
    """Return a buffer's bytes."""
    return _INT.pack(len(data)) + data


def path_and_watch(path: str, is_watched: bool) -> bytes:
    """Return the record of a read."""
    return string(path) + (b"\1" if is_watched else b"\0")


def acls(entries: Sequence[Acl]) -> bytes:
    """Return the bytes of an access control list."""
    parts = [_INT.pack(len(entries))]
    for each in entries:
        parts += [_INT.pack(each.permissions), string(each.scheme), string(each.identity)]
    return b"".join(parts)


def located(chroot: str, path: str) -> str:
    """Return where a path of ours lies in the server's tree."""
    return chroot if path == "/" and chroot else chroot + path


def operation_record(operation: Operation, chroot: str, acl: bytes) -> tuple[Op, bytes]:
    """Return number and record of a write or check."""
    path = string(located(chroot, operation.path))
    match operation:
        case Create():
            flags = operation.ephemeral | operation.sequential << 1
            return Op.CREATE, path + buffer(operation.data) + acl + _INT.pack(flags)
        case Set():
            return Op.SET, path + buffer(operation.data) + _INT.pack(operation.version)
        case Delete():
            return Op.DELETE, path + _INT.pack(operation.version)
        case Check():
            return Op.CHECK, path + _INT.pack(operation.version)


def multi_record(
    operations: Sequence[Operation], chroot: str, acl: bytes, *, has_stats: bool = False
) -> bytes:
    """Return the record of several operations that happen together or not at all.

    Args:
        operations: These.
        chroot: All paths are below it.
        acl: Of nodes that are created.
        has_stats: Whether the answer has the stat of a node that is created, too.
    """
    parts = []
    # Ids are taken by the same two operations again and again.
    known: dict[int, bytes] = {}
    for operation in operations:
        part = known.get(id(operation))
        if part is None:
            number, record = operation_record(operation, chroot, acl)
            if has_stats and number == Op.CREATE:
                number = Op.CREATE2
            part = known[id(operation)] = _MULTI_HEADER.pack(number, False, -1) + record
        parts.append(part)
    return b"".join(parts) + _MULTI_END


def auth_record(scheme: str, credential: bytes) -> bytes:
    """Return the record of an authentication."""
    return _INT.pack(0) + string(scheme) + buffer(credential)


def set_watches_record(
    zxid: int, data: Sequence[str], exists: Sequence[str], children: Sequence[str]
) -> bytes:
    """Return the record that leaves watches as of a zxid."""
    parts = [struct.pack(">q", zxid)]
    for paths in (data, exists, children):
        parts.append(_INT.pack(len(paths)))
        parts += [string(path) for path in paths]
    return b"".join(parts)


# Records of answers


class JuteReader:
    """Reads one record after another."""

    __slots__ = ("_body", "_offset")

    def __init__(self, body: bytes, offset: int = _HEADER.size) -> None:
        self._body = body
        self._offset = offset

    def integer(self) -> int:
        """Read an int32."""
        value: int = self._unpack(_INT)[0]
        return value

    def buffer(self) -> bytes:
        """Read a buffer; none is an empty one."""
        size = self.integer()
        if size < 0:
            return b""
        start = self._offset
        self._offset = start + size
        data = self._body[start : self._offset]
        if len(data) != size:
            raise _damaged("answer")
        return data

    def string(self) -> str:
        """Read a string."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise _damaged("answer") from error

    def strings(self) -> list[str]:
        """Read a vector of strings."""
        return [self.string() for _ in range(self.integer())]

    def node(self, data: bytes = b"") -> Node:
        """Read a stat and make a node of it."""
        czxid, _, ctime, mtime, version, cversion, _, owner, _, children, _ = self._unpack(_STAT)
        return Node(data, version, cversion, czxid, owner, ctime, mtime, children)

    def changes(self) -> tuple[int, int]:
        """Return the zxids of the last change of data and children; the stat is read again."""
        values = _STAT.unpack_from(self._body, self._offset)
        return values[1], values[-1]

    def multi(self) -> tuple[list[str | Node | None], int, int]:
        """Read the results of several operations; which failed first, and its error or 0."""
        results: list[str | Node | None] = []
        failed_at = failure = 0
        while True:
            operation, is_end, _ = self._unpack(_MULTI_HEADER)
            if is_end:
                return results, failed_at, failure
            if operation == Op.CREATE:
                results.append(self.string())
            elif operation == Op.CREATE2:
                self.string()
                results.append(self.node())
            elif operation == Op.SET:
                results.append(self.node())
            elif operation == -1:
                code = self.integer()
                # The operations around the one that failed have codes that tell nothing.
                if code not in (Code.OK, Code.RUNTIME_INCONSISTENCY) and not failure:
                    failed_at, failure = len(results), code
                results.append(None)
            else:
                results.append(None)

    def _unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self._body, self._offset)
        except struct.error as error:
            raise _damaged("answer") from error
        self._offset += layout.size
        return values


def _damaged(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"ZooKeeper sent an {what} that cannot be understood")
