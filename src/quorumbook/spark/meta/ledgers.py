"""Rows of ``meta:`` that are made ledger by ledger, which many tasks share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from quorumbook.autorecovery.copying.verified_reads import listed_entries
from quorumbook.client.context import client_context
from quorumbook.client.reading.listing import metadata_of as listed_metadata
from quorumbook.env import logger
from quorumbook.errors import MetadataFormatError, QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import stripe_mask
from quorumbook.spark.pool import ClusterClient

_log = logger("spark")
Row: TypeAlias = dict[str, Any]


async def metadata_of(
    cluster: ClusterClient, ids: Sequence[LedgerId]
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield what the metadata say of ledgers.

    Those deleted meanwhile are left out, and so are damaged ones, which are logged.
    """

    async def each() -> AsyncGenerator[LedgerId, None]:
        for ledger_id in ids:
            yield ledger_id

    damaged: list[MetadataFormatError] = []
    found = listed_metadata(client_context(cluster.client), each(), damaged)
    async with contextlib.aclosing(found):
        async for metadata in found:
            yield metadata
    for error in damaged:
        _log.error("left out of the ledgers: %s", error)


def owner_of(metadata: LedgerMetadata) -> str | None:
    """Return which stream or application a ledger says it was made for."""
    custom = metadata.custom_metadata
    found = custom.get("stream") or custom.get("application")
    return None if found is None else found.decode(errors="backslashreplace")


def ledger_rows(metadata: LedgerMetadata) -> Iterator[Row]:
    """Yield the row of ``meta:ledgers``."""
    is_closed = metadata.is_closed
    yield {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.name.lower(),
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "digest": None if metadata.digest_type is None else metadata.digest_type.name.lower(),
        "ctime": None if metadata.ctime_ms is None else metadata.ctime_ms * 1000,
        "last_entry": metadata.last_entry_id if is_closed else None,
        "length": metadata.length if is_closed else None,
        "fragments": len(metadata.fragments),
        "custom_metadata": list(metadata.custom_metadata.items()),
        "owner": owner_of(metadata),
        "metadata_format": metadata.format_version,
    }


def _fragments(metadata: LedgerMetadata) -> Iterator[tuple[int, Fragment, int | None]]:
    for number, fragment in enumerate(metadata.fragments):
        is_open = fragment is metadata.last_fragment and not metadata.is_closed
        yield number, fragment, None if is_open else metadata.last_entry_of(fragment)


def fragment_rows(metadata: LedgerMetadata) -> Iterator[Row]:
    """Yield the rows of ``meta:fragments``."""
    for number, fragment, last in _fragments(metadata):
        yield {
            "ledger_id": metadata.ledger_id,
            "fragment": number,
            "first_entry": fragment.first_entry_id,
            "last_entry": last,
            "ensemble": list(fragment.ensemble),
            "is_closed": last is not None,
        }


def copies_at(
    metadata: LedgerMetadata, fragment: Fragment, last: int | None, position: int
) -> int | None:
    """Return how many entries a bookie must hold of a fragment; None of an open one."""
    if last is None:
        return None
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    # Who holds what repeats after as many entries as there are bookies.
    periods, rest = divmod(last + 1 - fragment.first_entry_id, size)
    first = fragment.first_entry_id + periods * size
    tail = stripe_mask(position, first, rest, size, quorum).bit_count() if rest else 0
    return periods * quorum + tail


def replica_rows(metadata: LedgerMetadata, states: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of ``meta:replicas``; ``states`` says how bookies are."""
    for number, fragment, last in _fragments(metadata):
        for position, bookie_id in enumerate(fragment.ensemble):
            yield {
                "ledger_id": metadata.ledger_id,
                "fragment": number,
                "position": position,
                "bookie_id": bookie_id,
                "expected_entries": copies_at(metadata, fragment, last, position),
                "bookie_state": states.get(bookie_id, "down"),
            }


async def entry_rows(cluster: ClusterClient, metadata: LedgerMetadata) -> list[Row]:
    """Return the rows of ``meta:entries``: what each bookie itself says that it holds."""
    expected: dict[str, int | None] = {}
    for _, fragment, last in _fragments(metadata):
        for position, bookie_id in enumerate(fragment.ensemble):
            copies = copies_at(metadata, fragment, last, position)
            before = expected.get(bookie_id, 0)
            expected[bookie_id] = None if copies is None or before is None else before + copies
    return [
        await _listed(cluster, metadata.ledger_id, bookie_id, count)
        for bookie_id, count in expected.items()
    ]


async def _listed(
    cluster: ClusterClient, ledger_id: LedgerId, bookie_id: str, expected: int | None
) -> Row:
    row: Row = {"ledger_id": ledger_id, "bookie_id": bookie_id, "expected_entries": expected}
    try:
        runs = await listed_entries(client_context(cluster.client), ledger_id, bookie_id)
    except QuorumbookError as error:
        return row | {"error": str(error)}
    if runs is None:
        return row | {"error": "it cannot list entries"}
    return row | {
        "entries": sum(last - first + 1 for first, last in runs),
        "ranges": [{"first": first, "last": last} for first, last in runs],
    }
