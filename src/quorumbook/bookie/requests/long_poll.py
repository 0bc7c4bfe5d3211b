"""Long polls: reads that wait until a ledger's last add confirmed passes what the reader knows.

A poll ends when the last add confirmed is above ``previous_lac``, when the ledger is fenced or
deleted, or when its time is over.  A poll that arrives on a fenced ledger waits all the same: the
recovery's adds still raise the last add confirmed (S39).  With "piggyback" the answer brings the
next entry along if this bookie has it; without, a normal read follows.

One client may have very many polls, so nothing is done for all of them at once: those that end
together, by a fence, by their time or with their connection, do so in one turn of the loop after
the other, and one timer serves them all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import ceil

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.requests.reads import ReadRequests
from quorumbook.env import Env, logger, patience
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol import answers
from quorumbook.protocol.requests import Read
from quorumbook.protocol.status import Status
from quorumbook.storage.states.groups import OrderedGroups
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.store import LedgerStorage

_log = logger("bookie.polls")
#: Polls that end in one turn of the loop.
_POLLS_A_TURN = 200
#: A loop's clock and its timers may differ by as much.
_CLOCK_STEP_S = 0.001
#: Polls end at multiples of this, so that many end together.
_STEP_S = 0.01


class _Poll:
    """One reader who waits; one object, as there may be very many."""

    __slots__ = ("_handle", "_on_news", "arrived_ns", "connection", "due", "is_over", "request")

    def __init__(
        self,
        connection: BookieConnection,
        request: Read,
        arrived_ns: int,
        handle: LedgerHandle,
        due: float,
        on_news: Callable[[_Poll], None],
    ) -> None:
        self.connection = connection
        self.request = request
        self.arrived_ns = arrived_ns
        self.is_over = False
        self._handle = handle
        self._on_news = on_news
        #: By the loop's clock, when its time is over.
        self.due = due
        handle.watch_lac(self._previous_lac, self)

    def __call__(self) -> None:
        """There is what it waits for."""
        self._on_news(self)

    def end(self) -> None:
        """Wait no longer."""
        self.is_over = True
        self._handle.unwatch_lac(self._previous_lac, self)

    @property
    def _previous_lac(self) -> EntryId:
        previous_lac = self.request.previous_lac
        assert previous_lac is not None
        return previous_lac


class LongPolls:
    """All readers who wait, by ledger."""

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        storage: LedgerStorage,
        metrics: BookieMetrics,
        reads: ReadRequests,
    ) -> None:
        self._clock = env.clock
        self._options = options
        self._storage = storage
        self._metrics = metrics
        self._reads = reads
        self._waiting: dict[LedgerId, dict[_Poll, None]] = {}
        #: By when their time is over, those who wait.
        self._times: OrderedGroups[float, _Poll] = OrderedGroups()
        self._timer: patience.Timer | None = None
        #: Polls that end soon, of each event that ends some.
        self._ending: deque[Iterator[_Poll]] = deque()
        #: One object for all of them.
        self._on_news = partial(self._end, woken=True)

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
        limit_s = min(timeout_ms / 1000, self._options.max_long_poll_timeout_s)
        due = ceil((asyncio.get_running_loop().time() + limit_s) / _STEP_S) * _STEP_S
        poll = _Poll(connection, request, now_ns, handle, due, self._on_news)
        connection.long_polls[poll] = None
        self._waiting.setdefault(request.ledger_id, {})[poll] = None
        self._metrics.long_polls_waiting += 1
        before = self._times.lowest
        self._times.add(due, poll)
        if before is None or due < before:
            self._wait_for_the_next()

    def fenced(self, ledger_id: LedgerId) -> None:
        """A ledger is fenced: whoever waited for its writer waits no longer."""
        self._end_soon(list(self._waiting.get(ledger_id, ())))

    def forget(self, connection: BookieConnection) -> None:
        """A connection is gone: its polls end without an answer."""
        self._end_soon([poll for poll in connection.long_polls if isinstance(poll, _Poll)])

    def _wait_for_the_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._times.lowest
        if due is not None:
            delay_s = due - asyncio.get_running_loop().time()
            self._timer = patience.Timer(delay_s, self._time_is_over)

    def _time_is_over(self) -> None:
        now = asyncio.get_running_loop().time()
        over: list[_Poll] = []
        while (due := self._times.lowest) is not None and due <= now + _CLOCK_STEP_S:
            over += self._times.take()
        self._wait_for_the_next()
        self._end_soon(over)

    def _end_soon(self, polls: list[_Poll]) -> None:
        if polls:
            self._ending.append(iter(polls))
            if len(self._ending) == 1:
                self._end_some()

    def _end_some(self) -> None:
        some = list(islice(self._ending[0], _POLLS_A_TURN))
        if len(some) < _POLLS_A_TURN:
            self._ending.popleft()
        if self._ending:
            asyncio.get_running_loop().call_soon(self._end_some)
        for poll in some:
            try:
                self._end(poll, woken=False)
            except Exception:
                _log.exception("a long poll of %s could not be ended", poll.connection.peer)

    def _end(self, poll: _Poll, *, woken: bool) -> None:
        """End a poll, with an answer if there is somebody to take it."""
        if poll.is_over:
            return
        poll.end()
        connection, ledger_id = poll.connection, poll.request.ledger_id
        del connection.long_polls[poll]
        polls = self._waiting[ledger_id]
        del polls[poll]
        if not polls:
            del self._waiting[ledger_id]
        self._metrics.long_polls_waiting -= 1
        self._times.remove(poll.due, poll)
        if connection.is_open:
            self._finish(connection, poll.request, poll.arrived_ns, woken=woken)

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
            # The wait was the client's wish: it is none of the read's time.
            reads.enqueue(connection, (request, self._clock.now_ns(), None, False))
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
