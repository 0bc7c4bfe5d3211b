"""The metadata of all ledgers, some at a time; a damaged one costs itself alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableSequence

from quorumbook.client.context import Context
from quorumbook.client.waiting.outcomes import limit
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.ledgers import Outcomes, walk


def metadata_of(
    context: Context,
    ledger_ids: AsyncGenerator[LedgerId, None],
    errors: MutableSequence[MetadataFormatError],
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield the metadata of ledgers in order, those left out that were deleted meanwhile.

    Args:
        context: Of the client.
        ledger_ids: Which.
        errors: Takes an error for each ledger whose metadata cannot be understood.
    """

    async def read(ids: list[LedgerId]) -> Outcomes:
        async with limit(context.options.operation_timeout_s, "listing ledgers"):
            return await context.ledgers.read_many(ids)

    return walk(ledger_ids, read, errors)
