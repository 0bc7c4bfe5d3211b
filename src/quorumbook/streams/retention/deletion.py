"""Deletes a stream: its ledgers, its files, and last the nodes that name them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.moving import check_reach, remove
from quorumbook.streams.tier.nodes import TierNodes


async def delete_all(
    context: StreamContext, others: Sequence[LedgerId], *, forget_files: bool
) -> list[str]:
    """Delete all of a stream whose lock the caller has.

    Args:
        context: The stream's.
        others: Ledgers that go with it, and are no segments.
        forget_files: Delete it also if files are out of reach, which then may stay.

    Returns:
        Where files may have stayed.

    Raises:
        FilesUnavailableError: files are out of reach; nothing was deleted.
    """
    nodes = context.nodes
    numbers = await TierNodes(nodes).numbers()
    if not forget_files:
        await check_reach(context, numbers)
    # Ledgers first: who is interrupted finds what is left in the segments' nodes.
    state = await nodes.read_state()
    ledgers = [*(segment.ledger_id for segment in await nodes.segments()), *others]
    if state.allocated is not None:
        ledgers.append(state.allocated)
    for ledger_id in ledgers:
        with contextlib.suppress(NoSuchLedgerInMetadataError):
            await context.client.delete_ledger(ledger_id)
    left = [await remove(context, number, forgets=forget_files) for number in numbers]
    await nodes.delete()
    return [location for location in left if location]
