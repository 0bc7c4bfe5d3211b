"""How much the next batch of a query reads, so that its sink is done in about a wanted time; pure.

A query begins with little, and doubles while batches are done sooner than wanted; one that takes
longer makes the next smaller by as much.  What a batch was given stands in its offsets, so that it
is the same when it is done again.
"""

from __future__ import annotations

#: What the first batch reads, and after it the least and the most that any is told.
FIRST_BYTES = 1 << 20
_LEAST_BYTES = 1 << 10
_MOST_BYTES = 1 << 40
#: A batch that was given as much as this share of its limit says what the limit should be.
_FULL = 0.5
_GROWTH = 2.0
_NS = 1_000_000_000


class Pressure:
    """Follows the sink: batches are as large as it gets done in the time.

    Args:
        target_s: How long a batch is to take.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self.limit_bytes = FIRST_BYTES
        self._began: tuple[int, int] | None = None

    def batch_began(self, now_ns: int, size_bytes: int) -> None:
        """Take down what a batch reads."""
        self._began = now_ns, size_bytes

    def next_wanted(self, now_ns: int) -> None:
        """Learn from the batch before: whoever wants the next one is done with it."""
        if self._began is None:
            return
        began_ns, size_bytes = self._began
        self._began = None
        took = max((now_ns - began_ns) / _NS, 1e-9) / self._target_s
        if took > 1:
            self.limit_bytes = max(_LEAST_BYTES, int(min(size_bytes, self.limit_bytes) / took))
        elif size_bytes >= _FULL * self.limit_bytes:
            grown = int(self.limit_bytes * min(_GROWTH, 1 / took))
            self.limit_bytes = min(_MOST_BYTES, grown)
