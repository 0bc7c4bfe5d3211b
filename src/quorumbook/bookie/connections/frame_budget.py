"""The bytes of large frames that a bookie may be in the midst of, shared by all connections.

A frame is counted in full from when it is seen to be large until it is complete, together with the
adds that are not answered; who begins one while there is no room is not read until there is, in
the order of their coming.  However much others hold, one at a time is let in, until it is answered.
Who holds room and sends next to nothing while others wait for it is cut.  Small frames are not
counted here: a chunk holds many of them.

What has come of frames of any size has a limit of its own, and ``to_give_up`` says whose go.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

#: Frames up to this come in one chunk, or nearly.
LARGE_BYTES = 256 * 1024
#: Who sends less between two looks while others wait does not keep its room.
_PROGRESS_BYTES = 64 * 1024


class SendingConnection(Protocol):
    """A connection that sends frames."""

    is_open: bool
    #: Bytes of its adds that are not answered.
    add_bytes: int

    @property
    def pending_frame_bytes(self) -> int:
        """What has come of the frame that is incomplete."""

    @property
    def frame_since_ns(self) -> int:
        """When the frame that is incomplete was begun."""

    @property
    def is_read(self) -> bool:
        """Tell whether it could send more."""


_SenderT = TypeVar("_SenderT", bound=SendingConnection)


def to_give_up(
    begun: Iterable[_SenderT], excess_bytes: int, source_of: Callable[[_SenderT], tuple[bool, str]]
) -> Iterator[_SenderT]:
    """Yield those whose frames go, where so many bytes of begun frames are too many.

    Connections that have proven themselves come last.  Of the others, and then of these, the
    address that has most bytes gives its oldest frame up, until few enough are left: many frames
    of one address do not cost another one's.

    Args:
        begun: All connections with a frame that is incomplete.
        excess_bytes: How much has to go.
        source_of: Tells whether a connection has proven itself, and its address.
    """
    frames: dict[tuple[bool, str], list[_SenderT]] = {}
    for connection in sorted(begun, key=lambda one: -one.frame_since_ns):
        frames.setdefault(source_of(connection), []).append(connection)
    sources = [
        (is_proven, -sum(one.pending_frame_bytes for one in there), place)
        for (is_proven, place), there in frames.items()
    ]
    heapq.heapify(sources)
    while sources and excess_bytes > 0:
        is_proven, minus_bytes, place = heapq.heappop(sources)
        there = frames[is_proven, place]
        connection = there.pop()
        size_bytes = connection.pending_frame_bytes
        excess_bytes -= size_bytes
        if there:
            heapq.heappush(sources, (is_proven, minus_bytes + size_bytes, place))
        yield connection


class FrameBudget(Generic[_SenderT]):
    """One bookie's; used on the event loop.

    Args:
        limit_bytes: Of frames and adds together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        #: The size of each frame that has room, and what had come of it at the last look.
        self._sizes: dict[_SenderT, int] = {}
        self._seen: dict[_SenderT, int] = {}
        self._waiting: OrderedDict[_SenderT, int] = OrderedDict()
        self._frame_bytes = 0
        #: Who was let in without room.
        self._extra: _SenderT | None = None

    @property
    def is_wanted(self) -> bool:
        """Tell whether somebody waits for room."""
        return bool(self._waiting)

    def admits(self, connection: _SenderT, size_bytes: int, add_bytes: int) -> bool:
        """Tell whether the rest of a frame of that size may be read; if not, it waits here."""
        if connection in self._sizes:
            return True
        if self._waiting or not self._may_enter(connection, size_bytes, add_bytes):
            self._waiting[connection] = size_bytes
            return False
        self._take_in(connection, size_bytes)
        return True

    def leave(self, connection: _SenderT) -> None:
        """A connection's frame is complete, or the connection is gone."""
        self._waiting.pop(connection, None)
        self._seen.pop(connection, None)
        self._frame_bytes -= self._sizes.pop(connection, 0)
        if connection is self._extra and not connection.is_open:
            self._extra = None

    def let_in(self, add_bytes: int) -> list[_SenderT]:
        """Give room to those who waited longest, and return them."""
        let_in = []
        while self._waiting:
            connection, size_bytes = next(iter(self._waiting.items()))
            if not self._may_enter(connection, size_bytes, add_bytes):
                break
            del self._waiting[connection]
            self._take_in(connection, size_bytes)
            let_in.append(connection)
        return let_in

    def standing_still(self) -> list[_SenderT]:
        """Return who made next to no progress since the last look, while others waited."""
        if not self._waiting:
            self._seen.clear()
            return []
        seen = self._seen
        self._seen = {connection: connection.pending_frame_bytes for connection in self._sizes}
        return [
            connection
            for connection, come_bytes in self._seen.items()
            if connection.is_read
            and connection in seen
            and come_bytes - seen[connection] < _PROGRESS_BYTES
        ]

    def _may_enter(self, connection: _SenderT, size_bytes: int, add_bytes: int) -> bool:
        if self._frame_bytes + add_bytes + size_bytes <= self._limit_bytes:
            return True
        extra = self._extra
        if extra is not None and (extra in self._sizes or extra.add_bytes):
            return False
        self._extra = connection
        return True

    def _take_in(self, connection: _SenderT, size_bytes: int) -> None:
        self._sizes[connection] = size_bytes
        self._frame_bytes += size_bytes
