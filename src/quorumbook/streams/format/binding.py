r"""What makes a node a namespace of streams, and who may do what.

    1\nBKDL\n{"1":{"str":"zk1:2181"},"2":{"str":"/ledgers"},"3":{"tf":1},"4":{"tf":0},...}

is the data of a namespace's node: layout version, kind of store, and one line of thrift JSON
without blanks, fields ascending:

    1  servers of the ledgers' metadata, for writers   5  for readers; as 1 if missing
    2  path of the ledgers' metadata                   3  check transaction ids (true)
    6  servers of the streams' metadata, for writers   7  for readers; as 6 if missing
    4  encode the region (false)                       8  path of the access control
    9  number of a stream's first segment (1)          10 whether it is federated

Where 1 and 6 are missing, the store that the binding lies in is meant; a Java client demands 1, so
bindings in ZooKeeper have it.  An access control entry has only truth values: 1 deny write, 2 deny
truncate, 3 deny delete, 4 deny acquire, 5 deny release; no data at all denies nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from quorumbook.streams.errors import (
    CorruptRecordsError,
    NamespaceNotBoundError,
    UnsupportedFormatError,
)

_VERSION, _KIND = "1", "BKDL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where a namespace's ledgers and streams have their metadata."""

    bk_servers: str | None = None
    ledgers_path: str = "/ledgers"
    checks_txids: bool = True
    encodes_region: bool = False
    bk_servers_for_reader: str | None = None
    dl_servers: str | None = None
    dl_servers_for_reader: str | None = None
    acl_root: str | None = None
    first_segment: int | None = None
    is_federated: bool = False

    def encode(self) -> bytes:
        """Return the data of the namespace's node."""
        values: list[str | bool | int | None] = [getattr(self, f.name) for f in fields(self)]
        if not self.is_federated:
            values[-1] = None
        return f"{_VERSION}\n{_KIND}\n{_encode_fields(values)}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Binding:
        """Read the data of a namespace's node.

        Raises:
            NamespaceNotBoundError: there is no binding.
            UnsupportedFormatError: a binding of another kind or version.
            CorruptRecordsError: it cannot be understood.
        """
        if not data:
            raise NamespaceNotBoundError("the node is bound to no store: it has no data")
        try:
            version, *rest = data.decode().split("\n")
        except UnicodeDecodeError as error:
            raise CorruptRecordsError(f"the namespace's binding is not text: {error}") from error
        kind, body = (rest[0], "".join(rest[1:])) if rest else ("", "")
        if version != _VERSION or kind != _KIND:
            raise UnsupportedFormatError(
                f"the namespace's binding is {version[:40]!r}, {kind[:40]!r}, not version 1 of BKDL"
            )
        found = _decode_fields(body)
        names = [field.name for field in fields(cls)]
        known: dict[str, object] = {
            names[number - 1]: value for number, value in found.items() if 1 <= number <= len(names)
        }
        if not isinstance(known.get("ledgers_path"), str):
            raise CorruptRecordsError(f"the namespace's binding names no ledgers path: {body}")
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControl:
    """What nobody may do."""

    denies_write: bool = False
    denies_truncate: bool = False
    denies_delete: bool = False
    denies_acquire: bool = False
    denies_release: bool = False

    def __or__(self, other: AccessControl) -> AccessControl:
        """Return what either denies."""
        names = [field.name for field in fields(self)]
        return AccessControl(**{n: getattr(self, n) or getattr(other, n) for n in names})

    def encode(self) -> bytes:
        """Return the data of an access control node."""
        return _encode_fields([getattr(self, f.name) or None for f in fields(self)]).encode()

    @classmethod
    def decode(cls, data: bytes) -> AccessControl:
        """Read the data of an access control node.

        Raises:
            CorruptRecordsError: it cannot be understood.
        """
        if not data:
            return cls()
        found = _decode_fields(data.decode("utf-8", "replace"))
        return cls(
            **{
                field.name: bool(found.get(number, False))
                for number, field in enumerate(fields(cls), 1)
            }
        )


def _encode_fields(values: list[str | bool | int | None]) -> str:
    body: dict[str, dict[str, str | int]] = {}
    for number, value in enumerate(values, 1):
        if isinstance(value, bool):
            body[str(number)] = {"tf": int(value)}
        elif isinstance(value, int):
            body[str(number)] = {"i64": value}
        elif value is not None:
            body[str(number)] = {"str": value}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


def _decode_fields(body: str) -> dict[int, object]:
    """Return the values by field number; fields of unknown numbers come along.

    Unlike the peer's, this reader does not mind blanks.
    """
    try:
        found: dict[int, object] = {}
        for number, typed in json.loads(body).items():
            ((kind, value),) = typed.items()
            found[int(number)] = bool(value) if kind == "tf" else value
    except (ValueError, AttributeError) as error:
        raise CorruptRecordsError(f"{body[:200]!r} is not thrift JSON: {error}") from error
    return found
