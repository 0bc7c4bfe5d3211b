"""Many processes append to many streams at once, and all of it appears in one step, or nothing.

Each process writes its rows into ledgers of its own (``attempt``), which nobody reads yet.  The
driver then makes the sealed ledgers segments of their streams in a single change of the metadata
(``commit``), together with the application's head, which says which batch was the last.  Whatever
is killed when: a batch whose number is not above the head's is there, and nothing else is; what was
written for nothing is found by its node and deleted (``orphans``).  Where rows are appended at once
instead, parts that are run again are held to what they appended before (``appended_rows``).

``state`` decides and ``grafting`` plans; both are pure.  ``nodes`` has what lies in the metadata,
``application`` is the door.
"""

from quorumbook.streams.transactions.appended_rows import StreamRows
from quorumbook.streams.transactions.application import (
    AppendedPart,
    Application,
    Place,
    collect_orphans,
)
from quorumbook.streams.transactions.attempt import Attempt, AttemptResult, DraftOptions
from quorumbook.streams.transactions.commit import CommitOptions, Committed
from quorumbook.streams.transactions.grafting import Draft
from quorumbook.streams.transactions.state import Head, Identity

__all__ = [
    "AppendedPart",
    "Application",
    "Attempt",
    "AttemptResult",
    "CommitOptions",
    "Committed",
    "Draft",
    "DraftOptions",
    "Head",
    "Identity",
    "Place",
    "StreamRows",
    "collect_orphans",
]
