"""What a table of a lake says and takes, whatever kind it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from quorumbook.errors import QuorumbookError
from quorumbook.spark.request.offsets import Reached

#: What the state is known by, wherever a kind of table keeps such things.
STATE = "quorumbook.lake-sink"
_VERSION, _UPSERTS = 1, 2


class LakeConflictError(QuorumbookError):
    """Somebody else writes the table."""


class LakeFormatError(QuorumbookError):
    """What the table says of its state cannot be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A file of a batch."""

    #: Path or URI.
    path: str
    stream: str
    rows: int
    size_bytes: int
    #: Sequence ids of its records.
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """How far a table is."""

    #: The last batch; -1: there is none.
    batch: int = -1
    #: Of which cluster the streams are; empty if there is no batch.
    cluster: str = ""
    streams: Mapping[str, Reached] = field(default_factory=dict)
    #: Whether the table has the latest record of each key; else all of them.
    upserts: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` takes."""
        streams = {name: list(reached) for name, reached in sorted(self.streams.items())}
        return {
            # A release that knows no upserts would take the table for another.
            "version": _UPSERTS if self.upserts else _VERSION,
            "batch": self.batch,
            "cluster": self.cluster,
            "streams": streams,
        }

    @classmethod
    def from_json(cls, found: Any) -> LakeState:
        """Read what a table has.

        Raises:
            LakeFormatError: it is of a newer release, or no state.
        """
        try:
            if found["version"] not in (_VERSION, _UPSERTS):
                raise LakeFormatError(
                    f"the table was written by a newer release: state version {found['version']}"
                )
            streams = {name: Reached(*each) for name, each in found["streams"].items()}
            return cls(
                batch=int(found["batch"]),
                cluster=found["cluster"],
                streams=streams,
                upserts=found["version"] == _UPSERTS,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LakeFormatError(f"{found!r} is not a state of a table: {error!r}") from error


class LakeTable(Protocol):
    """A table, as the driver has it; all calls block."""

    @property
    def data_directory(self) -> str:
        """Where tasks put files, as path or URI."""
        ...

    def state(self, streams: Sequence[str]) -> LakeState:
        """Return how far these streams are in it."""
        ...

    def commit(self, before: LakeState, state: LakeState, files: Sequence[LakeFile]) -> None:
        """Take a batch in, if the table is as it was before.

        Raises:
            LakeConflictError: it is not.
        """
        ...

    def merge(self, before: LakeState, state: LakeState, changes: pa.Table) -> None:
        """Have the table lose rows and get others, in one step, if it is as it was before.

        Args:
            before: How the table was.
            state: How far it is then.
            changes: The latest change of each key; see ``upserts``.

        Raises:
            LakeConflictError: it is not.
        """
        ...
