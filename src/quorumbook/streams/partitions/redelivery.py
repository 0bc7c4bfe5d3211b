"""Records that a group's member refused: handed out again when due, or given up.

``acks`` keeps them, with the cursor; here is what a member does about those of one partition.  A
delivery counts when its record was refused.  What was in hand when a member died is handed out
again as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from quorumbook.env import Complaint, logger
from quorumbook.errors import QuorumbookError
from quorumbook.streams.cursors.acks import Refused
from quorumbook.streams.cursors.cursor import Cursor, ack_gone
from quorumbook.streams.cursors.lag import first_record
from quorumbook.streams.errors import CursorConflictError, PositionTruncatedError
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.seek import find_sequence_id
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.redelivery")
#: The wall clock may be set; a look now and then costs nothing.
_LOOK_S = 5.0
_RETRY_S = 1.0
#: Members of a group take turns at writing dead letters.
_LOCK_WAIT_S = 60.0


class DeadLetters:
    """Where a group's records go that were refused too often."""

    def __init__(self, group: str, max_deliveries: int, stream: Stream | None) -> None:
        """Take after how many deliveries (0: never), and where to; None: nowhere."""
        self.max_deliveries = max_deliveries
        self._group = group
        self._stream = stream
        self._turn = asyncio.Lock()

    async def append(self, source: str, records: Sequence[Record], safe: set[int]) -> None:
        """Store records with what they were; raises as ``Stream.writer`` and ``append``.

        Args:
            source: The stream they are of.
            records: Which.
            safe: Sequence ids of those that are stored already; the others join them.
        """
        for record in records:
            _log.warning(
                "group %s gives record %s of stream %s up: refused %d times",
                self._group, record.position, source, self.max_deliveries,
            )  # fmt: skip
        if self._stream is None:
            return
        async with self._turn, self._stream.writer(wait_for_lock_s=_LOCK_WAIT_S) as writer:
            for record in records:
                if record.sequence_id in safe:
                    continue
                origin = {
                    "dead-letter-group": self._group.encode(),
                    "dead-letter-stream": source.encode(),
                    "dead-letter-position": str(record.position).encode(),
                    "dead-letter-sequence-id": str(record.sequence_id).encode(),
                    "dead-letter-deliveries": str(self.max_deliveries).encode(),
                }
                await writer.append(
                    record.payload,
                    key=record.key,
                    headers={**record.headers, **origin},
                    event_time_ms=record.event_time_ms,
                )
                safe.add(record.sequence_id)


class Redeliveries:
    """The refused records of one partition, in the hands of the member that has it."""

    def __init__(self, context: StreamContext, cursor: Cursor, letters: DeadLetters) -> None:
        """Take the partition and the group's cursor in it."""
        self._context = context
        self._cursor = cursor
        self._letters = letters
        #: Handed out again and not answered yet, by sequence id.
        self._out: set[int] = set()
        #: Dead letters of records that the cursor may not know to be done yet, by sequence id.
        self._safe: set[int] = set()
        self._news = asyncio.Event()

    def delivery_count(self, sequence_id: int) -> int:
        """Return which delivery of a record this is, if it is in hand; 1 is the first."""
        refused = self._refusal(sequence_id)
        return 1 if refused is None else refused.deliveries + 1

    async def refuse(self, records: Sequence[Record], delay_s: float) -> None:
        """Have records handed out again, or give them up; raises as ``Cursor.refuse``."""
        # Those that wait already were not handed out since.
        due = [
            each
            for each in records
            if self._refusal(each.sequence_id) is None or each.sequence_id in self._out
        ]
        limit = self._letters.max_deliveries
        given_up = [each for each in due if 0 < limit <= self.delivery_count(each.sequence_id)]
        again = [each for each in due if each not in given_up]
        if given_up:
            await self._letters.append(self._context.name, given_up, self._safe)
            await self._cursor.ack(*given_up)
            self._safe.difference_update(each.sequence_id for each in given_up)
        if again:
            await self._cursor.refuse(*again, delay_s=delay_s)
        self._out.difference_update(each.sequence_id for each in due)
        self._news.set()

    async def read_batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield refused records, one at a time, when they are due."""
        complaint = Complaint(_log)
        clock = self._context.store.env.clock
        while True:
            self._news.clear()
            following = self._following()
            wait_s = None
            if following is not None:
                now_ms = clock.wall_ms()
                wait_s = min((following.due_ms - now_ms) / 1000, _LOOK_S)
            if following is None or (wait_s is not None and wait_s > 0):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                continue
            try:
                found = await self._read(following)
            except CursorConflictError:
                return  # the partition is another member's
            except QuorumbookError as error:
                if not error.retriable:
                    raise
                complaint.say(f"{self._cursor!r}: {error}; trying again", clock.now_ns())
                await asyncio.sleep(_RETRY_S)
                continue
            if found is not None:
                self._out.add(following.sequence_id)
                yield found

    async def _read(self, refused: Refused) -> RecordBatch | None:
        """Return a record; None if it is gone, which counts as done."""
        sequence_id, position, *_ = refused
        at = position
        while True:
            found = await first_record(self._context, at)
            # A position alone may be another record's by now.
            if found is not None and found.first_sequence_id == sequence_id:
                return found.part(0, 1)
            before = at
            try:
                at = await find_sequence_id(self._context, sequence_id)
            except PositionTruncatedError:
                break
            # Merging may have moved it since it was read, once more even.
            if at == before:
                break
        _log.warning(
            "record %s of stream %s is gone: not handed out again", position, self._context.name
        )
        await ack_gone(self._cursor, sequence_id, sequence_id, position.next)
        return None

    def _refusal(self, sequence_id: int) -> Refused | None:
        acks = self._cursor.acks
        return None if acks is None else acks.refusal(sequence_id)

    def _following(self) -> Refused | None:
        """Return what is handed out again next."""
        acks = self._cursor.acks
        return min(
            (each for each in (acks.refused if acks else ()) if each.sequence_id not in self._out),
            key=lambda each: each.due_ms,
            default=None,
        )
