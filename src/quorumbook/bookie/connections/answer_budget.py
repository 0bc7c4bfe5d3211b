"""The bytes of answers that a bookie may have in memory, shared by all connections.

Counted is what reads under way are believed to return, and what was written to a connection and
its peer has not taken.  A read is admitted before it is begun:

    within the budget                       admitted
    over it, of a connection that has       waits until there is room: who does not read is the
    answers under way or not taken          first to wait
    over it, of a connection that has none  admitted, as long as there is less than twice the
                                            budget; at the expense of who has stood still longest,
                                            if somebody has for ``_STILL_NS`` while others waited

So readers who never read stop nobody, and have no more than twice the budget in memory.  In a turn
of the loop that has worked long enough nothing is admitted; those who wait have their turns next.
``reads.py`` asks; ``connection.py`` tells what its peer has not taken.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from quorumbook.bookie.connections.loop_turns import Turn
from quorumbook.env import Clock

_STILL_NS = 1_000_000_000
#: Who takes this much is not standing still.
_PROGRESS_BYTES = 256 * 1024
#: How long somebody who waits sleeps before the connections are measured again.
_LOOK_AGAIN_S = 0.02
#: What passes between two looks without a pause.
_PAUSE_NS = 100_000_000


class ReadingConnection(Protocol):
    """A connection that reads."""

    #: Bytes that its reads under way are believed to return.
    read_bytes: int

    @property
    def unflushed_bytes(self) -> int:
        """How much of its answers is not written yet."""

    def flush(self) -> None:
        """Write it."""

    def note_unread(self) -> None:
        """Call ``note``."""

    def stands_in_the_way(self) -> None:
        """Cut it."""


_ReaderT = TypeVar("_ReaderT", bound=ReadingConnection)


class _Unread:
    """What one peer has not taken."""

    __slots__ = ("mark_bytes", "since_ns", "size_bytes")

    def __init__(self, size_bytes: int, mark_bytes: int, since_ns: int) -> None:
        self.size_bytes = size_bytes
        #: What it had taken when it was seen to take something last, and when that was.
        self.mark_bytes = mark_bytes
        self.since_ns = since_ns


class AnswerBudget(Generic[_ReaderT]):
    """One bookie's; used on the event loop.

    Args:
        clock: Tells who stands still.
        turn: Tells when reads have to wait for another turn.
        limit_bytes: The budget.
        resume: Has a connection's reads go on.
    """

    def __init__(
        self,
        clock: Clock,
        turn: Turn,
        limit_bytes: int,
        resume: Callable[[_ReaderT], None],
    ) -> None:
        self._clock = clock
        self._turn = turn
        self._limit_bytes = limit_bytes
        self._resume = resume
        #: What the reads under way are believed to return.
        self.reserved_bytes = 0
        #: What peers have not taken; connections that took it since are counted too much.
        self.unread_bytes = 0
        self._unread: dict[_ReaderT, _Unread] = {}
        self._waiting: OrderedDict[_ReaderT, None] = OrderedDict()
        #: How long it was watched, while somebody waited, what peers take, and when last: a pause
        #: of this process is not held against them.
        self._watched_ns = 0
        self._looked_ns = clock.now_ns()
        self._is_letting_in = False
        #: Whether somebody who stands still may be cut before the next look.
        self._may_cut = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        """What is counted."""
        return self.reserved_bytes + self.unread_bytes

    def admits(self, connection: _ReaderT, size_bytes: int) -> bool:
        """Tell whether a read of about that size may begin; if not, ``resume`` follows."""
        if self._turn.is_over:
            self._waiting[connection] = None
            self._let_in_soon()
            return False
        if self.used_bytes + connection.unflushed_bytes + size_bytes <= self._limit_bytes:
            return True
        connection.flush()
        if self._timer is None:
            # While others wait they are measured by and by.
            self._measure()
        if self._has_room(connection, size_bytes):
            return True
        self._waiting[connection] = None
        self._look_again_later()
        return False

    def room(self, size_bytes: int) -> int:
        """Return how much a read may return that was admitted with that size."""
        return max(size_bytes, self._limit_bytes - self.used_bytes)

    def reserve(self, connection: _ReaderT, size_bytes: int) -> None:
        """Count a read that begins."""
        connection.read_bytes += size_bytes
        self.reserved_bytes += size_bytes

    def release(self, connection: _ReaderT, size_bytes: int) -> None:
        """Count a read as answered."""
        connection.read_bytes -= size_bytes
        self.reserved_bytes -= size_bytes
        if self._waiting:
            self._let_in_soon()

    def note(self, connection: _ReaderT, size_bytes: int, taken_bytes: int) -> None:
        """Take in what a connection's peer has not taken, and what it has in all."""
        known = self._unread.get(connection)
        if known is None:
            if size_bytes:
                self.unread_bytes += size_bytes
                self._unread[connection] = _Unread(size_bytes, taken_bytes, self._watched_ns)
            return
        self.unread_bytes += size_bytes - known.size_bytes
        known.size_bytes = size_bytes
        if not size_bytes:
            del self._unread[connection]
        elif taken_bytes - known.mark_bytes >= _PROGRESS_BYTES:
            known.mark_bytes = taken_bytes
            known.since_ns = self._watched_ns

    def forget(self, connection: _ReaderT) -> None:
        """A connection is gone, and what it had not taken."""
        self._waiting.pop(connection, None)
        known = self._unread.pop(connection, None)
        if known is not None:
            self.unread_bytes -= known.size_bytes

    def _has_room(self, connection: _ReaderT, size_bytes: int) -> bool:
        wanted = self.used_bytes + size_bytes
        if wanted <= self._limit_bytes:
            return True
        if connection.read_bytes or connection in self._unread:
            return False
        self._cut_the_stillest()
        return self.used_bytes + size_bytes <= 2 * self._limit_bytes or not self.used_bytes

    def _cut_the_stillest(self) -> None:
        """Give up who has stood still longest, if that is long; one at a look."""
        if not self._unread or not self._may_cut:
            return
        self._may_cut = False
        connection = min(self._unread, key=lambda one: self._unread[one].since_ns)
        if self._watched_ns - self._unread[connection].since_ns > _STILL_NS:
            self.forget(connection)
            connection.stands_in_the_way()

    def _measure(self) -> None:
        for connection in list(self._unread):
            connection.note_unread()

    def _look_again_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Measure what peers have taken, and let in who has room now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self._clock.now_ns()
        self._watched_ns += min(now_ns - self._looked_ns, _PAUSE_NS)
        self._looked_ns = now_ns
        self._may_cut = True
        self._measure()
        self._let_in()
        if self._waiting:
            self._look_again_later()

    def _let_in_soon(self) -> None:
        if not self._is_letting_in:
            self._is_letting_in = True
            asyncio.get_running_loop().call_soon(self._let_in)

    def _let_in(self) -> None:
        """Have those who wait ask again, those first who were first to wait."""
        self._is_letting_in = False
        self._turn.begin()
        for _ in range(len(self._waiting)):
            if not self._waiting:
                return
            if self._turn.is_over:
                self._let_in_soon()
                return
            connection, _ = self._waiting.popitem(last=False)
            self._resume(connection)
