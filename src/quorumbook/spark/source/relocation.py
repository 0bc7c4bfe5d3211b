"""Where an offset of a checkpoint is after segments were merged.

Merging gives segments other numbers, so an offset also says in which ledger the entry before it is.
A segment that only got another number still has that ledger; one that was merged is in the notes
of the ledger that it was merged into.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.request.offsets import Offset, is_same_stream
from quorumbook.spark.rows.views import View
from quorumbook.streams.format.names import MERGED_KEY

ReadLedger = Callable[[LedgerId], Awaitable[LedgerMetadata]]


def stamped(view: View | None, offset: Offset) -> Offset:
    """Return an offset with the ledger of the entry before it, if that is known."""
    if view is None or not view.birth or not is_same_stream(view.birth, offset.birth):
        return offset
    before = offset.segment if offset.entry else offset.segment - 1
    ledger = next((e.ledger_id for e in view.extents if e.segment == before), None)
    # Where the segment before is truncated by now, what was known of it stays.
    return offset if ledger is None else offset._replace(ledger=ledger)


async def relocated(view: View | None, offset: Offset, read_ledger: ReadLedger) -> Offset:
    """Return where an offset is by now; as it was, if nobody knows."""
    if (
        view is None
        or offset.ledger < 0
        or offset.birth == view.birth
        or not is_same_stream(offset.birth, view.birth)
        or offset.segment > view.last_moved
    ):
        return offset
    for extent in view.extents:
        if extent.ledger_id == offset.ledger:
            return _behind(view, offset, extent.segment, 0, extent.end_entry)
    for extent in view.extents:
        if extent.segment > view.last_moved:
            break
        custom = (await read_ledger(extent.ledger_id)).custom_metadata
        for ledger_id, first, count in json.loads(custom.get(MERGED_KEY, b"[]")):
            if ledger_id == offset.ledger:
                return _behind(view, offset, extent.segment, first, count)
    return offset


def _behind(view: View, offset: Offset, segment: int, first: int, count: int) -> Offset:
    """Return an offset in what a ledger holds now: entries of a segment from the first on."""
    entry = first + (offset.entry or count)
    found = view.at(segment, entry)._replace(ledger=offset.ledger)
    return found._replace(slot=offset.slot) if found.entry == entry else found
