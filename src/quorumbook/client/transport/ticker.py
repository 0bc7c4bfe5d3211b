"""One coarse timer for all time-outs of a client.

A time-out per request would cost a timer per request; instead whoever waits for answers is asked
a few times a second whether something is overdue, and the timer stops while nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.client.options import ClientOptions
from quorumbook.env import Env, logger, patience

_log = logger("client")
_LONGEST_S = 0.25
_SHORTEST_S = 0.01

#: Gets the time; returns whether it wants to be asked again.
Check = Callable[[int], bool]


class Ticker:
    """Calls every registered check each ``interval_s`` until it has nothing left to wait for."""

    def __init__(self, env: Env, interval_s: float) -> None:
        self._env = env
        self._interval_s = interval_s
        self._checks: dict[Check, None] = {}
        self._handle: patience.Timer | None = None
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Tell whether somebody waits."""
        return self._handle is not None

    def watch(self, check: Check) -> None:
        """Begin to ask ``check``; it may be asked already."""
        self._checks[check] = None
        if self._handle is None and not self._is_closed:
            self._schedule()

    def close(self) -> None:
        """Stop for good."""
        self._is_closed = True
        self._checks.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        self._handle = patience.Timer(self._interval_s, self._tick)

    def _tick(self) -> None:
        self._handle = None
        now_ns = self._env.clock.now_ns()
        for check in list(self._checks):
            try:
                is_waiting = check(now_ns)
            except Exception:
                # The time-outs of all the others must not end with it.
                _log.exception("a check of time-outs failed")
                is_waiting = False
            if not is_waiting:
                self._checks.pop(check, None)
        if self._checks and not self._is_closed:
            self._schedule()


def tick_s(options: ClientOptions) -> float:
    """Return how often time-outs are looked at: a fraction of the shortest."""
    shortest = min(
        options.add_timeout_s,
        options.read_timeout_s,
        options.request_timeout_s,
        options.speculative_read_s or options.read_timeout_s,
    )
    return max(_SHORTEST_S, min(_LONGEST_S, shortest / 8))
