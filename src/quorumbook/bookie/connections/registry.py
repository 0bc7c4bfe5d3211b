"""All connections of a bookie: who has a place, what they share, and who is given up.

A connection itself is ``connection.py``'s; how many there may be is ``limits.py``'s.
"""

from __future__ import annotations

import asyncio
from collections import deque

from quorumbook.bookie.connections.add_budget import AddBudget
from quorumbook.bookie.connections.admission import Admission
from quorumbook.bookie.connections.answer_budget import AnswerBudget
from quorumbook.bookie.connections.connection import (
    FRAME,
    STOPPING,
    BookieConnection,
)
from quorumbook.bookie.connections.frame_budget import FrameBudget, to_give_up
from quorumbook.bookie.connections.home import RequestHandler
from quorumbook.bookie.connections.limits import Places, limits_within
from quorumbook.bookie.connections.loop_turns import Departures, Outbox, TurnQueue
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.env import Env, Recurrence, logger, patience

_log = logger("bookie.connection")
_CHECKED_IN_A_TURN = 500
#: Where begun frames are too many, such a part of their limit is made room.
_PARTIAL_ROOM_SHARE = 64


class Refusals:
    """Says that connections find no place, without a line for each of them."""

    def __init__(self) -> None:
        self._recurrence = Recurrence()

    def note(self, peer: str, places: Places[BookieConnection], now_ns: int) -> None:
        """Count one more."""
        unsaid = self._recurrence.due(now_ns)
        if unsaid:
            _log.warning(
                "%d connections refused or cut, the last of %s: there are %d (%d of them have "
                "asked nothing yet), and at most %d (%d), %d of one address, may be there",
                unsaid, peer, len(places), places.unproven_count,
                places.limits.in_all, places.limits.unproven, places.limits.by_address,
            )  # fmt: skip


class Connections:
    """All connections of a bookie, their common budget and their housekeeping."""

    def __init__(
        self,
        env: Env,
        options: BookieOptions,
        metrics: BookieMetrics,
        handler: RequestHandler[BookieConnection],
        admission: Admission,
        outbox: Outbox,
    ) -> None:
        self.env = env
        self.admission = admission
        self.options = options
        self.metrics = metrics
        self.handler = handler
        self.frames: FrameBudget[BookieConnection] = FrameBudget(options.max_add_bytes)
        self.outbox = outbox
        self.turn = outbox.turn
        self.departures = Departures()
        self.adds = AddBudget(
            options.max_connection_add_bytes,
            options.max_add_bytes,
            # A group.  With another one a small add would wait half as long again, for a
            # twentieth more of throughput.
            options.storage.journal_group_size_bytes * len(options.journal_directories),
        )
        self.behind = TurnQueue(
            self.turn, self._admits_heavy,
            on_busy=lambda is_busy: env.threads.loop_is_busy(is_busy=is_busy),
        )  # fmt: skip
        self.answer_budget: AnswerBudget[BookieConnection] = AnswerBudget(
            env.clock, self.turn, options.max_answer_bytes, handler.resume
        )
        #: Bytes of all frames that are not complete yet, and whose these are.
        self.partial_bytes = 0
        self._begun: dict[BookieConnection, None] = {}
        self.is_serving = False
        #: In the order of their coming.
        self._open: dict[BookieConnection, None] = {}
        #: Who has a place here.
        self.places: Places[BookieConnection] = Places(
            limits_within(
                env.descriptor_limit(),
                options.max_connections,
                options.max_connections_by_address,
                options.max_unproven_connections,
            )
        )
        self._refusals = Refusals()
        self._timer: patience.Timer | None = None
        self._all_closed: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def factory(self) -> BookieConnection:
        """Make the protocol of a new connection."""
        return BookieConnection(self)

    def opened(self, connection: BookieConnection, place: str) -> bool:
        """Take a new connection in; False turns it away."""
        if not self.is_serving:
            return False
        goes = self.places.take(connection, place)
        if goes is not None:
            self.metrics.connections_refused += 1
            self._refusals.note(goes.peer, self.places, self.env.clock.now_ns())
        if goes is connection:
            return False
        if goes is not None:
            goes.drop()
        self._open[connection] = None
        self.metrics.connections = len(self._open)
        self.metrics.connections_total += 1
        if self._timer is None:
            self._tick()
        return True

    def _admits_heavy(self) -> bool:
        return not self.adds.is_busy and self.handler.has_much_room(self.behind.wake)

    def let_frames_in(self) -> None:
        """Go on reading large frames for which there is room now."""
        if self.frames.is_wanted:
            for connection in self.frames.let_in(self.adds.used_bytes):
                connection.resume(FRAME)

    def lost(self, connection: BookieConnection) -> None:
        """A connection is gone."""
        self._open.pop(connection, None)
        self.places.leave(connection)
        self.metrics.connections = len(self._open)
        if not self._open and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def stop_reading(self) -> None:
        """Take no further requests; answers still go out."""
        for connection in list(self._open):
            connection.pause(STOPPING)

    async def close(self, timeout_s: float) -> None:
        """Close all connections, those that do not go in time by force."""
        self.is_serving = False
        for connection in list(self._open):
            connection.close()
        if self._open:
            self._all_closed = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_closed], timeout=timeout_s)
        self.abort()

    def abort(self) -> None:
        """Cut all connections."""
        self.is_serving = False
        for connection in list(self._open):
            connection.give_up("the bookie stops")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """Look after all connections; runs as long as there are any."""
        options = self.options
        shortest = min(
            options.answer_timeout_s,
            options.frame_timeout_s,
            options.login_timeout_s,
            options.idle_timeout_s or 60,
        )
        self._timer = None
        if self._open:
            self._timer = patience.Timer(min(1.0, shortest / 4), self._tick)
        self._check(deque(self._open))
        for connection in self.frames.standing_still():
            self.metrics.connections_slow += 1
            connection.give_up("its frame stands still, and others have no room for theirs")

    def _check(self, connections: deque[BookieConnection]) -> None:
        """Look at connections, some in a turn of the loop, however many there are."""
        now_ns = self.env.clock.now_ns()
        for _ in range(min(_CHECKED_IN_A_TURN, len(connections))):
            connections.popleft().check(now_ns)
        if connections:
            asyncio.get_running_loop().call_soon(self._check, connections)

    def count_partial_frame(
        self, connection: BookieConnection, before_bytes: int, now_bytes: int
    ) -> None:
        """Count how much has come of a frame that is not complete."""
        self.partial_bytes += now_bytes - before_bytes
        if not now_bytes:
            self._begun.pop(connection, None)
        elif not before_bytes:
            self._begun[connection] = None

    def bound_partial_frames(self) -> None:
        """Give begun frames up where there are too many bytes of them."""
        limit_bytes = self.options.max_partial_frame_bytes
        excess_bytes = self.partial_bytes - limit_bytes
        if excess_bytes <= 0:
            return
        # A little more goes: a look at all of them for each chunk that comes would be dear.
        excess_bytes += limit_bytes // _PARTIAL_ROOM_SHARE
        for connection in to_give_up(list(self._begun), excess_bytes, self._source_of):
            self.metrics.connections_slow += 1
            connection.give_up("too many bytes of begun frames, and its address has most of them")

    def _source_of(self, connection: BookieConnection) -> tuple[bool, str]:
        return self.places.is_proven(connection), self.places.place(connection)
