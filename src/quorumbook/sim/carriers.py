"""What carries the jobs of simulated workers: threads of the machine, one of which runs at a time.

A job is an ordinary function, and stops in the middle all the same, until its sync is over in
virtual time: what carries it waits, and whoever let it run goes on.  Nothing runs beside anything
else, and no order is the machine's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Carrier:
    """A thread that runs a function until it pauses or ends."""

    def __init__(self) -> None:
        self._may_run, self._has_stopped = threading.Lock(), threading.Lock()
        self._may_run.acquire()
        self._has_stopped.acquire()
        self._work: Callable[[], None] | None = None
        threading.Thread(target=self._serve, name="simulated", daemon=True).start()

    def begin(self, work: Callable[[], None]) -> None:
        """Run a function, which must not raise, up to its first pause."""
        self._work = work
        self.go_on()

    def end(self) -> None:
        """End the thread."""
        self.go_on()

    def go_on(self) -> None:
        """Let it run up to its next pause or its end."""
        self._may_run.release()
        self._has_stopped.acquire()

    def pause(self) -> None:
        """Wait, in the function, until somebody lets it go on."""
        self._has_stopped.release()
        self._may_run.acquire()

    def _serve(self) -> None:
        while True:
            self._may_run.acquire()
            work, self._work = self._work, None
            if work is not None:
                work()
                # It would keep a world alive that is over.
                del work
                self._has_stopped.release()
            else:
                self._has_stopped.release()
                return


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
