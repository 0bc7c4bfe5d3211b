"""``audit``: every copy of every settled entry, read on its bookie, verified and compared.

A unit is a range of one ledger of some dozens of MiB; what is wrong with which copy is
``ledger.audit``'s to say.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, MutableSequence
from dataclasses import asdict
from typing import Any

from quorumbook.autorecovery.audits.copies import closed_fragments
from quorumbook.autorecovery.audits.replica_audit import audit_range
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.audit import CopyFinding, Severity
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.options import AuditOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient

_UNIT_BYTES = 64 * 1024 * 1024
#: Where nobody knows how large entries are: in ledgers that are being written.
_UNIT_ENTRIES = 65_536
_GUESSED_ENTRY_BYTES = 1024


async def plan(client: BookKeeper, options: AuditOptions) -> JobPlan:
    """Return the ranges to audit."""
    units = []
    damaged: list[MetadataFormatError] = []
    async for metadata in _chosen(client, options.ledger_ids, damaged):
        found = units_of(metadata, options.bookie)
        units += [unit for unit in found if _is_drawn(unit, options.sample_percent)]
    units += [
        Unit(f"{error.ledger_id}:?", 0, {"ledger_id": error.ledger_id, "unreadable": str(error)})
        for error in damaged
    ]
    return JobPlan("audit", units, work, has_findings, options.fail_fast)


def _is_drawn(unit: Unit, percent: float) -> bool:
    return random.Random(unit.key).random() * 100 < percent


async def _chosen(
    client: BookKeeper, ledgers: Collection[LedgerId], damaged: MutableSequence[MetadataFormatError]
) -> AsyncIterator[LedgerMetadata]:
    if ledgers:
        for ledger_id in sorted(ledgers):
            yield await client.ledger_metadata(ledger_id)
        return
    async for metadata in client.list_ledgers(damaged=damaged):
        yield metadata


def units_of(metadata: LedgerMetadata, bookie: BookieId = "") -> list[Unit]:
    """Cut a ledger's settled entries into ranges; empty ones count as one, for what lies beyond."""
    fragments = list(closed_fragments(metadata))
    if bookie and not any(bookie in fragment.ensemble for fragment in fragments):
        return []
    if not fragments:
        return []
    last = fragments[-1].last_entry_id
    entry_bytes = _GUESSED_ENTRY_BYTES
    if metadata.is_closed:
        entry_bytes = max(1, metadata.length // (last + 1))
    step = max(1, min(_UNIT_ENTRIES, _UNIT_BYTES // entry_bytes))
    units = []
    for first in range(0, last + 1, step):
        end = min(last, first + step - 1)
        size = (end - first + 1) * entry_bytes * metadata.write_quorum_size
        ledger_id = metadata.ledger_id
        arguments = {"ledger_id": ledger_id, "first": first, "last": end}
        units.append(Unit(f"{ledger_id}:{first}-{end}", size, arguments))
    return units


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Audit one range; of a ledger whose metadata cannot be understood, say that."""
    if "unreadable" in arguments:
        finding = CopyFinding(
            "unreadable_metadata", arguments["ledger_id"], 0, 0, 0, detail=arguments["unreadable"]
        )
        return {"entries": 0, "copies": 0, "read_bytes": 0, "findings": [_row(finding)]}
    audited = await audit_range(
        client_context(cluster.client),
        arguments["ledger_id"],
        arguments["first"],
        arguments["last"],
        pace.of,
    )
    return {
        "entries": audited.entries,
        "copies": audited.copies,
        "read_bytes": audited.read_bytes,
        "findings": [_row(finding) for finding in audited.findings],
    }


def _row(finding: CopyFinding) -> dict[str, Any]:
    return {"severity": finding.severity.value, **asdict(finding)}


def has_findings(result: Values) -> bool:
    """Tell whether a range has more than notes."""
    return any(row["severity"] != Severity.NOTE.value for row in result["findings"])


def findings(report: Report) -> list[dict[str, Any]]:
    """Return the findings of all ranges, by ledger and entry."""
    rows = [row for result in report.results.values() for row in result["findings"]]
    order = ("ledger_id", "first_entry_id", "kind", "bookie_id")
    return sorted(rows, key=lambda row: tuple(row[name] for name in order))


def conclude(report: Report) -> None:
    """Sum the results up."""
    rows = findings(report)
    serious = [row for row in rows if row["severity"] != Severity.NOTE.value]
    report.findings = len(serious)
    for name in ("entries", "copies", "read_bytes"):
        report.summary[name] = sum(result[name] for result in report.results.values())
    report.summary["found"] = dict(Counter(row["kind"] for row in rows))
    report.summary["damaged_ledgers"] = len({row["ledger_id"] for row in serious})
    report.summary["rows"] = rows
