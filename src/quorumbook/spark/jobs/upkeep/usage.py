"""``usage``: who uses how much storage, on which bookies; from metadata alone.

Bytes of a ledger are spread over the bookies by the entries that each must hold.  What is being
written has no length in the metadata yet: such ledgers are counted, their bytes are not.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import Any

from quorumbook.client.client import BookKeeper
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import stripe_mask
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.ledger_chunks import ledger_chunks, ledgers_of
from quorumbook.spark.jobs.options import UsageOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient

_COUNTS = ("ledgers", "open_ledgers", "entries", "bytes", "copies", "stored_bytes")
_DAY_MS = 86_400_000


async def plan(client: BookKeeper, options: UsageOptions) -> JobPlan:
    """Return the ledgers to count."""
    units = [
        Unit(unit.key, unit.size_bytes, {"group_by": options.group_by, **unit.arguments})
        for unit in await ledger_chunks(client)
    ]
    return JobPlan("usage", units, work)


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Count some ledgers."""
    del pace
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    lost: Counter[str] = Counter()
    unreadable = 0
    writable, read_only = await cluster.client.bookies()
    registered = writable | read_only
    async for _, metadata in ledgers_of(cluster.client, arguments["ids"]):
        if isinstance(metadata, str):
            unreadable += 1
            continue
        shares = shares_of(metadata)
        for bookie_id, share in shares.items():
            if bookie_id not in registered:
                lost.update(share)
        whole = {
            "ledgers": 1,
            "open_ledgers": int(not metadata.is_closed),
            "entries": metadata.last_entry_id + 1,
            "bytes": metadata.length,
            "copies": sum(share["copies"] for share in shares.values()),
            "stored_bytes": sum(share["stored_bytes"] for share in shares.values()),
        }
        if arguments["group_by"] == "bookie":
            for bookie_id, share in shares.items():
                groups[bookie_id].update({**whole, **share})
        else:
            groups[_group(metadata, arguments["group_by"])].update(whole)
    return {
        "groups": {name: dict(counts) for name, counts in groups.items()},
        "on_lost_bookies": dict(lost),
        "unreadable": unreadable,
    }


def _group(metadata: LedgerMetadata, group_by: str) -> str:
    custom = metadata.custom_metadata
    if group_by == "stream":
        if "stream" not in custom:
            return ""
        return f"{_text(custom.get('namespace', b''))}/{_text(custom['stream'])}"
    if group_by == "application":
        return _text(custom.get("application", b""))
    if group_by == "day":
        seconds = (metadata.ctime_ms or 0) // _DAY_MS * _DAY_MS // 1000
        return time.strftime("%Y-%m-%d", time.gmtime(seconds))
    return metadata.state.name.lower()


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def shares_of(metadata: LedgerMetadata) -> dict[str, Counter[str]]:
    """Return the copies that each bookie must hold of a ledger, and about their bytes."""
    entries = metadata.last_entry_id + 1
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    for fragment in metadata.fragments:
        if not metadata.is_closed:
            for bookie_id in fragment.ensemble:
                found[bookie_id]["copies"] += 0
            continue
        count = metadata.last_entry_of(fragment) + 1 - fragment.first_entry_id
        # The pattern of who holds what repeats after as many entries as there are bookies.
        periods, rest = divmod(max(0, count), size)
        for position, bookie_id in enumerate(fragment.ensemble):
            first = fragment.first_entry_id + periods * size
            copies = periods * quorum
            copies += stripe_mask(position, first, rest, size, quorum).bit_count() if rest else 0
            found[bookie_id]["copies"] += copies
    for share in found.values():
        share["stored_bytes"] = metadata.length * share["copies"] // max(1, entries)
    return dict(found)


def conclude(report: Report) -> None:
    """Sum the results up: groups by what they store, and how unequal they are."""
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    lost: Counter[str] = Counter()
    for result in report.results.values():
        lost.update(result["on_lost_bookies"])
        for name, counts in result["groups"].items():
            groups[name].update(counts)
    rows: list[dict[str, Any]] = [
        {"group": name, **{count: counts[count] for count in _COUNTS}}
        for name, counts in sorted(groups.items(), key=lambda g: (-g[1]["stored_bytes"], g[0]))
    ]
    stored = [row["stored_bytes"] for row in rows]
    mean = sum(stored) / len(stored) if stored else 0
    report.summary["skew"] = round(max(stored) / mean, 3) if mean else 1.0
    report.summary["copies_on_lost_bookies"] = lost["copies"]
    report.summary["bytes_on_lost_bookies"] = lost["stored_bytes"]
    report.summary["unreadable_ledgers"] = sum(
        result["unreadable"] for result in report.results.values()
    )
    report.summary["rows"] = rows
