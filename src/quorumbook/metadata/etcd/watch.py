"""News from etcd: one stream on which a store hears of changes at the nodes it watches.

For each watched path etcd watches its key and, if its children are of interest, deletions among
their keys (their creation changes the node's own key).  The news is only that something happened
there; the store looks and compares (``tree.WatchTable``).  A watch begins behind the revision of
the read it came with, also on a stream that replaces a broken one, so no change is missed; where
etcd has forgotten that revision, the store is told to look.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.etcd.client import (
    EVENT_DELETE,
    FILTER_NO_PUT,
    WATCH,
    EtcdClient,
    messages,
)
from quorumbook.metadata.etcd.rows import children_range, node_key, session_key

_log = logger("metadata")
_PAUSE_S = 0.2


@dataclass(slots=True)
class _Spot:
    """One range of keys that etcd watches."""

    path: str | None
    request: Any


class EtcdWatcher:
    """Keeps the stream open.

    Args:
        client: where etcd is.
        on_changed: takes paths at which something may have changed.
        on_session_over: called when the session's key was deleted.
    """

    def __init__(
        self,
        client: EtcdClient,
        on_changed: Callable[[Iterable[str]], None],
        on_session_over: Callable[[int], None],
    ) -> None:
        self._client = client
        self._on_changed = on_changed
        self._on_session_over = on_session_over
        #: The spot of a path's own key, and that of its children.
        self._numbers: dict[tuple[str, bool], int] = {}
        self._spots: dict[int, _Spot] = {}
        self._session: tuple[int, int] | None = None
        self._counter = itertools.count(1)
        self._outbox: asyncio.Queue[Any] | None = None
        self._task = asyncio.ensure_future(self._run())

    def want(self, path: str, revision: int, *, with_children: bool) -> None:
        """Watch a node from behind a revision on, if that is not done yet."""
        self._want_spot(path, False, messages["WatchCreateRequest"](key=node_key(path)), revision)
        if with_children:
            first, end = children_range(path)
            request = messages["WatchCreateRequest"](
                key=first, range_end=end, filters=[FILTER_NO_PUT]
            )
            self._want_spot(path, True, request, revision)

    def forget(self, path: str, *, only_children: bool = False) -> None:
        """Watch a node, or its children, no longer."""
        for of_children in (True,) if only_children else (True, False):
            number = self._numbers.pop((path, of_children), None)
            if number is not None:
                self._drop(number)

    def follow_session(self, session_id: int, revision: int) -> None:
        """Watch the key of this session instead of the one before."""
        if self._session is not None:
            self._drop(self._session[1])
        request = messages["WatchCreateRequest"](
            key=session_key(session_id), filters=[FILTER_NO_PUT]
        )
        self._session = (session_id, self._add(None, request, revision))

    async def stop(self) -> None:
        """End the stream."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _want_spot(self, path: str, of_children: bool, request: Any, revision: int) -> None:
        if (path, of_children) not in self._numbers:
            self._numbers[path, of_children] = self._add(path, request, revision)

    def _add(self, path: str | None, request: Any, revision: int) -> int:
        request.watch_id = next(self._counter)
        request.start_revision = revision + 1
        self._spots[request.watch_id] = _Spot(path, request)
        self._send(messages["WatchRequest"](create_request=request))
        return int(request.watch_id)

    def _drop(self, number: int) -> None:
        del self._spots[number]
        cancel = messages["WatchCancelRequest"](watch_id=number)
        self._send(messages["WatchRequest"](cancel_request=cancel))

    def _send(self, request: Any) -> None:
        if self._outbox is not None:
            self._outbox.put_nowait(request)

    async def _run(self) -> None:
        while True:
            try:
                async with self._client.stream(WATCH) as stream:
                    self._outbox = asyncio.Queue()
                    for spot in self._spots.values():
                        self._send(messages["WatchRequest"](create_request=spot.request))
                    writer = asyncio.ensure_future(self._write(stream, self._outbox))
                    try:
                        await self._read(stream)
                    finally:
                        await cancel_and_wait([writer])
            except MetadataUnavailableError as error:
                _log.debug("metadata watches: %s", error)
            except Exception:
                # Whatever it is, watches must go on.
                _log.exception("metadata watches")
            self._outbox = None
            await asyncio.sleep(_PAUSE_S)

    @staticmethod
    async def _write(stream: Any, outbox: asyncio.Queue[Any]) -> None:
        while True:
            await stream.write(await outbox.get())

    async def _read(self, stream: Any) -> None:
        async for response in stream:
            spot = self._spots.get(response.watch_id)
            if response.canceled and response.cancel_reason and not response.compact_revision:
                self._client.authenticate_again()
                raise MetadataUnavailableError(f"a watch was refused: {response.cancel_reason}")
            if spot is None:
                continue
            if response.canceled:
                self._renew(spot, response)
            elif spot.path is not None:
                if response.events:
                    self._on_changed([spot.path])
            elif any(event.type == EVENT_DELETE for event in response.events):
                assert self._session is not None
                self._on_session_over(self._session[0])

    def _renew(self, spot: _Spot, response: Any) -> None:
        """Watch on from where etcd still can, and look what happened before."""
        if not response.compact_revision:
            raise MetadataUnavailableError("a watch was cancelled")
        request = messages["WatchCreateRequest"]()
        request.CopyFrom(spot.request)
        del self._spots[request.watch_id]
        revision = max(response.header.revision, response.compact_revision)
        number = self._add(spot.path, request, revision)
        if spot.path is None:
            assert self._session is not None
            self._session = (self._session[0], number)
            self._on_changed([])
        else:
            is_of_children = bool(request.range_end)
            self._numbers[spot.path, is_of_children] = number
            self._on_changed([spot.path])
