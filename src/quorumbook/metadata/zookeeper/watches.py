"""The watches of a session: who waits for which node.

A server forgets a watch when it fires and when the connection ends; then the session leaves all
of them again, as of the last change it has seen, and the server fires those that missed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from quorumbook.env import logger
from quorumbook.metadata.store import Watch
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.jute import EventKind

_log = logger("metadata.zookeeper")


class ServerWatchKind(Enum):
    """Which of a server's three lists a watch is on."""

    DATA = 0
    EXISTS = 1
    CHILDREN = 2


_NODE_WATCHES = (ServerWatchKind.DATA, ServerWatchKind.EXISTS)
_FIRED_BY: dict[int, tuple[ServerWatchKind, ...]] = {
    EventKind.CREATED: _NODE_WATCHES,
    EventKind.DATA_CHANGED: _NODE_WATCHES,
    EventKind.DELETED: tuple(ServerWatchKind),
    EventKind.CHILDREN_CHANGED: (ServerWatchKind.CHILDREN,),
}


class ServerWatches:
    """Callbacks by kind and path; paths are the server's."""

    def __init__(self) -> None:
        self._waiting: dict[ServerWatchKind, dict[str, dict[Watch, None]]] = {
            kind: {} for kind in ServerWatchKind
        }

    def add(self, kind: ServerWatchKind, path: str, watch: Watch) -> None:
        """Remember a watch that the server has, too."""
        self._waiting[kind].setdefault(path, {})[watch] = None

    def remove(self, watch: Watch) -> None:
        """Forget a callback wherever it waits."""
        for by_path in self._waiting.values():
            for path in [path for path, watches in by_path.items() if watch in watches]:
                del by_path[path][watch]
                if not by_path[path]:
                    del by_path[path]

    def clear(self) -> None:
        """Forget all."""
        for by_path in self._waiting.values():
            by_path.clear()

    def fire(self, kind: int, path: str) -> None:
        """Call everybody whom an event concerns, each once."""
        watches: dict[Watch, None] = {}
        for each in _FIRED_BY.get(kind, ()):
            watches |= self._waiting[each].pop(path, {})
        for watch in watches:
            try:
                watch()
            except Exception:
                # One watcher's mistake must not keep the news from the others.
                _log.exception("a metadata watch failed")

    def records(self, zxid: int, size_bytes: int) -> Iterator[bytes]:
        """Yield the requests that leave all watches again, as of a zxid."""
        batch: list[list[str]] = [[], [], []]
        size = 0
        for kind in ServerWatchKind:
            for path in list(self._waiting[kind]):
                batch[kind.value].append(path)
                size += len(path)
                if size >= size_bytes:
                    yield jute.set_watches_record(zxid, *batch)
                    batch, size = [[], [], []], 0
        if size:
            yield jute.set_watches_record(zxid, *batch)
