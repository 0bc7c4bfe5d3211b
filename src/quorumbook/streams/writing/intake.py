"""What enters a stream's writer: checked, numbered, counted, and gathered into runs.

Records that come one a call are gathered: a call puts its record into lists, and what has come
by the end of the loop's turn, or fills an entry, goes on as one append (``take``).  So a record
costs no object of its own but what its caller asks for: a future, or nothing but its sequence id.
Everything else, batches and records that fit into no entry among it, goes on by itself.

Nothing is sent here; ``pump`` does that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, Window
from quorumbook.errors import BackpressureError, LocalProtocolError
from quorumbook.streams.errors import SequenceConflictError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.records import (
    HEADER_SIZE_BYTES,
    MAX_PAYLOAD_SIZE_BYTES,
    MAX_USER_TXID,
)
from quorumbook.streams.metadata.policy import StreamPolicy, known
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.limits import Quota
from quorumbook.streams.writing.numbering import Numbering
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PendingAppend, row_size, single

#: What the head of an entry leaves to a run that is to fill it.
_HEAD_ROOM_BYTES = 128
#: A run of records for smaller entries has so many bytes all the same, and is cut up.
_RUN_BYTES = 64 * 1024 - _HEAD_ROOM_BYTES
#: Such a run takes no more than this part of the window: it is given back when all of it is safe.
_PART_OF_WINDOW = 8
#: More records than a run ever has.
_TXIDS_LEFT = 1 << 20
#: So many records join a run together.
_GATHERED_AT_ONCE = 1024
#: What a record's future may be: the loop thread settles it.
FutureLike: TypeAlias = "asyncio.Future[Any] | concurrent.futures.Future[Any]"


def _pass_on(future: FutureLike, outcome: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if outcome.cancelled():
        future.cancel()
    elif (error := outcome.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome.result())


class Intake:
    """The way into one writer; used on the event loop.

    ``payloads``, ``room_bytes``, ``max_records`` and ``first_sequence_id`` are of the run that is
    gathered now; ``StreamWriter.put`` has a record join it where ``put`` would do nothing else.
    """

    def __init__(
        self,
        context: StreamContext,
        options: WriterOptions,
        policy: StreamPolicy,
        state: PackState,
        *,
        numbering: Numbering | None,
        quota: Quota | None,
    ) -> None:
        self._context = context
        self._options = options
        self._policy = policy
        self._numbering = numbering
        self._quota = quota
        self._loop = asyncio.get_running_loop()
        self._max_record_bytes = known(policy.max_record_bytes)
        # What finds room in a run is small enough for the policy as well.
        entry_bytes = max(state.batch_bytes - _HEAD_ROOM_BYTES, 1)
        self._run_bytes = min(
            max(entry_bytes, _RUN_BYTES),
            min(self._max_record_bytes, MAX_PAYLOAD_SIZE_BYTES) + HEADER_SIZE_BYTES,
        )
        self._max_run_records = options.max_pending_records
        if entry_bytes < self._run_bytes:
            self._max_run_records = max(options.max_pending_records // _PART_OF_WINDOW, 1)
        self.state = state
        self.window = Window(options.max_pending_records, options.max_pending_bytes)
        #: Of the run; it takes so many records at most, and with their headers so many bytes more.
        self.payloads: list[bytes] = []
        self.room_bytes = 0
        self.max_records = 0
        self.first_sequence_id = 0
        #: As long as ``payloads``, or shorter where the last records have none.
        self._attributes: list[bytes] = []
        self._futures: list[FutureLike | None] = []
        self._first_number = -1

    # Appends that go on by themselves -------------------------------------------------------

    def first_new(self, number: int | None, count: int) -> tuple[int, int]:
        """Return the number of the first record, -1 without a producer, and how many are known."""
        if self._numbering is not None:
            self.take()
            return self._numbering.first_new(number, count)
        if number is not None:
            raise LocalProtocolError("producer_seq needs a writer with a producer")
        return -1, 0

    def is_known(self, number: int | None) -> bool:
        """Tell whether a number of the writer's producer was used before."""
        if number is None:
            return False
        if self._numbering is None:
            raise LocalProtocolError("producer_seq needs a writer with a producer")
        if self.payloads:
            return 0 <= number < self._first_number + len(self.payloads)
        return self._numbering.first_new(number, 1)[1] > 0

    def append(
        self, pending: PendingAppend, txids: Sequence[int] | None, expected_sequence: int | None
    ) -> None:
        """Take in what one call appends; see ``StreamWriter.append`` for what may be raised."""
        self.take()
        pending.check_size(self._max_record_bytes)
        actual = self.state.next_sequence_id
        if expected_sequence is not None and expected_sequence != actual:
            raise SequenceConflictError(
                f"the next record of stream {self._context.name} gets sequence id {actual}, not "
                f"{expected_sequence}",
                actual=actual,
            )
        self._check_room(pending.count, pending.size_bytes)
        self._enter(pending, txids)

    def _enter(self, pending: PendingAppend, txids: Sequence[int] | None) -> None:
        if txids is None and self._policy.txid == "timestamp":
            now_ms = self._context.store.env.clock.wall_ms()
            txids = (max(now_ms, self.state.last_txid),) * pending.count
        self.state.append(pending, txids)
        if self._quota is not None:
            self._quota.take(pending.size_bytes, pending.future)
        if self._numbering is not None:
            self._numbering.on_appended(pending.first_number, pending.number_count, pending.future)
        self.window.entries -= pending.count
        self.window.size_bytes -= pending.size_bytes + pending.count * ENTRY_OVERHEAD_BYTES

    def _check_room(self, count: int, size_bytes: int) -> None:
        try:
            self.window.check_room(count, size_bytes)
        except BackpressureError as error:
            raise BackpressureError(
                f"{self.window.used_entries} records are pending: no room for {count} more with "
                f"{size_bytes} bytes (max_pending_records is {self._options.max_pending_records}, "
                f"max_pending_bytes {self._options.max_pending_bytes})"
            ) from error
        if self._quota is not None:
            self._quota.check(size_bytes)

    # Records that are gathered --------------------------------------------------------------

    @property
    def gathered(self) -> int:
        """How many records were gathered, and are not on their way yet."""
        return len(self.payloads)

    def put(
        self,
        payload: bytes,
        attributes: Attributes | None,
        number: int | None,
        future: FutureLike | None,
    ) -> int:
        """Take one record in; return the sequence id with which all of it is stored.

        Args:
            payload: The record.
            attributes: What it carries.
            number: Its producer's, not one that was used; None: the next one.
            future: What is told where it is; None: nobody asks.
        """
        carried = b"" if attributes is None else attributes.encode()
        size = len(payload) + row_size(carried)
        need = size + HEADER_SIZE_BYTES
        if need > self._run_bytes or self.state.last_txid > MAX_USER_TXID - _TXIDS_LEFT:
            first, _ = self.first_new(number, 1)
            told = self._loop.create_future()
            if future is not None:
                told.add_done_callback(partial(_pass_on, future))
            self.append(single(payload, told, number=first, attributes=attributes), None, None)
            return self.state.next_sequence_id - 1
        is_next = number is None or number == self._first_number + len(self.payloads)
        before = len(self.payloads)
        if need > self.room_bytes or before >= self.max_records or not is_next:
            self._begin(size, number)
            before = 0
        self.room_bytes -= need
        self.payloads.append(payload)
        if carried:
            self._attributes += [b""] * (before - len(self._attributes))
            self._attributes.append(carried)
        if future is not None:
            self._futures += [None] * (before - len(self._futures))
            self._futures.append(future)
        return self.first_sequence_id + before

    def join(self, payload: bytes, future: FutureLike) -> bool:
        """Have a record with a future join the run if all in it have one; False: it does not."""
        room_bytes = self.room_bytes - len(payload) - HEADER_SIZE_BYTES
        before = len(self.payloads)
        if room_bytes < 0 or before >= self.max_records or len(self._futures) != before:
            return False
        self.room_bytes = room_bytes
        self.payloads.append(payload)
        self._futures.append(future)
        return True

    def gather(self, payloads: Sequence[bytes], start: int) -> int:
        """Take in what finds room in the run of now, from one on; return how many did."""
        most = self.max_records - len(self.payloads)
        if most <= 0 or start >= len(payloads):
            return 0
        # As many as fit if all are of one size, as they mostly are.
        guess = self.room_bytes // (len(payloads[start]) + HEADER_SIZE_BYTES)
        found = payloads[start : start + min(most, guess, _GATHERED_AT_ONCE)]
        ends = list(accumulate(map(len, found), initial=0))
        if ends[-1] + len(found) * HEADER_SIZE_BYTES > self.room_bytes:
            sizes = range(len(ends))
            fitting = bisect_right(
                sizes, self.room_bytes, key=lambda n: ends[n] + n * HEADER_SIZE_BYTES
            )
            found = found[: fitting - 1]
        need = ends[len(found)] + len(found) * HEADER_SIZE_BYTES
        self.room_bytes -= need
        self.payloads += found
        return len(found)

    def _begin(self, size_bytes: int, number: int | None) -> None:
        """Begin a run that has room for a record of a size."""
        self.take()
        first_number, _ = self.first_new(number, 1)
        self._check_room(1, size_bytes)
        # Half of the window's bytes for payloads, the other for what records count beside.
        half = self.window.size_bytes // 2
        room_bytes = min(self._run_bytes, half)
        if self._quota is not None:
            room_bytes = min(room_bytes, self._quota.room_bytes)
        records = min(self.window.entries, half // ENTRY_OVERHEAD_BYTES, self._max_run_records)
        self.max_records = max(records, 1)
        # The first one fits in any case: there is room for it, or the window is empty.
        self.room_bytes = max(room_bytes, size_bytes + HEADER_SIZE_BYTES)
        self.first_sequence_id = self.state.next_sequence_id
        self._first_number = first_number

    def take(self) -> None:
        """Have what was gathered go on as one append."""
        self.room_bytes = 0
        payloads = self.payloads
        if not payloads:
            return
        attributes, futures = self._attributes, self._futures
        self.payloads, self._attributes, self._futures = [], [], []
        if attributes:
            attributes += [b""] * (len(payloads) - len(attributes))
        pending = PendingAppend(
            payloads, self._loop.create_future(), first_number=self._first_number,
            attributes=attributes or None, futures=futures,
        )  # fmt: skip
        self._enter(pending, None)
