"""A stream's segments as the metadata store has them: reading their list and their nodes.

There may be many thousands: whoever looks for one reads few of their nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import MetadataUnavailableError, NoSuchNodeError
from quorumbook.metadata.store import MetadataStore, Revision, Watch
from quorumbook.streams.errors import (
    CorruptRecordsError,
    StreamError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.names import (
    StreamPaths,
    is_segment_name,
    names_for_writer,
    segment_number,
)
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.segments import check_no_gap, ordered

#: How many segments' nodes are read at a time.
#: A list that changes under a reader is read again; nobody is that unlucky so often.
LIST_ATTEMPTS = 32


class SegmentNodes:
    """The nodes of one stream's segments, to be read."""

    def __init__(self, store: MetadataStore, paths: StreamPaths) -> None:
        self.store = store
        self.paths = paths

    def not_found(self) -> StreamNotFoundError:
        """Return the error that says that there is no such stream."""
        return StreamNotFoundError(
            f"there is no stream {self.paths.name} in the namespace {self.paths.namespace}; "
            "`quorumbook stream ls` lists the streams, `quorumbook stream create` makes one"
        )

    async def segments(
        self,
        *,
        first: int = 0,
        limit: int | None = None,
        watch: Watch | None = None,
        for_writer: bool = False,
        allows_gap: bool = False,
    ) -> list[SegmentMetadata]:
        """Return the segments in order.

        Args:
            first: Leave out those of lower numbers; one more is kept if it is needed to derive
                sequence ids.
            limit: Read no more numbers from ``first`` on.
            watch: Runs when the list changes, truncation included.
            for_writer: Only those that a writer has to know.
            allows_gap: Whether a number may be missing.

        Raises:
            StreamNotFoundError: there is no such stream.
            DataLossError: a number is missing.
        """
        found, _ = await self.listed(
            first=first, limit=limit, watch=watch, for_writer=for_writer, allows_gap=allows_gap
        )
        return found

    async def listed(
        self,
        *,
        first: int = 0,
        limit: int | None = None,
        watch: Watch | None = None,
        for_writer: bool = False,
        allows_gap: bool = False,
    ) -> tuple[list[SegmentMetadata], int]:
        """Return what ``segments`` does, and how many segments there are altogether."""
        for attempt in range(LIST_ATTEMPTS):
            names = await self.names(watch)
            count = len(names)
            if for_writer:
                names = names_for_writer(names)
            numbers = {name: segment_number(name) for name in names}
            below = max((n for n in numbers.values() if n is not None and n < first), default=first)
            last = sorted({n for n in numbers.values() if n is not None and n >= first})[:limit][
                -1:
            ]
            top = last[0] if last else first
            names = [name for name, n in numbers.items() if n is None or below <= n <= top]
            found = await self._read_all(names)
            complete = None not in found
            segments = ordered(segment for segment in found if segment is not None)
            numbers_found = {segment.number for segment in segments}
            if complete and len(numbers_found) == len(segments):
                with_gap = [s for s in segments if s.number >= below]
                if _has_no_gap(with_gap):
                    return segments, count
                if attempt >= LIST_ATTEMPTS // 2:
                    if not allows_gap:
                        check_no_gap(with_gap)
                    return segments, count
            # Somebody rolled, truncated or deleted between the list and the nodes.
            if watch is not None:
                self.store.unwatch(watch)
        raise self._changes_too_fast()

    async def names(self, watch: Watch | None = None) -> list[str]:
        """Return the names of the segments' nodes.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        try:
            names = await self.store.children(self.paths.segments, watch)
        except NoSuchNodeError as error:
            raise self.not_found() from error
        return [name for name in names if is_segment_name(name)]

    async def readable(self, on_damaged: Callable[[StreamError], None]) -> list[SegmentMetadata]:
        """Return the segments whose nodes can be read, for those who show them.

        Nobody reads records by this list: what is not in it would be skipped.

        Args:
            on_damaged: Told of each of the others, by an error that names its node.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        names = await self.names()

        async def read(name: str) -> SegmentMetadata | None:
            try:
                return await self._read_segment(name)
            except (CorruptRecordsError, UnsupportedFormatError) as error:
                on_damaged(error)
                return None

        found = await gather_bounded(read, sorted(names))
        return ordered(segment for segment in found if segment is not None)

    async def first_number(self, is_before: Callable[[SegmentMetadata], bool]) -> int:
        """Return the number of the first segment that is not before what is looked for.

        The segments must be in the order of what is looked for: few of their nodes are read.

        Returns:
            The number behind the last one if all are before it.
        """
        for _ in range(LIST_ATTEMPTS):
            names = await self.names()
            # One in progress comes before a completed one of the same number, and is kept.
            by_number = {segment_number(name): name for name in sorted(names, reverse=True)}
            if None in by_number:
                return 0  # old writers left the number out: all have to be looked at
            numbers = sorted(number for number in by_number if number is not None)
            low, high = 0, len(numbers)
            while low < high:
                middle = (low + high) // 2
                found = await self._read_segment(by_number[numbers[middle]])
                if found is None:
                    break  # it changed since it was listed
                low, high = (middle + 1, high) if is_before(found) else (low, middle)
            else:
                return [*numbers, numbers[-1] + 1 if numbers else 0][low]
        raise self._changes_too_fast()

    def _changes_too_fast(self) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"the segments of stream {self.paths.name} change faster than they can be read"
        )

    async def segment_count(self) -> int:
        """Return how many segments there are, truncated ones that are not deleted yet included."""
        return len(await self.names())

    async def segment(
        self, number: int, *, is_in_progress: bool, watch: Watch | None = None
    ) -> tuple[SegmentMetadata, Revision] | None:
        """Return one segment and its node's revision; None if there is none."""
        path = self.paths.segment(number, is_in_progress=is_in_progress)
        try:
            node = await self.store.get(path, watch)
        except NoSuchNodeError:
            return None
        return decoded_segment(node.data, path), node.revision

    async def _read_all(self, names: Sequence[str]) -> list[SegmentMetadata | None]:
        return await gather_bounded(self._read_segment, names)

    async def _read_segment(self, name: str) -> SegmentMetadata | None:
        path = f"{self.paths.segments}/{name}"
        try:
            node = await self.store.get(path)
        except NoSuchNodeError:
            return None
        return decoded_segment(node.data, path)


def _has_no_gap(segments: Sequence[SegmentMetadata]) -> bool:
    return all(b.number <= a.number + 1 for a, b in itertools.pairwise(segments))


def decoded_segment(data: bytes, path: str) -> SegmentMetadata:
    """Read the data of a segment's node."""
    try:
        return SegmentMetadata.decode(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise CorruptRecordsError(f"metadata node {path} is not segment metadata") from error
    except (CorruptRecordsError, UnsupportedFormatError) as error:
        raise type(error)(f"metadata node {path}: {error}") from error
