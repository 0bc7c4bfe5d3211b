"""Long polls: reads that wait until a ledger's last add confirmed passes what the reader knows.

A poll ends when the last add confirmed is above ``previous_lac``, when the ledger is fenced or
deleted, or when its time is over.  A poll that arrives on a fenced ledger waits all the same: the
recovery's adds still raise the last add confirmed (S39).  With "piggyback" the answer brings the
next entry along if this bookie has it; without, a normal read follows.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.reads import ReadRequests
from quorumbook.env import patience
from quorumbook.ids import INVALID_ENTRY_ID, LedgerId
from quorumbook.protocol import answers
from quorumbook.protocol.requests import Read
from quorumbook.protocol.status import Status
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.store import LedgerStorage


class _Poll:
    """One reader who waits."""

    __slots__ = ("_cancel_watch", "_polls", "_timer", "arrived_ns", "connection", "request")

    def __init__(
        self,
        polls: LongPolls,
        connection: BookieConnection,
        request: Read,
        *,
        arrived_ns: int,
        handle: LedgerHandle,
        timeout_s: float,
    ) -> None:
        assert request.previous_lac is not None
        self._polls = polls
        self.connection = connection
        self.request = request
        self.arrived_ns = arrived_ns
        self._cancel_watch: Callable[[], None] = handle.watch_lac(
            request.previous_lac, lambda: polls.end(self, woken=True)
        )
        self._timer = patience.Timer(timeout_s, lambda: polls.end(self, woken=False))

    def cancel(self) -> None:
        """Forget it without an answer."""
        self._cancel_watch()
        self._timer.cancel()
        self._polls.removed(self)


class LongPolls:
    """All readers who wait, by ledger."""

    def __init__(
        self,
        options: BookieOptions,
        storage: LedgerStorage,
        metrics: BookieMetrics,
        reads: ReadRequests,
    ) -> None:
        self._options = options
        self._storage = storage
        self._metrics = metrics
        self._reads = reads
        self._waiting: dict[LedgerId, dict[_Poll, None]] = {}

    def start(self, connection: BookieConnection, request: Read, now_ns: int) -> None:
        """Wait, or answer at once what needs no waiting."""
        handle = self._storage.handle(request.ledger_id)
        refusal = self._refusal(connection, request, handle)
        if refusal is not None or handle is None:
            connection.answer(answers.read_answer(request, refusal or Status.NO_LEDGER))
            return
        previous_lac = request.previous_lac
        assert previous_lac is not None
        timeout_ms = request.timeout_ms or 0
        if timeout_ms <= 0 or handle.last_add_confirmed > previous_lac:
            self._finish(connection, request, now_ns, woken=False)
            return
        timeout_s = min(timeout_ms / 1000, self._options.max_long_poll_timeout_s)
        poll = _Poll(
            self, connection, request, arrived_ns=now_ns, handle=handle, timeout_s=timeout_s
        )
        connection.long_polls[poll] = None
        self._waiting.setdefault(request.ledger_id, {})[poll] = None
        self._metrics.long_polls_waiting += 1

    def fenced(self, ledger_id: LedgerId) -> None:
        """A ledger is fenced: whoever waited for its writer waits no longer."""
        for poll in list(self._waiting.get(ledger_id, ())):
            self.end(poll, woken=False)

    def end(self, poll: _Poll, *, woken: bool) -> None:
        """End a poll with an answer."""
        poll.cancel()
        if poll.connection.is_open:
            self._finish(poll.connection, poll.request, poll.arrived_ns, woken=woken)

    def removed(self, poll: _Poll) -> None:
        """A poll is over."""
        poll.connection.long_polls.pop(poll, None)
        polls = self._waiting.get(poll.request.ledger_id)
        if polls is not None and poll in polls:
            del polls[poll]
            self._metrics.long_polls_waiting -= 1
            if not polls:
                del self._waiting[poll.request.ledger_id]

    def _refusal(
        self, connection: BookieConnection, request: Read, handle: LedgerHandle | None
    ) -> Status | None:
        if request.is_piggyback and request.entry_id != INVALID_ENTRY_ID:
            return Status.BAD_REQUEST
        if handle is None:
            return Status.NO_LEDGER
        if handle.is_in_limbo:
            # What it knows of the last add confirmed may be less than it once knew.
            return Status.UNKNOWN_LEDGER_STATE
        if (
            len(connection.long_polls) >= self._options.max_connection_long_polls
            or self._metrics.long_polls_waiting >= self._options.max_long_polls
        ):
            self._metrics.reads_rejected += 1
            return Status.TOO_MANY_REQUESTS
        return None

    def _finish(
        self, connection: BookieConnection, request: Read, arrived_ns: int, *, woken: bool
    ) -> None:
        reads = self._reads
        if not request.is_piggyback:
            reads.enqueue(connection, (request, arrived_ns, None, False))
            reads.pump(connection)
            return
        handle = self._storage.handle(request.ledger_id)
        if handle is None or handle.is_deleted:
            connection.answer(answers.read_answer(request, Status.NO_LEDGER))
            return
        max_lac = handle.last_add_confirmed
        assert request.previous_lac is not None
        if max_lac > request.previous_lac:
            reads.enqueue(connection, (request, arrived_ns, woken, False))
            reads.pump(connection)
            return
        connection.answer(answers.read_answer(request, Status.OK, None, max_lac, INVALID_ENTRY_ID))
