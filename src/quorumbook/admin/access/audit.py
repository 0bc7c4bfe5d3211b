"""One line for each change: when, who, from where, what, and how it ended.

Lines go to the log ``quorumbook.admin.audit``; the last of them stay in memory for the console.
What is logged is the path and named fields, never a body: bodies hold records.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass

from quorumbook.admin.access.roles import Who
from quorumbook.env import logger

_log = logger("admin.audit")
_KEPT = 1000
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
        self._changes: deque[AuditedChange] = deque(maxlen=_KEPT)

    def add(self, who: Who | None, source: str, what: str, outcome: str) -> None:
        """Write a line."""
        # A line is a line: what others sent may hold control characters.
        shown = "".join(c if c.isprintable() else "?" for c in what[:_LENGTH_MAX])
        change = AuditedChange(
            int(time.time() * 1000), who.name if who else "-", source, shown, outcome
        )
        self._changes.append(change)
        _log.info("%s from %s: %s: %s", change.who, source, shown, outcome)

    def recent(self, limit: int) -> list[AuditedChange]:
        """Return the last changes, the latest first."""
        return [change for change, _ in zip(reversed(self._changes), range(limit), strict=False)]
