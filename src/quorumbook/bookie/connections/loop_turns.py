"""Turns of the event loop: how long one works for connections, and who waits for the next.

However many connections have something to do at once, a turn that has worked for ``_TURN_NS``
begins nothing more: chunks wait undecoded (``TurnQueue``), answers unwritten (``Outbox``), reads
unbegun (``answer_budget.py``), connections whose peers have left unclosed (``Departures``), each
in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from quorumbook.env import Asker, Clock, logger

_log = logger("bookie.turns")
#: An add waits for some four turns on its way, so that it counts four times.
_TURN_NS = 250_000
#: Peers that have left, whose connections are closed in one turn: less than a millisecond.
_DEPARTURES_A_TURN = 64
#: Chunks up to this are carried out before larger ones.
_SMALL_CHUNK_BYTES = 8 * 1024


class Answerer(Protocol):
    """A connection with answers to send."""

    peer: str

    @property
    def unflushed_bytes(self) -> int:
        """How much is not written yet."""

    def flush(self) -> None:
        """Write it."""

    def note_unread(self) -> None:
        """Have the budget of answers know what waits here."""

    def give_up(self, why: str) -> None:
        """Cut the connection."""


class Leaver(Protocol):
    """A connection whose peer has left."""

    def depart(self) -> None:
        """Close it, or forget it if it is gone."""


class Departures:
    """Connections whose peers have left: some are closed, or forgotten, in a turn.

    Ten thousand may end in one instant, and either costs more than to see that one ended.
    """

    def __init__(self) -> None:
        self._waiting: deque[Leaver] = deque()

    def add(self, connection: Leaver) -> None:
        """Have the connection go soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(connection)

    def _go_on(self) -> None:
        waiting = self._waiting
        for _ in range(min(_DEPARTURES_A_TURN, len(waiting))):
            waiting.popleft().depart()
        if waiting:
            asyncio.get_running_loop().call_soon(self._go_on)


class Turn:
    """Whether the present turn of the loop has worked long enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns: int | None = None

    def begin(self) -> None:
        """Begin another part of the turn, which may work as long as those before it."""
        if self._began_ns is None:
            asyncio.get_running_loop().call_soon(self._end)
        self._began_ns = self._clock.now_ns()

    @property
    def is_over(self) -> bool:
        """Tell whether what can wait should; who asks first begins the turn."""
        if self._began_ns is None:
            self.begin()
            return False
        return self._clock.now_ns() - self._began_ns > _TURN_NS

    def _end(self) -> None:
        self._began_ns = None


class Weight(IntEnum):
    """In which order those go on who wait for a turn."""

    SMALL = 0
    """Its chunk is small."""
    MIDDLE = 1
    HEAVY = 2
    """It has so many adds under way that it waits for the journals as well."""
    UNPROVEN = 3
    """Anybody's: nothing of it was carried out yet."""


#: To walk through an enumeration takes as long as what is asked of each of its members.
_WEIGHTS = tuple(Weight)


