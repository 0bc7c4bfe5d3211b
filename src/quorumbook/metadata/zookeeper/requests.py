"""Requests for writes, and what the errors of answers mean; pure.

What is impossible is refused here, and no server is asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.errors import (
    LocalProtocolError,
    MetadataError,
    MetadataUnauthorizedError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import Create, Delete, Operation, Set, check_data, check_path
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.jute import Code, Op

#: The servers refuse larger requests.
_MULTI_SIZE_BYTES = 1_000_000
#: The server will not do it now.
_NOT_NOW = frozenset((Code.NOT_READ_ONLY, Code.THROTTLED))


def check_writes(operations: Sequence[Operation]) -> None:
    """Refuse what cannot be carried out anywhere."""
    for each in {id(each): each for each in operations}.values():
        is_sequential = isinstance(each, Create) and each.sequential
        # A sequential name may be digits only: "/queue/" makes "/queue/0000000000".
        check_path(f"{each.path}0" if is_sequential else each.path)
        if each.path == "/":
            if isinstance(each, Create):
                raise NodeExistsError("metadata node / exists already")
            if isinstance(each, Delete):
                raise LocalProtocolError("metadata node / cannot be deleted")
        if isinstance(each, Create | Set):
            check_data(each.path, each.data)


def write_request(
    operations: Sequence[Operation], chroot: str, acl: bytes, *, is_multi: bool
) -> tuple[Op, bytes]:
    """Return number and record of one operation, or of several that happen together."""
    check_writes(operations)
    if not is_multi:
        return jute.operation_record(operations[0], chroot, acl)
    record = jute.multi_record(operations, chroot, acl)
    if len(record) > _MULTI_SIZE_BYTES:
        raise LocalProtocolError(
            f"a multi of {len(record)} bytes is more than the {_MULTI_SIZE_BYTES} "
            "that ZooKeeper takes"
        )
    return Op.MULTI, record


def error_of(code: int, path: str) -> Exception:
    """Return the error for a server's code."""
    match code:
        case Code.NO_NODE:
            return NoSuchNodeError(f"metadata node {path}, or its parent, does not exist")
        case Code.NODE_EXISTS:
            return NodeExistsError(f"metadata node {path} exists already")
        case Code.BAD_VERSION:
            return MetadataVersionConflict(f"metadata node {path} has another version")
        case Code.NOT_EMPTY:
            return NodeNotEmptyError(f"metadata node {path} has children")
        case Code.NO_CHILDREN_FOR_EPHEMERALS:
            return LocalProtocolError(f"the parent of metadata node {path} is ephemeral")
        case Code.NO_AUTH | Code.INVALID_ACL | Code.AUTH_FAILED:
            return MetadataUnauthorizedError(
                f"metadata node {path}: ZooKeeper does not let us; "
                "say who we are at the end of the URI: ?auth_file=FILE, ?sasl_file=FILE or "
                "?kerberos=true"
            )
        case Code.BAD_ARGUMENTS | Code.UNIMPLEMENTED:
            return LocalProtocolError(f"metadata node {path}: ZooKeeper cannot do this ({code})")
    if code in _NOT_NOW:
        return MetadataUnavailableError(f"metadata node {path}: ZooKeeper takes no writes now")
    return MetadataError(f"metadata node {path}: ZooKeeper fails with error {code}")
