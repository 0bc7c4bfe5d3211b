"""One line for each change: when, who, from where, what, and how it ended.

Lines go to the log ``quorumbook.admin.audit``; the last of them stay in memory for the console.
Those of strangers, and of who may not, are kept apart, as are those of which there are very many,
such as a checkpoint's files: a thousand of them push out no other change.
What is logged is the path and named fields, never a body: bodies hold records.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import itemgetter

from quorumbook.admin.access.roles import Who
from quorumbook.env import logger

_log = logger("admin.audit")
_KEPT = 1000
_REFUSALS_KEPT = 200
#: Few, so that a page of the last changes has others, too.
_MANY_KEPT = 50
#: Outcomes of those who are known, and may not.
_MAY_NOT = frozenset({"role", "namespace"})
_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class AuditedChange:
    """One change, done or refused."""

    at_ms: int
    #: A token's or certificate's name; ``loopback``; ``-`` for a stranger.
    who: str
    #: The address it came from.
    source: str
    #: Such as ``DELETE /api/v2/ledgers/7``.
    what: str
    #: ``done``, or the code of the problem.
    outcome: str

    def row(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return asdict(self)


class AuditLog:
    """What was changed through one server."""

    def __init__(self) -> None:
        #: Gets each change of somebody who is known, too.
        self.sink: Callable[[AuditedChange], None] | None = None
        #: With the number of each, in which order they came.
        self._changes: deque[tuple[int, AuditedChange]] = deque(maxlen=_KEPT)
        self._refusals: deque[tuple[int, AuditedChange]] = deque(maxlen=_REFUSALS_KEPT)
        self._many: deque[tuple[int, AuditedChange]] = deque(maxlen=_MANY_KEPT)
        self._numbers = itertools.count()

    def add(
        self, who: Who | None, source: str, what: str, outcome: str, *, is_one_of_many: bool = False
    ) -> None:
        """Write a line.

        Args:
            who: Who asked; None: a stranger.
            source: From which address.
            what: Verb and path.
            outcome: ``done``, or the code of the problem.
            is_one_of_many: It is kept where it pushes out no other change.
        """
        # A line is a line: what others sent may hold control characters.
        shown = "".join(c if c.isprintable() else "?" for c in what[:_LENGTH_MAX])
        change = AuditedChange(
            int(time.time() * 1000), who.name if who else "-", source, shown, outcome
        )
        is_refusal = who is None or outcome in _MAY_NOT
        kept = self._refusals if is_refusal else self._many if is_one_of_many else self._changes
        kept.append((next(self._numbers), change))
        if who is not None and self.sink is not None:
            self.sink(change)
        _log.info("%s from %s: %s: %s", change.who, source, shown, outcome)

    def recent(self, limit: int) -> list[AuditedChange]:
        """Return the last changes and refusals, the latest first."""
        kept = map(reversed, (self._changes, self._refusals, self._many))
        found = heapq.merge(*kept, key=itemgetter(0), reverse=True)
        return [change for _, change in itertools.islice(found, limit)]