class TurnQueue:
    """Connections with requests to carry out: small chunks first, those of strangers last.

    So who asks little does not stand behind those who ask very much, and a client at work not
    behind a crowd that has proven nothing.  A turn carries on with a small one at least, and with
    one of another kind, of all of them in turn.

    Args:
        turn: How long one works.
        admits_heavy: Whether those go on who wait for the journals; ``wake`` says that it changed.
        on_busy: Told when somebody who may go on waits longer than a turn, and when nobody does.
    """

    def __init__(
        self, turn: Turn, admits_heavy: Callable[[], bool], on_busy: Callable[[bool], None]
    ) -> None:
        self._turn = turn
        self._on_busy = on_busy
        self._is_busy = False
        #: Whether those go on who wait for the journals.
        self.admits_heavy = admits_heavy
        self._waiting: tuple[OrderedDict[Asker, None], ...] = tuple(OrderedDict() for _ in _WEIGHTS)
        self._is_scheduled = False
        #: Which kinds have one in turn go on; the first is whose turn it was last.
        self._others = deque(weight for weight in _WEIGHTS if weight is not Weight.SMALL)

    @property
    def has_heavy(self) -> bool:
        """Tell whether somebody waits for the journals."""
        return bool(self._waiting[Weight.HEAVY])

    @property
    def is_over(self) -> bool:
        """Tell whether the present turn of the loop has worked long enough."""
        return self._turn.is_over

    def wait(self, asker: Asker, size_bytes: int, *, is_proven: bool) -> None:
        """Have it go on with a chunk of that size, small ones first."""
        if not is_proven:
            self.add(asker, Weight.UNPROVEN)
        else:
            self.add(asker, Weight.SMALL if size_bytes <= _SMALL_CHUNK_BYTES else Weight.MIDDLE)

    def add(self, connection: Asker, weight: Weight) -> None:
        """Have the connection go on behind those of its kind that wait already."""
        self._waiting[weight][connection] = None
        self.wake()

    def wake(self) -> None:
        """Go on soon if somebody may."""
        if not self._is_scheduled and self._may_go_on():
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _may_go_on(self) -> bool:
        small, middle, heavy, unproven = self._waiting
        return bool(small or middle or unproven or (heavy and self.admits_heavy()))

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._turn.begin()
        self._carry_on(Weight.SMALL)
        for _ in range(len(self._others)):
            self._others.rotate(-1)
            if self._carry_on(self._others[0]):
                break
        for weight in _WEIGHTS:
            while not self._turn.is_over and self._carry_on(weight):
                pass
        if self._is_busy != self._may_go_on():
            self._is_busy = not self._is_busy
            self._on_busy(self._is_busy)
        self.wake()

    def _carry_on(self, weight: Weight) -> bool:
        if not self._has(weight):
            return False
        connection, _ = self._waiting[weight].popitem(last=False)
        connection.go_on()
        return True

    def _has(self, weight: Weight) -> bool:
        return bool(self._waiting[weight]) and (weight is not Weight.HEAVY or self.admits_heavy())


class TurnsBelow:
    """The turns of what lies below a connection: TLS decrypts before anybody knows for whom."""

    def __init__(self, queue: TurnQueue, is_proven: Callable[[], bool]) -> None:
        self._queue = queue
        self._is_proven = is_proven

    @property
    def is_over(self) -> bool:
        """Tell whether the present turn of the loop has worked long enough."""
        return self._queue.is_over

    def wait(self, asker: Asker, size_bytes: int) -> None:
        """Have it go on with so many bytes, as the connection would."""
        self._queue.wait(asker, size_bytes, is_proven=self._is_proven())


class Outbox:
    """Connections with answers to send: one sweep sends them, as long as its turn lasts.

    It comes by itself in the next turn of the loop, and at once where somebody knows that there
    will be no more answers now: before a busy loop's next turn others have sent very much.
    """

    def __init__(self, turn: Turn) -> None:
        #: How long one works.
        self.turn = turn
        self._waiting: deque[Answerer] = deque()
        #: Who was left by an earlier sweep; the budget of answers knows what they have.
        self._left: deque[Answerer] = deque()
        self._is_scheduled = False

    def add(self, connection: Answerer) -> None:
        """Have the connection flushed after the callbacks that run now."""
        self._waiting.append(connection)
        self._sweep_soon()

    def send(self, connection: Answerer) -> None:
        """Have the connection flushed now, or behind those that wait if the turn is over."""
        if not self.turn.is_over:
            connection.flush()
        elif connection.unflushed_bytes:
            self.add(connection)

    def _sweep_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.sweep()

    def sweep(self) -> None:
        """Send them."""
        if not self._left and not self._waiting:
            return
        self.turn.begin()
        for waiting in (self._left, self._waiting):
            while waiting:
                connection = waiting.popleft()
                if connection.unflushed_bytes:
                    _flush(connection)
                    if self.turn.is_over:
                        self._leave()
                        return

    def _leave(self) -> None:
        for connection in self._waiting:
            connection.note_unread()
        self._left.extend(self._waiting)
        self._waiting.clear()
        self._sweep_soon()


def _flush(connection: Answerer) -> None:
    try:
        connection.flush()
    except Exception:
        _log.exception("answers could not be written to %s", connection.peer)
        connection.give_up("a write failed")
