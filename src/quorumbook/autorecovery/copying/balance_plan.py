"""The plan of a balance: disks are asked, and the placement policy has its say."""

from __future__ import annotations

from collections.abc import AsyncIterator

from quorumbook.autorecovery.copying.balance import BookieDisk, Move, pieces_of, plan
from quorumbook.autorecovery.copying.moving import is_well_placed
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.ids import BookieId, LedgerId
from quorumbook.protocol.v3 import client as v3


async def plan_balance(client: BookKeeper, within: float) -> list[Move]:
    """Plan until the placement policy has nothing against any of the moves."""
    disks = dict([row async for row in _disks(client)])
    pieces = [
        piece
        async for metadata in client.list_ledgers(damaged=[])
        for piece in pieces_of(metadata, disks.keys())
    ]
    judged: dict[tuple[LedgerId, BookieId], bool] = {}
    while True:
        forbidden = {key for key, is_good in judged.items() if not is_good}
        moves = plan(disks, pieces, within, forbidden)
        new = [move for move in moves if (move.ledger_id, move.target) not in judged]
        if not new:
            return moves
        for move in new:
            judged[move.ledger_id, move.target] = await is_well_placed(
                client, move.ledger_id, move.source, move.target
            )


async def _disks(client: BookKeeper) -> AsyncIterator[tuple[BookieId, BookieDisk]]:
    """Yield the disks of the writable bookies."""
    for bookie in sorted((await client.bookies())[0]):
        response = (
            await client_context(client)
            .bookies.control(bookie)
            .request("its disk space", v3.encode_bookie_info)
        )
        if response.total_disk_bytes:
            yield bookie, BookieDisk(response.total_disk_bytes, response.free_disk_bytes or 0)
