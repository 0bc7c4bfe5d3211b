"""Rows of tables that are made ledger by ledger."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, TypeAlias

from quorumbook.client.context import Context
from quorumbook.client.reading.listing import metadata_of
from quorumbook.env import logger
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import stripe_mask

_log = logger("client")
#: Times are microseconds since 1970, as Arrow has them.
Row: TypeAlias = dict[str, Any]


async def undamaged(
    context: Context, ids: AsyncGenerator[LedgerId, None]
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield what the metadata say of ledgers.

    Those deleted meanwhile are left out, and so are damaged ones, which are logged.
    """
    damaged: list[MetadataFormatError] = []
    async with contextlib.aclosing(metadata_of(context, ids, damaged)) as found:
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
    """Yield the row of the table of ledgers."""
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


def fragments_of(metadata: LedgerMetadata) -> Iterator[tuple[int, Fragment, int | None]]:
    """Yield number, fragment and last entry of each; None while that is not certain."""
    for number, fragment in enumerate(metadata.fragments):
        is_open = fragment is metadata.last_fragment and not metadata.is_closed
        yield number, fragment, None if is_open else metadata.last_entry_of(fragment)


def fragment_rows(metadata: LedgerMetadata) -> Iterator[Row]:
    """Yield the rows of the table of fragments."""
    for number, fragment, last in fragments_of(metadata):
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
    """Yield the rows of the table of replicas; ``states`` says how bookies are."""
    for number, fragment, last in fragments_of(metadata):
        for position, bookie_id in enumerate(fragment.ensemble):
            yield {
                "ledger_id": metadata.ledger_id,
                "fragment": number,
                "position": position,
                "bookie_id": bookie_id,
                "expected_entries": copies_at(metadata, fragment, last, position),
                "bookie_state": states.get(bookie_id, "down"),
            }
