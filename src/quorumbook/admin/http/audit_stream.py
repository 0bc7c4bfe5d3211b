"""The audit log as a stream of the cluster itself: a record of JSON for each change.

A request does not wait for its record, and goes on where the cluster takes none: what could not be
written waits, ten thousand changes at most, and is tried again.  Records have a producer's numbers,
so one whose answer was lost is not written twice, whoever else writes the stream meanwhile.  What
strangers try is in the log alone, or they could fill the cluster's disks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque

from quorumbook.admin.access.audit import AuditedChange
from quorumbook.admin.http.problems import problem_of
from quorumbook.admin.http.streams_held import HeldStreams
from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait

_log = logger("admin.audit_stream")
NAMESPACE = "/streams"
_WAITING_MAX = 10_000
_BATCH = 500
_AGAIN_S = 5.0
#: So long the end of the server waits for what is not written yet.
_END_S = 5.0


class AuditStream:
    """Writes changes into a stream, which is made if it is missing.

    Args:
        streams: Whose namespaces and writers are used.
        name: The stream's, in the namespace ``/streams``.
        server: Who writes, for whoever reads the records of several servers.
    """

    def __init__(self, streams: HeldStreams, name: str, server: str) -> None:
        self._streams = streams
        self._name = name
        self._server = server
        #: Another one for each start: two servers may have one name.
        self._producer = f"audit of {server} {uuid.uuid4().hex}"
        #: The producer's number of the first change that waits.
        self._number = 0
        self._waiting: deque[AuditedChange] = deque()
        self._lost = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, change: AuditedChange) -> None:
        """Have a change written soon."""
        if len(self._waiting) >= _WAITING_MAX:
            self._lost += 1
            return
        self._waiting.append(change)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._waiting[n] for n in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._write(batch)
            except Exception as error:
                is_bug = problem_of(error) is None
                _log.log(
                    logging.ERROR if is_bug else logging.WARNING,
                    "%d changes are not in the stream %s yet: %s",
                    len(self._waiting), self._name, error, exc_info=is_bug,
                )  # fmt: skip
                await asyncio.sleep(_AGAIN_S)
                continue
            self._number += len(batch)
            for _ in batch:
                self._waiting.popleft()
            if self._lost:
                _log.error(
                    "%d changes are in no record of the stream %s: too many waited",
                    self._lost, self._name,
                )  # fmt: skip
                self._lost = 0

    async def _write(self, changes: list[AuditedChange]) -> None:
        namespace = await self._streams.namespace(NAMESPACE, bind=True)
        await namespace.create_stream(self._name, exist_ok=True)
        stream = namespace.stream(self._name)
        payloads = [
            json.dumps({**change.row(), "server": self._server}).encode() for change in changes
        ]
        async with self._streams.writing(NAMESPACE, stream, self._producer) as writer:
            await writer.append_batch(payloads, producer_seq=self._number)
            await writer.flush()

    async def close(self) -> None:
        """Wait a little for what is not written yet."""
        if self._task is None or self._task.done():
            return
        try:
            async with patience.timeout(_END_S):
                await asyncio.shield(self._task)
        except TimeoutError:
            await cancel_and_wait([self._task])
            _log.error(
                "%d changes are in no record of the stream %s",
                len(self._waiting) + self._lost, self._name,
            )  # fmt: skip
