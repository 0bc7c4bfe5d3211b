"""What all directed phases have: they act again and again while the time is rough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.kernel import MILLISECOND, SECOND

#: What phases want of the plan: little happens besides, so that much of theirs fits into a seed.
ALONE: Mapping[str, Any] = {
    "zookeepers": 0,
    "has_etcd": False,
    "recoverers": 0,
    "tailers": 0,
    "has_auto_recovery": False,
    "ways": (),
    "mishaps": (),
    "tail": 0.0,
    "metadata_drops": 0.0,
    "session_timeout_s": 6.0,
}
_LOOK_EVERY_NS = 4 * MILLISECOND


class SearchPhase:
    """One phase of a run.

    Args:
        life: Whose.
    """

    def __init__(self, life: actors.ActorsLife) -> None:
        self._life = life
        self._kernel = life.kernel
        self._tape = life.tape
        self._bookies = life.cluster.bookies

    def begin(self) -> None:
        """Begin; it ends with the rough time."""
        self._later(0.2, 1.0, self._act)

    def _act(self) -> None:
        raise NotImplementedError

    def _later(self, low_s: float, high_s: float, then: Callable[[], None]) -> None:
        def go_on() -> None:
            if self._life.is_rough:
                then()

        self._kernel.after(int(self._tape.between(low_s, high_s) * SECOND), go_on)

    def _when(self, is_so: Callable[[], bool], limit_s: float, then: Callable[[], None]) -> None:
        """Go on when something is so, or at the end of one's patience."""
        limit_ns = self._kernel.now_ns + int(limit_s * SECOND)

        def look() -> None:
            if not self._life.is_rough:
                return
            if is_so() or self._kernel.now_ns >= limit_ns:
                then()
            else:
                self._kernel.after(_LOOK_EVERY_NS, look)

        look()

    def _boot(self, machine: BookieMachine) -> None:
        self._kernel.after(int(self._tape.between(0.01, 0.4) * SECOND), machine.boot_up)
