"""Applies every record of a stream once, in order: what is there, and then what comes.

``TableView`` and ``StateMachine`` are built on it.  Two may read at the same time, one up to what
is visible now and one for ever; whichever is first applies a record, and positions tell the other
that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import LedgerClosedError, QuorumbookError
from quorumbook.streams.errors import (
    ApplyError,
    PositionTruncatedError,
    StreamError,
    StreamSealedError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record
from quorumbook.streams.stream import Stream

_log = logger("streams.following")
_RETRY_S = 1.0


class Follower:
    """Applies a stream's records; one error of ``apply``, or of the stream, ends it."""

    def __init__(
        self,
        stream: Stream,
        apply: Callable[[Record], object],
        *,
        on_truncated: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare; ``catch_up`` and ``start`` read.

        Args:
            stream: What to read, from its beginning unless ``go_on_from`` is called.
            apply: Called once for each record.
            on_truncated: Called when records that are due are gone; calls ``go_on_from``, or
                raises.
        """
        self._stream = stream
        self._apply = apply
        self._on_truncated = on_truncated
        #: Behind the last record that was applied; None before the first.
        self.next: Position | None = None
        #: The sequence id that is due there; None: it is not known.
        self.next_sequence_id: int | None = None
        #: Why nothing is applied any more.
        self.error: QuorumbookError | None = None
        #: That, or that the stream has an end, and it was reached.
        self._end: QuorumbookError | None = None
        #: Called when nothing more comes, for either reason.
        self.on_end: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()
        self._waiting: list[tuple[Position, asyncio.Future[None]]] = []

    def go_on_from(self, position: Position | None, sequence_id: int) -> None:
        """Apply next what is at a position, which has this sequence id; None: at the beginning."""
        self.next = position
        self.next_sequence_id = sequence_id

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes: ``error`` says why, or the stream was sealed."""
        return self._end is not None

    async def catch_up(self) -> int | None:
        """Apply everything that readers can see now.

        Returns:
            The sequence id that comes next; None if it is not known.
        """
        self.check()
        return await self._read(tail=False)

    def start(self) -> None:
        """Go on applying what comes."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def pause(self) -> None:
        """Apply nothing of one's own accord until ``start``."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait([task])

    async def close(self) -> None:
        """Apply nothing any more."""
        await self.pause()
        if self.error is None:
            self.fail(LedgerClosedError(f"stream {self._stream.name} is not followed any more"))

    def apply(self, record: Record) -> None:
        """Apply a record, unless that was done."""
        if self.next is not None and record.position < self.next:
            return
        self.check()
        try:
            self._apply(record)
        except QuorumbookError as error:
            self.fail(error)
            raise
        except Exception as error:
            failed = ApplyError(
                f"record {record.position} of stream {self._stream.name} could not be applied: "
                f"{error!r}"
            )
            failed.__cause__ = error
            self.fail(failed)
            raise failed from error
        self.next = record.position.next
        self.next_sequence_id = record.sequence_id + 1 if record.sequence_id >= 0 else None
        if self._waiting:
            self._wake()

    async def wait_for(self, position: Position) -> None:
        """Wait until the record at a position was applied; raises as ``check``."""
        if self.next is None or self.next <= position:
            if self._end is not None:
                raise copy_error(self._end)
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((position, reached))
            await reached

    def check(self) -> None:
        """Raise why nothing is applied any more, if that is so."""
        if self.error is not None:
            raise copy_error(self.error)

    def fail(self, error: QuorumbookError) -> None:
        """Apply nothing any more, and tell whoever waits why."""
        self.error = error
        self._tell(error)

    # Inside --------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._read(tail=True)
            except QuorumbookError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                _log.warning("stream %s is read again: %s", self._stream.name, error)
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                # Whoever waits must not wait for ever, whatever it is.
                failed = StreamError(f"stream {self._stream.name} cannot be followed: {error!r}")
                failed.__cause__ = error
                self.fail(failed)
                return
            else:
                # What was applied stays good; only who waits for more waits for nothing.
                sealed = f"stream {self._stream.name} is sealed: nothing more comes"
                self._tell(StreamSealedError(sealed))
                return

    async def _read(self, *, tail: bool) -> int | None:
        while True:
            start = self.next
            try:
                async with self._stream.reader(
                    start or "earliest", tail=tail, next_sequence_id=self.next_sequence_id
                ) as reader:
                    async for record in reader:
                        self.apply(record)
                    return reader.next_sequence_id
            except PositionTruncatedError:
                if self._on_truncated is None:
                    raise
                async with self._reloading:
                    if self.next == start:
                        await self._on_truncated()

    def _tell(self, error: QuorumbookError) -> None:
        """Have whoever waits, and whoever will, wait no more."""
        self._end = error
        waiting, self._waiting = self._waiting, []
        for _, reached in waiting:
            if not reached.done():
                reached.set_exception(copy_error(error))
        if self.on_end is not None:
            self.on_end()

    def _wake(self) -> None:
        assert self.next is not None
        left = []
        for position, reached in self._waiting:
            if reached.done():
                continue
            if position < self.next:
                reached.set_result(None)
            else:
                left.append((position, reached))
        self._waiting = left
