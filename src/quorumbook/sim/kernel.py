"""Virtual time, the order of events, and the one source of chance of a simulation.

An event is a callback at a nanosecond.  Events of the same nanosecond come in the order in which
they were asked for, so a run is a function of its seed.  Everything that could have happened
otherwise asks the ``Tape``; everything that is worth telling goes into the ``Trace``, whose hash
says whether two runs were the same.

What happens at an event is everybody else's.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

from quorumbook.sim.carriers import Carriers

T = TypeVar("T")

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
MICROSECOND = 1_000
_EVENTS_BETWEEN_LOOKS = 8


class Calm:
    """Stretches of a tape on which every draw is the most boring one.

    Nothing unlikely happens there, and every duration is the typical one; what was drawn for the
    rest of the tape stays where it was.

    Args:
        stretches: From which draw on up to before which; ascending.
    """

    #: Nobody bets on less than a half being enough.
    _BORING = 0.5

    def __init__(self, stretches: Sequence[tuple[int, int]] = ()) -> None:
        self._ends = [draw for stretch in stretches for draw in stretch]
        #: How many draws there were.
        self.draws = 0

    def over(self, unit: Callable[[], float]) -> Callable[[], float]:
        """Return a source of draws that keeps calm."""

        def draw() -> float:
            value = unit()
            self.draws += 1
            return self._BORING if bisect_right(self._ends, self.draws - 1) % 2 else value

        return draw


class Tape:
    """Where every choice of a run comes from.

    Args:
        seed: The whole run.
        calm: Where it is played down.
    """

    def __init__(self, seed: int, calm: Calm | None = None) -> None:
        self._random = random.Random(f"quorumbook {seed}")
        unit = self._random.random
        self.unit = unit if calm is None else calm.over(unit)
        #: How many choices were made through ``below`` and its kin.
        self.count = 0

    def below(self, bound: int) -> int:
        """Return a number from 0 on below a bound."""
        self.count += 1
        return int(self.unit() * bound)

    def between(self, low: float, high: float) -> float:
        """Return a number between two."""
        self.count += 1
        return low + (high - low) * self.unit()

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        self.count += 1
        return self.unit() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Return one of some items."""
        return items[self.below(len(items))]

    def child(self) -> random.Random:
        """Return a generator for one process, which draws nothing further from here."""
        return random.Random(self._random.getrandbits(64))

    def heavy_ns(self, typical_ns: int, tail: float, longest_ns: int) -> int:
        """Return a duration: around the typical one, with probability ``tail`` far longer."""
        self.count += 1
        draw = self.unit()
        if draw < tail:
            # Each power of two up to the longest is as likely as the next.
            spread = longest_ns / typical_ns
            return int(typical_ns * spread ** (draw / tail))
        return int(typical_ns * (0.5 + draw))


class Trace:
    """What happened, as a hash and, where somebody wants to read it, as lines."""

    def __init__(self, kernel: Kernel, *, keep: bool = False) -> None:
        self._kernel = kernel
        self._hash = hashlib.blake2b(digest_size=8)
        self.lines: list[str] | None = [] if keep else None

    def note(self, who: str, what: str, detail: object = "") -> None:
        """Take down one thing."""
        line = f"{self._kernel.now_ns / SECOND:12.6f} {who:<12} {what} {detail}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        """Return the hash of everything so far."""
        return self._hash.hexdigest()


class Kernel:
    """The clock and the queue of events.

    Args:
        seed: The whole run.
        keep_trace: Keep the lines of the trace, for people.
        calm: Where its tape is played down.
    """

    def __init__(self, seed: int, *, keep_trace: bool = False, calm: Calm | None = None) -> None:
        self.seed = seed
        self.now_ns = 0
        self.tape = Tape(seed, calm)
        self.trace = Trace(self, keep=keep_trace)
        #: For jobs that stop in the middle.
        self.carriers = Carriers()
        self._queue: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    @property
    def events(self) -> int:
        """How many there were."""
        return self._sequence - len(self._queue)

    def at(self, when_ns: int, callback: Callable[..., object], *arguments: Any) -> None:
        """Have something called at a moment, or as soon as possible."""
        self._sequence = sequence = self._sequence + 1
        heappush(self._queue, (max(when_ns, self.now_ns), sequence, callback, arguments))

    def after(self, delay_ns: int, callback: Callable[..., object], *arguments: Any) -> None:
        """Have something called after a time."""
        self._sequence = sequence = self._sequence + 1
        heappush(self._queue, (self.now_ns + delay_ns, sequence, callback, arguments))

    def run(self, is_over: Callable[[], bool], limit_ns: int) -> bool:
        """Let things happen until a condition holds; False if it does not by a moment."""
        queue = self._queue
        while not is_over():
            # What a few events more or less do is known soon enough.
            for _ in range(_EVENTS_BETWEEN_LOOKS):
                if not queue or queue[0][0] > limit_ns:
                    if is_over():
                        return True
                    self.now_ns = max(self.now_ns, limit_ns)
                    return False
                self.now_ns, _, callback, arguments = heappop(queue)
                callback(*arguments)
        return True

    def forget(self) -> None:
        """Let go of what was still to come."""
        self._queue.clear()
        self.carriers.end()
