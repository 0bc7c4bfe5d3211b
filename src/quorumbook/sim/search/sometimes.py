"""Rare states that a simulation is worth nothing without, and how often seeds reached them.

Most are told by what bookies and clients say in their logs, so nothing in production counts for
the simulator; the others are noted where clients are told of them.  A test holds every pattern to
a message in the sources, and every state to being reached by a few seeds of a directed phase.
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
    "a ZooKeeper session is over": "ZooKeeper session 0x%x is over",
    "a damaged or doubted ledger is whole again": "ledger %d is whole here again",
    "a worker moves copies": "ledger %d: from entry %d on, %s",
    "garbage collection drops deleted ledgers": (
        "%d ledgers are deleted here, as they are in the metadata"
    ),
    "garbage collection drops copies that others have": (
        "%d ledgers are kept elsewhere, their copies here are dropped"
    ),
    "garbage collection removes an entry log": (
        "entry log %x holds nothing any more, it is removed"
    ),
    "an entry log is compacted": "entry log %x is compacted",
    "a stream is taken over by force": "the lock at %s is taken over from %s",
}
TRUNCATED = "a stream is truncated"
REBALANCED = "a partition goes to another member of its group"
#: All of them.
STATES = (*SOMETIMES, TRUNCATED, REBALANCED)
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
