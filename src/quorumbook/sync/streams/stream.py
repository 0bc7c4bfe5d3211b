"""The blocking stream: what can be done with one by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Unpack, overload

from quorumbook.options import takes
from quorumbook.streams import stream as aio
from quorumbook.streams.cursors.lag import Lag
from quorumbook.streams.format.position import Position
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.options import ReadingKeywords
from quorumbook.streams.reading.reader import ReportingReader as AioReportingReader
from quorumbook.streams.reading.seek import SequenceId, Start, Time
from quorumbook.streams.reading.snapshot import Split, StreamSnapshot
from quorumbook.streams.retention.retention import RetentionReport
from quorumbook.streams.retention.truncation import Cut, TruncatedSegment
from quorumbook.streams.stream import Segment, StreamInfo
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.loop import Owned
from quorumbook.sync.streams.cursor import Cursor
from quorumbook.sync.streams.cursor import unwrapped as unwrapped_cursor
from quorumbook.sync.streams.cursor_reader import CursorReader
from quorumbook.sync.streams.reader import ReportingReader, StreamReader
from quorumbook.sync.streams.writer import StreamWriter


def unwrapped(stream: Stream) -> aio.Stream:
    """Return the stream that does the work of a twin."""
    return stream._aio  # noqa: SLF001 - of this module


class Stream(Owned):
    """The blocking twin of ``quorumbook.streams.Stream``."""

    def __init__(self, stream: aio.Stream) -> None:
        """Wrap a stream of a namespace that was opened on the loop thread."""
        super().__init__()
        self._aio = stream

    @property
    def name(self) -> str:
        """The stream's name, in normal form."""
        return self._aio.name

    def info(self) -> StreamInfo:
        """Return what the metadata say."""
        return self.run(self._aio.info)

    def policy(self) -> StreamPolicy:
        """Return what the stream says for itself."""
        return self.run(self._aio.policy)

    def set_policy(self, policy: StreamPolicy, *, expected: StreamPolicy | None = None) -> None:
        """Replace what the stream says for itself; see the asyncio twin."""
        self.run(lambda: self._aio.set_policy(policy, expected=expected))

    @takes(WriterOptions)
    def writer(self, **options: Any) -> StreamWriter:
        """Become the writer: ``with stream.writer() as writer``; see the asyncio twin."""

        async def begin() -> StreamWriter:
            return StreamWriter(await self._aio.writer(**options), WriterOptions.of(options))

        return self.run(begin)

    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["raise"] = ..., include_control: Literal[False] = ...,
        **options: Unpack[ReadingKeywords],
    ) -> StreamReader: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["report"], include_control: bool = ...,
        **options: Unpack[ReadingKeywords],
    ) -> ReportingReader: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["raise"] = ..., include_control: Literal[True],
        **options: Unpack[ReadingKeywords],
    ) -> ReportingReader: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: str, exclusive: bool = ..., wait_for_lock_s: float | None = ...,
        auto_commit_s: float = ..., **options: Unpack[ReadingKeywords],
    ) -> CursorReader: ...  # fmt: skip
    def reader(
        self,
        start: Start | Cursor = "earliest",
        *,
        end: Position | None = None,
        tail: bool = True,
        on_gap: Literal["raise", "report"] = "raise",
        include_control: bool = False,
        cursor: str | None = None,
        exclusive: bool = False,
        wait_for_lock_s: float | None = 0,
        auto_commit_s: float = 0,
        **options: Unpack[ReadingKeywords],
    ) -> StreamReader | ReportingReader | CursorReader:
        """Read: ``with stream.reader() as reader``; see the asyncio twin."""
        begin_at: Any = unwrapped_cursor(start) if isinstance(start, Cursor) else start
        common: dict[str, Any] = {
            "end": end, "tail": tail, "on_gap": on_gap, "include_control": include_control,
            **options,
        }  # fmt: skip

        async def begin() -> StreamReader | ReportingReader:
            reader = await self._aio.reader(begin_at, **common)
            if isinstance(reader, AioReportingReader):
                return ReportingReader(reader)
            return StreamReader(reader)

        async def begin_by_cursor(name: str) -> CursorReader:
            return CursorReader(
                await self._aio.reader(
                    begin_at,
                    cursor=name,
                    exclusive=exclusive,
                    wait_for_lock_s=wait_for_lock_s,
                    auto_commit_s=auto_commit_s,
                    **common,
                )
            )

        if cursor is not None:
            return self.run(lambda: begin_by_cursor(cursor))
        return self.run(begin)

    def find(
        self,
        *,
        sequence_id: int | None = None,
        txid: int | None = None,
        time: Time | None = None,
    ) -> Position:
        """Return where the first record is, or will be, that is not less than what is given."""
        return self.run(lambda: self._aio.find(sequence_id=sequence_id, txid=txid, time=time))

    def get(self, where: Position | SequenceId) -> Record:
        """Return one record."""
        return self.run(lambda: self._aio.get(where))

    def first(self) -> Record | None:
        """Return the first record that is left; None if there is none."""
        return self.run(self._aio.first)

    def last(self, *, recover: bool = False) -> Record | None:
        """Return the last record that readers can see; None if there is none."""
        return self.run(lambda: self._aio.last(recover=recover))

    def count(self, start: Position | None = None, end: Position | None = None) -> int:
        """Return how many records there are, by their sequence ids."""
        return self.run(lambda: self._aio.count(start, end))

    def read_range(
        self, start: Start, end: Position | None = None, *, max_bytes: int = 1 << 24
    ) -> list[Record]:
        """Return the records from one place up to another, or to the last that is there."""
        return self.run(lambda: self._aio.read_range(start, end, max_bytes=max_bytes))

    def lag(self, position: Position) -> Lag:
        """Return what is between a position, a reader's say, and the last record."""
        return self.run(lambda: self._aio.lag(position))

    def truncate(self, before: Cut, *, dry_run: bool = False) -> list[TruncatedSegment]:
        """Cut off what lies before a record: readers get nothing of it any more."""
        return self.run(lambda: self._aio.truncate(before, dry_run=dry_run))

    def snapshot(self) -> StreamSnapshot:
        """Return what the stream holds now, for readers that share the work."""
        return self.run(self._aio.snapshot)

    def read_split(self, split: Split) -> Iterator[RecordBatch]:
        """Yield the records of one split of a snapshot, in any process."""
        return self.iterate(lambda: self._aio.read_split(split))

    def enforce_retention(
        self, *, dry_run: bool = False, forget_files: bool = False
    ) -> RetentionReport:
        """Let go of what the policy and the cursors do not keep, ledgers included."""
        return self.run(
            lambda: self._aio.enforce_retention(dry_run=dry_run, forget_files=forget_files)
        )

    def cursor(
        self, name: str, *, start: Start = "earliest", holds_retention: bool | None = None
    ) -> Cursor:
        """Return a durable named position, made if there is none."""
        return Cursor(
            self.run(lambda: self._aio.cursor(name, start=start, holds_retention=holds_retention))
        )

    def cursors(self) -> list[Cursor]:
        """Return all cursors by name, DistributedLog's subscriptions included."""
        return [Cursor(cursor) for cursor in self.run(self._aio.cursors)]

    def recover(self) -> None:
        """Shut a writer out, and complete what it left, without writing anything."""
        self.run(self._aio.recover)

    def segments(self) -> list[Segment]:
        """Return all segments in order, truncated ones that are still there included."""
        return self.run(self._aio.segments)

    def watch_segments(self) -> Iterator[list[Segment]]:
        """Yield all segments, and again whenever one of them changes."""
        return self.iterate(self._aio.watch_segments)
