"""What the nodes of an application say, and what follows from them; pure.

    <root>/<application>                    the head, as JSON: who committed which batch last
    <root>/<application>/attempts/<name>    one process at one part of one batch, as JSON: whose it
                                            is, and its ledgers, each named before it is made
    <root>/<application>/garbage/<name>     ledgers that nobody needs, as JSON, until they are gone

An application's name is URL-encoded.  An attempt's is ``<batch>_<partition>_<attempt>_<token>``.
A commit sets the head by version and deletes the attempts that it takes; a clean-up checks the
head's version and moves an attempt to the garbage.  Both in one step each, so of the two that want
the same attempt one fails, and does nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from quorumbook.ids import LedgerId
from quorumbook.streams.errors import (
    CheckpointChangedError,
    CorruptRecordsError,
    TransactionLostError,
    UnsupportedFormatError,
)

_VERSION = 1
#: The part of a batch that is the driver's own: manifests and merged segments.
DRIVER_PARTITION = -1


class Identity(NamedTuple):
    """The process that works on an application's batches."""

    #: The same after a restart: of a streaming query, the id that its checkpoint keeps.
    query: str
    #: Another one after each start.
    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How far an application is."""

    query: str = ""
    run: str = ""
    #: The last batch that is committed; -1: none is.
    batch: int = -1
    #: How many were.
    epoch: int = 0
    #: What the last commit is known by to whoever made it.
    token: str = ""
    #: The newest manifest of ledgers that are not segments; None: there is none.
    manifest: LedgerId | None = None
    #: Whether no batch follows, so that the application's nodes may go.
    is_final: bool = False
    #: A digest of what the last batch was made of; empty: nobody could tell.
    plan: str = ""

    def encode(self) -> bytes:
        """Return the data of its node."""
        return _encode(asdict(self))

    @classmethod
    def decode(cls, data: bytes, path: str) -> Head:
        """Read the data of its node.

        Raises:
            UnsupportedFormatError: of a newer release.
            CorruptRecordsError: it is no head.
        """
        found = _decode(data, path)
        try:
            return cls(**found)
        except TypeError as error:
            raise CorruptRecordsError(f"metadata node {path} is not a head: {error}") from error


class AttemptName(NamedTuple):
    """Which process's work an attempt is."""

    batch: int
    partition: int
    attempt: int
    token: str

    def __str__(self) -> str:
        return f"{self.batch:020d}_{self.partition:06d}_{self.attempt}_{self.token}"

    @classmethod
    def parse(cls, text: str) -> AttemptName | None:
        """Read a node's name; None if it is none of these."""
        try:
            batch, partition, attempt, token = text.split("_")
            return cls(int(batch), int(partition), int(attempt), token)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """What an attempt's node says, and what garbage says."""

    query: str
    run: str
    ledgers: tuple[LedgerId, ...] = ()
    #: Of garbage: somebody may read its ledgers until then.
    due_ms: int = 0

    def encode(self) -> bytes:
        """Return the data of its node."""
        return _encode(asdict(self))

    @classmethod
    def decode(cls, data: bytes, path: str) -> AttemptRecord:
        """Read the data of its node; raises as ``Head.decode`` does."""
        found = _decode(data, path)
        try:
            return cls(
                query=found["query"],
                run=found["run"],
                ledgers=tuple(found["ledgers"]),
                due_ms=found.get("due_ms", 0),
            )
        except (KeyError, TypeError) as error:
            raise CorruptRecordsError(f"metadata node {path} is not an attempt: {error}") from error


def is_committed(head: Head, who: Identity, batch: int, *, may_reset: bool = False) -> bool:
    """Tell whether a batch is committed already.

    Args:
        head: The application's.
        who: Who would write the batch.
        batch: Its number.
        may_reset: Take an application over that another query has worked for.

    Raises:
        CheckpointChangedError: another query has, so that the numbers of batches mean others.
    """
    if head.batch < 0:
        return False
    if head.query == who.query:
        return batch <= head.batch
    if may_reset:
        return False
    raise CheckpointChangedError(
        f"another query ({head.query}) has committed up to batch {head.batch} of this application; "
        f"this one ({who.query}) is at batch {batch}, with a new checkpoint: choose another "
        "txnAppId, or set txnReset=true to go on under the old one"
    )


def check_plan(head: Head, batch: int, plan: str) -> None:
    """Check that a batch that is committed already is the one that was committed.

    Args:
        head: The application's.
        batch: The number of a batch that its query has committed.
        plan: A digest of what the batch is made of now; empty: that is not known.

    Raises:
        CheckpointChangedError: the number means another batch by now.
    """
    if not plan or not head.plan or (batch == head.batch and plan == head.plan):
        return
    how = f"up to batch {head.batch}" if batch < head.batch else "from other offsets"
    raise CheckpointChangedError(
        f"batch {batch} comes again, and this application has committed {how}: the checkpoint is "
        "older than what was written, or was changed, and rows of this batch would be left out. "
        "Nothing was written. Give the newest checkpoint; or begin with an empty one, another "
        "txnAppId and startingOffsets that say which rows are still to be written"
    )


def check_not_overtaken(
    head: Head, who: Identity, batch: int, token: str, *, may_reset: bool
) -> bool:
    """Tell whether the commit of this token is done; False: it may be tried (again).

    Raises:
        TransactionLostError: another run has committed the batch.
        CheckpointChangedError: another query works for the application.
    """
    if head.token == token:
        return True
    if is_committed(head, who, batch, may_reset=may_reset):
        raise TransactionLostError(
            f"batch {batch} was committed by another run ({head.run}) of the same query; what this "
            "run wrote for it is dropped, the batch is there once"
        )
    return False


def can_never_commit(head: Head, name: AttemptName, record: AttemptRecord) -> bool:
    """Tell whether an attempt is of no use to anybody, whatever happens."""
    return record.query == head.query and name.batch <= head.batch


def _encode(values: dict[str, object]) -> bytes:
    return json.dumps({"version": _VERSION, **values}, separators=(",", ":")).encode()


def _decode(data: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
        version = found.pop("version")
    except (ValueError, KeyError, AttributeError) as error:
        raise CorruptRecordsError(f"metadata node {path} holds {data[:200]!r}") from error
    if version != _VERSION:
        raise UnsupportedFormatError(
            f"metadata node {path} is of version {version}; this release knows {_VERSION}"
        )
    assert isinstance(found, dict)
    return found
