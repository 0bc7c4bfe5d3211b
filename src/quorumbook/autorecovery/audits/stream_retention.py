"""Lets go of what streams need not keep, also of streams that nobody writes (T2).

A stream's writer does that too; both may.  What goes and how is ``quorumbook.streams``'s to know.
While it looks at a stream it measures how far its cursors are behind, and once a day it counts
the ledgers that no stream refers to (``stream_numbers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quorumbook.autorecovery.audits.stream_numbers import StreamsFound
from quorumbook.client.client import BookKeeper
from quorumbook.env import logger
from quorumbook.errors import QuorumbookError
from quorumbook.streams import Lag, Namespace, Stream
from quorumbook.streams.errors import (
    AccessDeniedError,
    NamespaceNotBoundError,
    StreamNotFoundError,
)
from quorumbook.streams.retention.retention import Retention
from quorumbook.streams.stream_context import namespace_store, stream_context

_log = logger("autorecovery.streams")
_NS = 1_000_000_000
#: Looking for orphans reads what all ledgers carry.
_ORPHANS_INTERVAL_S = 86_400


class StreamRetention:
    """The retention of all streams of some namespaces, for the length of an auditor's term."""

    def __init__(self, client: BookKeeper, paths: Sequence[str], interval_s: float) -> None:
        """Take the namespaces' nodes; an interval of 0 is never."""
        self._client = client
        self.found = StreamsFound()
        #: When orphans were looked for last, by namespace.
        self._orphans_ns: dict[str, int] = {}
        self._paths = paths
        self._interval_s = interval_s
        #: By namespace and stream: it remembers sizes.
        self._known: dict[tuple[str, str], Retention] = {}

    async def run(self) -> None:
        """Look at all streams again and again, until this is cancelled."""
        try:
            while self._interval_s:
                await asyncio.sleep(self._interval_s)
                for path in self._paths:
                    await self.look(path)
        finally:
            self.found.forget()
            self._orphans_ns.clear()

    async def look(self, path: str) -> None:
        """Look once at the streams of a namespace."""
        try:
            address = f"{self._client.metadata_uri}#{path}"
            async with Namespace.open(address, client=self._client) as namespace:
                await self._look(path, namespace)
                await self._count_orphans(path, namespace)
        except NamespaceNotBoundError:
            return  # nobody has streams there
        except QuorumbookError as error:
            _log.warning("retention of the streams in %s: %s", path, error)

    async def _look(self, path: str, namespace: Namespace) -> None:
        lags: dict[tuple[str, str], Lag] = {}
        seen = set()
        async for name in namespace.streams():
            seen.add((path, name))
            stream = namespace.stream(name)
            await self._enforce(path, name, stream)
            await self._measure(stream, name, lags)
        self.found.set_lags(path, lags)
        for known in [each for each in self._known if each[0] == path and each not in seen]:
            del self._known[known]

    async def _enforce(self, path: str, name: str, stream: Stream) -> None:
        retention = self._known.setdefault((path, name), Retention(stream_context(stream)))
        try:
            report = await retention.enforce()
        except (AccessDeniedError, StreamNotFoundError):
            return  # nobody may, or it was just deleted
        except QuorumbookError as error:
            _log.warning("retention of stream %s in %s: %s", name, path, error)
            return
        self.found.add_deleted(path, report)
        for segment in report.segments:
            _log.info(
                "stream %s in %s: segment %d went: %s", name, path, segment.number, segment.reason
            )

    async def _measure(self, stream: Stream, name: str, lags: dict[tuple[str, str], Lag]) -> None:
        try:
            for cursor in await stream.cursors():
                lags[name, cursor.name] = await cursor.lag()
        except StreamNotFoundError:
            return  # it was just deleted
        except QuorumbookError as error:
            _log.warning("the lag of the cursors of stream %s: %s", name, error)

    async def _count_orphans(self, path: str, namespace: Namespace) -> None:
        now_ns = namespace_store(namespace).env.clock.now_ns()
        last_ns = self._orphans_ns.get(path)
        if last_ns is None or now_ns - last_ns >= _ORPHANS_INTERVAL_S * _NS:
            self.found.set_orphans(path, await namespace.orphans())
            self._orphans_ns[path] = now_ns
