"""When a step that failed is started again; pure.

It is started again at once, then after one second, two, four, and so on up to a minute.  A batch
that was done in between makes it count from the beginning.  After too many failures in a row it is
given up.
"""

from __future__ import annotations

import re

from quorumbook.spark.short_errors import shown_in

_LONGEST_S = 60.0
_TRACE = "Traceback (most recent call last)"
_LAST = re.compile(r"[A-Za-z_][\w.]*(: |$)")
#: So much of an error is shown.
_CHARACTERS = 500


def reason_of(error: str) -> str:
    """Return the useful line of an error of a query: ours, else of Python's trace its last.

    Args:
        error: What Spark says, which has the traces of two languages.
    """
    own = shown_in(error)
    if own is not None:
        return f"[{own.condition}] {own.message} (quorumbook help {own.code})"[:_CHARACTERS]
    lines = error.splitlines()
    found = lines[0] if lines else ""
    if _TRACE in error:
        behind = lines[next(n for n, line in enumerate(lines) if _TRACE in line) + 1 :]
        found = next((line for line in behind if _LAST.match(line)), found)
    return found[:_CHARACTERS]


class Restarts:
    """The failures of one step.

    Args:
        most: So often it is started again without a batch in between.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_a_row = 0
        self._batches = 0
        #: How often it was started again.
        self.count = 0

    def failed(self, batches: int) -> float | None:
        """Return how long to wait before the step is started again; None: it is given up.

        Args:
            batches: How many it has done in all.
        """
        if batches > self._batches:
            self._in_a_row = 0
        self._batches = batches
        self._in_a_row += 1
        if self._in_a_row > self._most:
            return None
        self.count += 1
        return 0.0 if self._in_a_row == 1 else min(_LONGEST_S, 2.0 ** (self._in_a_row - 2))
