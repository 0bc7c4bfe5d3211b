"""Rare states that a simulation is worth nothing without, and how often seeds reached them.

Each is told by what bookies and clients say in their logs, so nothing in production counts for the
simulator.  A test holds every pattern to a message in the sources, and every state to being
reached by some hundred seeds.
"""

from __future__ import annotations

import logging
from collections import Counter

#: What happened, and the message that says so, as it stands in the sources.
SOMETIMES = {
    "a ledger is fenced": "ledger %d is fenced by %s",
    "a writer stops": "ledger %d: the writer stops: %s",
    "an ensemble is changed": "ledger %d: from entry %d on the ensemble is %s",
    "a writer goes on with fewer bookies": (
        "ledger %d goes on without %s: no bookie is left to replace it"
    ),
    "a failed bookie is taken back": "ledger %d: bookie %s is back",
    "a compare-and-set is lost": "ledger %d: %s",
    "a ledger is closed by recovery": "ledger %d is closed at entry %d",
    "a bookie is in quarantine": "bookie %s is in quarantine for %.0f s",
    "a quarantine ends early": "bookie %s is back",
    "a journal ends in a write that was cut short": (
        "%s ends in a write that a kill or a loss of power cut short"
    ),
    "a session of a bookie ends": "the registration goes with its session: %s",
    "a damaged or doubted ledger is whole again": "ledger %d is whole here again",
    "a worker moves copies": "ledger %d: from entry %d on, %s",
}
_BY_MESSAGE = {message: name for name, message in SOMETIMES.items()}


class Sightings(logging.Handler):
    """Counts what is said."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count a message of the table; forget all others."""
        name = _BY_MESSAGE.get(str(record.msg))
        if name is not None:
            self.counts[name] += 1
