"""What goes wrong with streams: the branch ``StreamError`` of the tree in ``quorumbook.errors``.

``code`` is DistributedLog's status code where it has one.

    StreamError
    ├── NamespaceNotBoundError  InvalidStreamNameError  StreamNotFoundError  StreamExistsError
    ├── StreamSealedError  AccessDeniedError  QuotaExceededError
    ├── WriterBusyError  WriterFencedError  LockLostError
    ├── RecordTooLargeError  TxidOutOfOrderError  SequenceConflictError
    ├── PositionTruncatedError  DataLossError  CorruptRecordsError  UnsupportedFormatError
    ├── ReaderIdleError  CursorConflictError  CursorBusyError  AckLimitError
    ├── PartitionLostError  GroupInUseError  PartlySealedError
    ├── PipelineNotFoundError  PipelineRunsError
    ├── FilesUnavailableError  PolicyConflictError
    ├── SchemaNotFoundError  SchemaIncompatibleError  SchemaConflictError  BadRecordError
    └── TransactionError
        └── CheckpointChangedError  TransactionLostError  TransactionTooLargeError
"""

from __future__ import annotations

from typing import Any

from quorumbook.errors import QuorumbookError


class StreamError(QuorumbookError):
    """Base of all that is about streams."""

    code = 600


class NamespaceNotBoundError(StreamError):
    """This metadata path is not a namespace of streams; the message says how to make it one."""

    code = 506


class InvalidStreamNameError(StreamError):
    """A stream cannot have this name."""

    code = 602


class StreamNotFoundError(StreamError):
    """There is no stream of this name."""

    code = 510


class StreamExistsError(StreamError):
    """There is a stream of this name already, or one that this one would lie above."""

    code = 522


class StreamSealedError(StreamError):
    """The stream was sealed: nothing is ever appended to it again."""

    code = 512


class AccessDeniedError(StreamError):
    """The namespace's access control denies this operation to every user."""

    code = 403


class QuotaExceededError(StreamError):
    """The stream's policy does not allow more."""

    code = 517


class WriterBusyError(StreamError):
    """Another writer holds the stream's lock; ``owner`` is its client id."""

    code = 504
    retriable = True

    def __init__(self, message: str, *, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class WriterFencedError(StreamError):
    """Another writer took the stream over; what was in flight may or may not be stored."""

    code = 504


class LockLostError(StreamError):
    """The writer's lock is gone with its metadata session, and nobody took the stream over yet."""

    code = 504


class RecordTooLargeError(StreamError):
    """A record, or a batch that must be one entry, is larger than an entry can be."""

    code = 413


class TxidOutOfOrderError(StreamError):
    """A transaction id is below one that was appended before it."""

    code = 513


class SequenceConflictError(StreamError):
    """The next record would not have the expected sequence id; ``actual`` is what it would have."""

    code = 603

    def __init__(self, message: str, *, actual: int) -> None:
        super().__init__(message)
        self.actual = actual


class PositionTruncatedError(StreamError):
    """Records asked for were truncated away; the message names the first that is left.

    ``first`` is its position, or a position before it, where a reader found that out.
    """

    code = 527

    def __init__(self, message: str, *, first: Any = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.first = first


class DataLossError(StreamError):
    """Records are missing between two that are there; the message names the range.

    ``gap`` is a ``Gap`` that says it for programs, where a reader found it.
    """

    code = 1001

    def __init__(self, message: str, *, gap: Any = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.gap = gap


class CorruptRecordsError(StreamError):
    """The bytes of an entry, a segment's metadata or a position cannot be what a writer wrote."""

    code = 520


class UnsupportedFormatError(StreamError):
    """Bytes of a version or codec that this release does not know."""

    code = 521


class ReaderIdleError(StreamError):
    """A reader makes no progress; the message says why."""

    code = 518
    retriable = True


class ApplyError(StreamError):
    """Code that follows a stream failed at a record, and nothing more is applied; see the cause."""

    code = 604


class PolicyConflictError(StreamError):
    """Somebody else changed the policy since it was read."""

    code = 603
    retriable = True


class SchemaNotFoundError(StreamError):
    """The stream has no schema, or no such version of it."""

    code = 630


class SchemaIncompatibleError(StreamError):
    """A new version of the schema breaks the rule of compatibility; the message names the field."""

    code = 631


class SchemaConflictError(StreamError):
    """Somebody else changed the stream's schema since it was read."""

    code = 632
    retriable = True


class BadRecordError(StreamError):
    """A record does not fit the stream's schema; the message says where it is and why."""

    code = 633


class CursorConflictError(StreamError):
    """Somebody else moved the cursor since it was read."""

    code = 603
    retriable = True


class TransactionError(StreamError):
    """Base of what goes wrong when many processes append in one step."""

    code = 620


class CheckpointChangedError(TransactionError):
    """An application's batch numbers belong to other batches: another query's, or other rows."""

    code = 621


class TransactionLostError(TransactionError):
    """What this run wrote for a batch was cleaned up, or another run committed the batch."""

    code = 622


class TransactionTooLargeError(TransactionError):
    """The batch is too large for one step of the metadata, or it would add too many segments."""

    code = 623


class RowsDifferError(TransactionError):
    """A batch was run again, and has other rows than those that it appended the first time."""

    code = 624


class FilesUnavailableError(StreamError):
    """The files of an offloaded segment cannot be read, written or removed now."""

    retriable = True


class CursorBusyError(StreamError):
    """Another process has the cursor for itself; ``owner`` is its client id."""

    code = 504
    retriable = True

    def __init__(self, message: str, *, owner: str = "") -> None:
        super().__init__(message)
        self.owner = owner


class AckLimitError(StreamError):
    """Records are acknowledged with more holes between them than a cursor keeps."""

    code = 517


class PartitionLostError(StreamError):
    """Another member of the group has the partition now, and reads its records again."""

    code = 504


class GroupInUseError(StreamError):
    """A consumer group has members."""

    code = 504


class PipelineNotFoundError(StreamError):
    """No pipeline of this name has told anything in this namespace."""

    code = 510


class PipelineRunsError(StreamError):
    """A pipeline has told lately that it runs, so that what it tells is not forgotten."""

    code = 504


class PartlySealedError(StreamError):
    """Some partitions were not sealed; ``failed`` says which and why.  Sealing again goes on."""

    code = 600
    retriable = True

    def __init__(self, message: str, *, failed: dict[int, QuorumbookError] | None = None) -> None:
        super().__init__(message)
        self.failed = failed or {}
