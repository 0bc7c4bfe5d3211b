"""How far a query is behind: in entries, bytes and time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from quorumbook.env import Clock
from quorumbook.errors import NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.spark.request.offsets import Offset
from quorumbook.spark.rows.views import View, Views

#: Of so many streams, those with the most entries to read, the age is looked up.
_AGED = 4
#: So many, those with the most entries to read, are named.
_NAMED = 20


async def lag_behind(
    views: Views, seen: Mapping[str, View], reached: Mapping[str, Offset], clock: Clock
) -> dict[str, Any]:
    """Return ``entries``, ``bytes`` and ``ms`` that are left to read, and ``streams`` with any.

    ``by_stream`` has the entries of the streams and partitions that are the furthest behind.
    ``ms`` is the age of the oldest entry that is not read, where its writer said when it was made.
    """
    behind = {}
    size = 0
    for name, offset in reached.items():
        view = seen[name]
        count = view.entries_between(offset, view.end)
        if count:
            behind[name] = count
            for extent, first, last, _, _ in view.between(offset, view.end):
                with contextlib.suppress(NoSuchLedgerInMetadataError):  # no reason to fail here
                    sizes = await views.sizes(extent.ledger_id, extent.end_entry)
                    size += sizes.of(last - first + 1)
    oldest_ms = None
    furthest = sorted(behind, key=lambda name: (-behind[name], name))
    for name in furthest[:_AGED]:
        made_ms = await _made_ms(views, seen[name], reached[name])
        if made_ms is not None and (oldest_ms is None or made_ms < oldest_ms):
            oldest_ms = made_ms
    age_ms = 0 if oldest_ms is None else max(0, clock.wall_ms() - oldest_ms)
    return {
        "bytes": size,
        "entries": sum(behind.values()),
        "ms": age_ms,
        "streams": len(behind),
        "by_stream": {name: behind[name] for name in furthest[:_NAMED]},
    }


async def _made_ms(views: Views, view: View, offset: Offset) -> int | None:
    extent, first, *_ = view.between(offset, view.end)[0]
    if not view.birth:
        return None  # entries of a ledger by itself do not say
    try:
        reader = await views.open_ledgers.reader(extent.ledger_id)
        payload = (await reader.read_entry(first)).payload
    except QuorumbookError:
        return None  # the lag is no reason to fail
    return views.made_ms(extent, payload)
