"""Ledgers that one process creates and another one writes: a mark says that nobody has begun.

Who takes the mark off is the ledger's writer.  The metadata store lets one do that.  The ledgers
of a stream wait for their first entry too: each is made before the one in front of it is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from quorumbook.client.context import Context, check_password
from quorumbook.errors import LedgerClosedError, MetadataVersionConflict
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState

#: In the custom metadata of a ledger that waits for its writer.
UNWRITTEN = "quorumbook.unwritten"
#: The ``component`` that the custom metadata of a stream's ledger names.
STREAM_COMPONENT = b"stream"


def waits(custom_metadata: Mapping[str, bytes]) -> bool:
    """Tell whether it may be long until a new ledger's first entry is written."""
    is_of_stream = custom_metadata.get("component") == STREAM_COMPONENT
    return is_of_stream or UNWRITTEN in custom_metadata


def without_mark(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return the metadata of a ledger that waits for no writer."""
    custom = {k: v for k, v in metadata.custom_metadata.items() if k != UNWRITTEN}
    return dataclasses.replace(metadata, custom_metadata=custom)


async def claim(
    context: Context, ledger_id: LedgerId, password: bytes
) -> tuple[LedgerMetadata, int]:
    """Take the mark off; return the metadata and their version.

    Raises:
        UnauthorizedError: wrong password.
        LedgerClosedError: the ledger has, or had, a writer, or was recovered.
    """
    metadata, version = await context.ledgers.read(ledger_id)
    check_password(metadata, password)
    if metadata.state is not LedgerState.OPEN or UNWRITTEN not in metadata.custom_metadata:
        raise _has_writer(ledger_id)
    metadata = without_mark(metadata)
    try:
        return metadata, await context.ledgers.write_alone(metadata, version)
    except MetadataVersionConflict as conflict:
        raise _has_writer(ledger_id) from conflict


def _has_writer(ledger_id: LedgerId) -> LedgerClosedError:
    return LedgerClosedError(
        f"ledger {ledger_id} has, or had, a writer; a ledger is written by one only",
        ledger_id=ledger_id,
    )
