"""How far healing may go beyond its budget: as far as others do not feel it.

What they would feel is asked of the bookies all the time: how long a small request takes that
waits for a bookie's loop, its journal and its disk.  Time passes in periods, at the end of which
the rate is decided anew:

    LOOKING   nothing beyond the budget; what answers take now is their quiet time
    GOING     more each period while answers take hardly longer than that; half of it when they
              take twice as long

A look comes first, when nothing is left to give back, and after every ``_LOOK_EVERY`` periods:
others may have more or less to do by now, and what is measured beside our own work cannot tell
that from it.

Pure: no clock and no I/O.  ``pace_keeper`` asks, ends the periods, and tells the budget.
"""

from __future__ import annotations

#: Fewer answers in a period say that something is wrong, not that there is room.
LEAST_ANSWERS = 4
#: The first step beyond the budget, in bytes a second, and what is too little to be worth it.
FIRST_BYTES = 10_000_000
#: Answers are judged by the slowest but a tenth of them.
_SLOW_PART = 0.9
_CALM, _LOADED = 1.5, 2.0
#: Differences below this are nobody's concern: a turn of a loop, a sync that met another.
_SLACK_S = 0.002
#: Bookies that take so long are not at rest, however long they take otherwise.
_NEVER_QUIET_S = 0.5
#: Until answers were slow for the first time; then the rate is near what can be had.
_FAST_GROWTH, _GROWTH = 2.0, 1.2
_LOOK_EVERY = 40


class HealingPace:
    """The rate of one process's healing beyond its budget.

    Args:
        most_bytes: No more than this a second.
    """

    def __init__(self, most_bytes: int) -> None:
        #: What healing may read and write beyond the budget now, in bytes a second.
        self.spare_bytes = 0
        self._most_bytes = most_bytes
        self._growth = _FAST_GROWTH
        self._answers_s: list[float] = []
        #: What answers take without us; None: that is being looked at.
        self._quiet_s: float | None = None
        #: What was begun before a look may still be under way, and at first connections are made.
        self._is_settling = True
        self._resume_bytes = 0
        self._periods = 0

    @property
    def is_looking(self) -> bool:
        """Tell whether the quiet time of answers is being taken."""
        return self._quiet_s is None

    def observe(self, seconds: float) -> None:
        """Take how long an answer took that came in this period."""
        self._answers_s.append(seconds)

    def end_period(self, *, is_wanted: bool) -> None:
        """Decide the rate of the next period.

        Args:
            is_wanted: Healing had to wait for its budget in this period.
        """
        answers_s, self._answers_s = sorted(self._answers_s), []
        if len(answers_s) < LEAST_ANSWERS:
            self._go_slower()
            return
        slow_s = answers_s[int((len(answers_s) - 1) * _SLOW_PART)]
        self._periods += 1
        if self._quiet_s is None:
            self._look(slow_s)
        elif slow_s > min(_LOADED * self._quiet_s + _SLACK_S, _NEVER_QUIET_S):
            self._growth = _GROWTH
            self._go_slower()
        elif self._periods >= _LOOK_EVERY:
            self._begin_look()
        elif is_wanted and slow_s <= _CALM * self._quiet_s + _SLACK_S:
            faster = max(FIRST_BYTES, int(self.spare_bytes * self._growth))
            self.spare_bytes = min(self._most_bytes, faster)

    def _begin_look(self) -> None:
        self._resume_bytes, self.spare_bytes = self.spare_bytes, 0
        self._quiet_s, self._is_settling = None, True

    def _look(self, slow_s: float) -> None:
        if self._is_settling:
            self._is_settling = False
        elif slow_s < _NEVER_QUIET_S:
            self._quiet_s, self._periods = slow_s, 0
            self.spare_bytes = self._resume_bytes

    def _go_slower(self) -> None:
        half = self.spare_bytes // 2
        self.spare_bytes = half if half >= FIRST_BYTES else 0
        if not self.spare_bytes and not self.is_looking:
            self._begin_look()
