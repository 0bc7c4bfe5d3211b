"""What carries the jobs of simulated workers: threads of the machine, one of which runs at a time.

A job is an ordinary function, and stops in the middle all the same, until its sync is over in
virtual time: what carries it waits, and whoever let it run goes on.  Nothing runs beside anything
else, and no order is the machine's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_WORD = b"."


class Carrier:
    """A thread that runs a function until it pauses or ends."""

    def __init__(self) -> None:
        # Pipes, not locks: a write lets the interpreter go, so whoever it wakes can run at once,
        # and is not put to sleep again until the writer waits.  A third of the time and switches.
        self._may_run, self._has_stopped = os.pipe(), os.pipe()
        self._work: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._serve, name="simulated", daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        """Run a function, which must not raise, up to its first pause."""
        self._work = work
        self.go_on()

    def end(self) -> None:
        """End the thread."""
        self.go_on()
        self._thread.join()
        for each in (*self._may_run, *self._has_stopped):
            os.close(each)

    def go_on(self) -> None:
        """Let it run up to its next pause or its end."""
        os.write(self._may_run[1], _WORD)
        os.read(self._has_stopped[0], 1)

    def pause(self) -> None:
        """Wait, in the function, until somebody lets it go on."""
        os.write(self._has_stopped[1], _WORD)
        os.read(self._may_run[0], 1)

    def _serve(self) -> None:
        while True:
            os.read(self._may_run[0], 1)
            work, self._work = self._work, None
            if work is None:
                break
            work()
            # It would keep a world alive that is over.
            del work
            os.write(self._has_stopped[1], _WORD)
        os.write(self._has_stopped[1], _WORD)


class Carriers:
    """Those that have nothing to carry."""

    def __init__(self) -> None:
        self._free: list[Carrier] = []

    def take(self) -> Carrier:
        """Return one."""
        return self._free.pop() if self._free else Carrier()

    def give_back(self, carrier: Carrier) -> None:
        """Keep one that has ended its work for the next."""
        self._free.append(carrier)

    def end(self) -> None:
        """End them."""
        while self._free:
            self._free.pop().end()
