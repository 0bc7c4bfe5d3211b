"""The blocking stream: what can be done with one by its name."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Unpack, overload

from quorumbook.options import takes
from quorumbook.streams import stream as aio
from quorumbook.streams.cursors.cursor import Cursor as AioCursor
from quorumbook.streams.cursors.reader import CursorReader as AioCursorReader
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.options import ReadingKeywords
from quorumbook.streams.reading.reader import ReportingReader as AioReportingReader
from quorumbook.streams.reading.reader import StreamReader as AioStreamReader
from quorumbook.streams.reading.seek import Start
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.declared import blocking, described_as, held, iterating
from quorumbook.sync.streams.cursors import Cursor, CursorReader
from quorumbook.sync.streams.reader import ReportingReader, StreamReader
from quorumbook.sync.streams.tabular import Tabular
from quorumbook.sync.streams.writer import StreamWriter
from quorumbook.sync.twin import Twin, unwrapped


def _cursors(found: list[AioCursor]) -> list[Cursor]:
    return [Cursor(cursor) for cursor in found]


def _twin_of(reader: object) -> StreamReader | ReportingReader | CursorReader:
    if isinstance(reader, AioCursorReader):
        return CursorReader(reader)
    if isinstance(reader, AioReportingReader):
        return ReportingReader(reader)
    assert isinstance(reader, AioStreamReader)
    return StreamReader(reader)


class Stream(Tabular, Twin[aio.Stream]):
    """The blocking twin of ``quorumbook.streams.Stream``."""

    _bounded: ClassVar = "seq"

    name = held(aio.Stream, lambda it: it.name)
    """The stream's name, in normal form."""
    info = blocking(aio.Stream.info)
    """Return what the metadata say."""
    policy = blocking(aio.Stream.policy)
    """Return what the stream says for itself."""
    set_policy = blocking(aio.Stream.set_policy)
    """Replace the stream's own policy."""

    schemas = blocking(aio.Stream.schemas)
    """Return all versions of the schema, and the rule that a new one keeps to."""
    schema = blocking(aio.Stream.schema)
    """Return one version of the schema; None: the last."""
    set_schema = blocking(aio.Stream.set_schema)
    """Add a version to the schema, change the rule that new versions keep to, or both."""
    decoder = blocking(aio.Stream.decoder)
    """Return what decodes records, and encodes them."""

    @takes(WriterOptions)
    def writer(self, **options: Any) -> StreamWriter:
        """Become the writer: ``with stream.writer() as writer``; see the asyncio twin."""
        writer = self._run(lambda: self._aio.writer(**options))
        return StreamWriter(writer, WriterOptions.of(options))

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
    @described_as(aio.Stream.reader)
    def reader(self, start: Any = "earliest", **options: Any) -> Any:
        """Read: ``with stream.reader() as reader``; see the asyncio twin."""
        begin_at = unwrapped(start) if isinstance(start, Cursor) else start
        return _twin_of(self._run(lambda: self._aio.reader(begin_at, **options)))

    find = blocking(aio.Stream.find)
    """Return where the first record is, or will be, that is not before the given place."""
    get = blocking(aio.Stream.get)
    """Return one record."""
    first = blocking(aio.Stream.first)
    """Return the first record that is left; None if there is none."""
    last = blocking(aio.Stream.last)
    """Return the last record that readers can see; None if there is none."""
    count = blocking(aio.Stream.count)
    """Return how many records there are, by their sequence ids."""
    read_range = blocking(aio.Stream.read_range)
    """Return the records from one place up to another, or to the last that is there."""
    lag = blocking(aio.Stream.lag)
    """Return what lies between a position (for example a reader's) and the last record."""
    truncate = blocking(aio.Stream.truncate)
    """Cut off what lies before a record: readers get nothing of it any more."""
    snapshot = blocking(aio.Stream.snapshot)
    """Return what the stream holds now, for readers that share the work."""
    read_split = iterating(aio.Stream.read_split)
    """Yield the records of one split of a snapshot, in any process."""
    enforce_retention = blocking(aio.Stream.enforce_retention)
    """Let go of what the policy and the cursors do not keep, ledgers included."""
    cursor = blocking(aio.Stream.cursor, Cursor)
    """Return a durable named position, made if there is none."""

    cursors = blocking(aio.Stream.cursors, _cursors)
    """Return all cursors by name, DistributedLog's subscriptions included."""
    recover = blocking(aio.Stream.recover)
    """Fence a writer out, and complete the segment that it left, without writing anything."""
    readable_segments = blocking(aio.Stream.readable_segments)
    """Return the segments whose nodes can be read, to be shown."""
    segments = blocking(aio.Stream.segments)
    """Return all segments in order, truncated ones that are still there included."""
    watch_segments = iterating(aio.Stream.watch_segments)
    """Yield all segments, and again whenever one of them changes."""
