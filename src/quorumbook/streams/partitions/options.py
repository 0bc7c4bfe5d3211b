"""How writers, readers and consumers of a partitioned stream work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from quorumbook.errors import ConfigError
from quorumbook.options import option
from quorumbook.streams.partitions.partitioning import StreamCut
from quorumbook.streams.reading.options import ReadingOptions
from quorumbook.streams.reading.seek import Time
from quorumbook.streams.writing.options import WriterOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedWriterOptions(WriterOptions):
    """The options of ``PartitionedStream.writer``: those of each writer, and which."""

    #: Which; all if not given.  Each has one writer, so several processes share them out.
    partitions: Iterable[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedReaderOptions(ReadingOptions):
    """The options of ``PartitionedStream.reader``: those of each reader, and which.

    Attributes:
        start: One place for all partitions, or a StreamCut with a place for each; a partition that
            it does not name is read from its first record.
        end: Positions before which to stop.
        tail: Wait for more at the end, instead of stopping there.
        partitions: Which; all if not given.
        cursor: Begin where the cursor of this name is in each.
        exclusive: Be the only exclusive reader of these cursors; others wait, or get
            ``CursorBusyError``.
        wait_for_lock_s: How long to wait for another exclusive reader; None: without limit.
        auto_commit_s: How often to move the cursors past the records that are done; 0: the caller
            does it.
    """

    start: StreamCut | Time | Literal["earliest", "latest"] = field(
        default="earliest", kw_only=False
    )
    end: StreamCut | None = None
    tail: bool = True
    partitions: Iterable[int] | None = None
    cursor: str | None = None
    exclusive: bool = False
    wait_for_lock_s: float | None = 0
    auto_commit_s: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """The options of ``PartitionedStream.consumer``: how a member of a group works.

    Attributes:
        group: Its name; it is made if there is none.
        start: Where the group begins in a partition that it has never read.
        holds_retention: Whether retention keeps the records that the group has not passed; None:
            leave this as it is.
        dead_letter: The stream that gets records that are given up; it is made if it does not
            exist. None: such records are logged, and count as done.
        on_revoked: Called with a partition before it is released; what it returns is awaited.
        on_assigned: Called with a partition before its first record is handed out; what it returns
            is awaited.
    """

    SECTION: ClassVar[str] = "consumer"

    group: str = field(kw_only=False)
    start: Time | Literal["earliest", "latest"] = "earliest"
    # fmt: off
    auto_commit_s: float = option(
        1.0,
        "How often to move the cursors behind what is done: the records before the last call "
        "for more; 0: the application commits.",
        minimum=0,
    )
    release_timeout_s: float = option(
        30.0,
        "How long a partition that another member is to have waits for the application to be "
        "done with the records it has in hand.",
        minimum=0,
    )
    max_deliveries: int = option(
        0, "A record that was refused (nack) so often is given up; 0: never.",
        minimum=0,
    )
    # fmt: on
    holds_retention: bool | None = None
    dead_letter: str | None = None
    on_revoked: Callable[[int], Awaitable[None] | None] | None = None
    on_assigned: Callable[[int], Awaitable[None] | None] | None = None

    def check_together(self) -> None:
        """Refuse a place for dead records where no record ever is."""
        if self.dead_letter is not None and self.max_deliveries < 1:
            raise ConfigError(
                "dead_letter needs max_deliveries: after so many deliveries a record goes there"
            )
