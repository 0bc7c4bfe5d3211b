"""What clients asked for and have not been told the end of (I11).

Whoever calls something of a client notes it here.  When all is well again, whoever lives goes on
until everything under way has ended.  What then takes longer than all its timeouts together never
ends.  A client that was killed is told nothing more; one that stood still goes on before anybody
is held to a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from quorumbook.sim.kernel import SECOND, Kernel
from quorumbook.sim.process import Process

#: More than an entry may wait for its quorum, and an operation for its end, one after the other.
BOUND_S = 60.0
#: What is done to streams takes several of these, and sessions of others end meanwhile.
BOUND_OF_STREAMS_S = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """One that was begun."""

    process: Process
    what: str
    began_ns: int
    bound_ns: int


class Calls:
    """All calls that are under way.

    Args:
        kernel: Tells the time.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._open: dict[PendingCall, None] = {}

    def begin(self, process: Process, what: str, bound_s: float = BOUND_S) -> PendingCall:
        """A process calls something."""
        call = PendingCall(process, what, self._kernel.now_ns, int(bound_s * SECOND))
        self._open[call] = None
        return call

    def end(self, call: PendingCall) -> None:
        """It was told what came of it."""
        self._open.pop(call, None)

    @contextlib.contextmanager
    def under_way(self, process: Process, what: str, bound_s: float = BOUND_S) -> Iterator[None]:
        """Note a call for as long as a block lasts."""
        call = self.begin(process, what, bound_s)
        try:
            yield
        finally:
            self.end(call)

    @property
    def are_over(self) -> bool:
        """Tell whether nobody who lives waits for anything."""
        for call in list(self._open):
            if not call.process.is_dead:
                return False
            del self._open[call]
        return True

    def overdue(self, well_since_ns: int) -> list[str]:
        """Return the calls that take longer than they may.

        Args:
            well_since_ns: From when on all was well, and nobody stood still.
        """
        now_ns = self._kernel.now_ns
        return [
            f"{call.process.name}: {call.what}"
            for call in self._open
            if not call.process.is_dead
            and max(call.began_ns, well_since_ns) + call.bound_ns <= now_ns
        ]
