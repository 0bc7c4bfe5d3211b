"""How far one batch of a query reads: entries, records and bytes, each with its own limit.

A limit is divided among the streams, nobody getting less but for having less.  What is read ends
between two entries, so a batch keeps to its limits unless its first entry alone is beyond them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from quorumbook.spark.request.offsets import Offset, fair_shares
from quorumbook.spark.rows.open_ledgers import OpenLedgers
from quorumbook.spark.rows.views import Extent, View
from quorumbook.streams.reading.entries import last_record, records_before

#: Returns how much there is of an extent before an entry.
Measure: TypeAlias = Callable[[Extent, int], Awaitable[int]]


class Measures:
    """Counts bytes and records of segments by looking at single entries."""

    def __init__(self, ledgers: OpenLedgers) -> None:
        """Take the ledgers to look at."""
        self._ledgers = ledgers

    async def bytes_before(self, extent: Extent, entry: int) -> int:
        """Return the bytes of payload before an entry."""
        if extent.is_complete and entry == extent.end_entry:
            sizes = await self._ledgers.sizes(extent.ledger_id, entry)
            if sizes.entries == entry:
                return sizes.size_bytes
        return await self._ledgers.bytes_before(extent.ledger_id, entry)

    async def records_before(self, extent: Extent, entry: int) -> int:
        """Return the records before an entry."""
        if not entry:
            return 0
        if entry == extent.end_entry and extent.records >= 0:
            return extent.records
        reader = await self._ledgers.reader(extent.ledger_id)
        if entry < extent.end_entry:
            payload = (await reader.read_entry(entry)).payload
            return records_before(payload, is_enveloped=extent.is_enveloped)[0]
        payload = (await reader.read_entry(entry - 1)).payload
        last = last_record(payload, is_enveloped=extent.is_enveloped)
        return 0 if last is None else last.position


async def between(measure: Measure, view: View, start: Offset, end: Offset) -> int:
    """Return how much lies between two offsets."""
    total = 0
    for extent, first, last, _, _ in view.between(start, end):
        total += await measure(extent, last + 1) - await measure(extent, first)
    return total


async def reach(measure: Measure, view: View, start: Offset, end: Offset, budget: int) -> Offset:
    """Return the last offset up to which there is no more than a budget."""
    here = start
    for extent, first, last, _, _ in view.between(start, end):
        base = await measure(extent, first)
        low, high = first, last + 1
        while low < high:
            # All of it fits, mostly; then one look is enough.
            middle = high if low == first and high == last + 1 else (low + high + 1) // 2
            if await measure(extent, middle) - base <= budget:
                low = middle
            else:
                high = middle - 1
        if low > first:
            here = view.at(extent.segment, low)
        if low <= last:
            break
        budget -= await measure(extent, low) - base
    return here


async def limited(
    views: Mapping[str, View],
    starts: Mapping[str, Offset],
    ends: Mapping[str, Offset],
    limits: Mapping[Measure | None, int],
) -> dict[str, Offset]:
    """Return ends within the limits, with progress if there is anything to read.

    Args:
        views: What there is.
        starts: Where the batch begins.
        ends: What it could read.
        limits: By what they limit; None limits entries.
    """
    found = dict(ends)
    turn = sum(starts[name].entry for name in ends)
    for measure, limit in limits.items():
        available = {}
        for name, end in found.items():
            view, start = views[name], starts[name]
            if measure is None:
                available[name] = view.entries_between(start, end)
            else:
                available[name] = await between(measure, view, start, end)
        if sum(available.values()) <= limit:
            continue
        for name, share in fair_shares(available, limit, turn).items():
            view, start = views[name], starts[name]
            if share >= available[name]:
                continue
            if measure is None:
                found[name] = view.after_entries(start, share)
            else:
                found[name] = await reach(measure, view, start, found[name], share)
    waiting = sorted(n for n, end in ends.items() if views[n].entries_between(starts[n], end))
    if waiting and all(not views[n].entries_between(starts[n], found[n]) for n in waiting):
        name = waiting[turn % len(waiting)]
        found[name] = views[name].after_entries(starts[name], 1)
    return found
