"""One partition that a member of a consumer group hands out: its cursor, and what reads by it."""

from __future__ import annotations

import asyncio

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError
from quorumbook.streams.cursors.cursor import Cursor
from quorumbook.streams.cursors.reader import Progress, Unacknowledged
from quorumbook.streams.partitions.redelivery import Redeliveries
from quorumbook.streams.reading.reader import StreamReader

_log = logger("streams.consumer")


class PartitionShare:
    """One partition that this member hands out."""

    def __init__(
        self, cursor: Cursor, reader: StreamReader, progress: Progress, again: Redeliveries
    ) -> None:
        self.cursor = cursor
        self.reader = reader
        self.source = Unacknowledged(reader, cursor, with_refused=False)
        self.progress = progress
        self.again = again

    async def close(self, pumps: list[asyncio.Task[None]], *, commits: bool) -> None:
        """Hand out nothing more, and leave the cursor where it is or behind what is done."""
        await cancel_and_wait(pumps)
        await self.reader.close()
        try:
            await self.progress.stop(commits=commits)
        except QuorumbookError as error:
            _log.warning("%r is left as it is: %s", self.cursor, error)
