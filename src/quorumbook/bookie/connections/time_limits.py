"""How long a connection bears with its peer.

It gives a peer up that never reads its answers, begins a frame and never finishes it, does not
authenticate, or does not close; one that asks for nothing may be closed, or lose its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from quorumbook.bookie.connections.admission import AdmissionGate
from quorumbook.bookie.connections.home import Home
from quorumbook.env import logger

_log = logger("bookie.connection")
#: Who asks for nothing for so long, looked at every second, rests: another may get its place.
_LOOKS_OF_REST = 5


class TimeLimits:
    """The part of ``BookieConnection`` that looks at the clock; the connection has the state."""

    __slots__ = (
        "_has_asked",
        "_idle_since_ns",
        "_may_go",
        "_progress_ns",
        "_quiet_looks",
        "_taken_bytes",
    )

    _owner: Home[Any]
    _transport: asyncio.Transport
    _answers_bytes: int
    _close_by_ns: int
    _closing: bool
    _frame_since_ns: int
    _has_asked: bool
    _idle_since_ns: int
    _may_go: bool
    _paused_for: int
    _pending_bytes: int
    _progress_ns: int
    _quiet_looks: int
    _sent_bytes: int
    _taken_bytes: int
    add_bytes: int
    gate: AdmissionGate | None
    long_polls: dict[object, None]
    peer: str
    read_bytes: int
    reads: deque[Any]
    unsettled: int

    if TYPE_CHECKING:

        @property
        def waits_for_peer(self) -> bool: ...  # noqa: D102 - the connection has it
        def close(self) -> None: ...  # noqa: D102 - likewise
        def give_up(self, why: str) -> None: ...  # noqa: D102 - likewise
        def _give_up_slow(self, why: str) -> None: ...

    def check(self, now_ns: int) -> None:
        """Give the peer up if it is over a time limit; called every now and then."""
        options = self._owner.options
        limit_ns = int(options.answer_timeout_s * 1e9)
        if self._closing:
            if now_ns > self._close_by_ns:
                self.give_up("it does not let itself be closed")
            return
        taken_bytes = self._sent_bytes - self._transport.get_write_buffer_size()
        takes = taken_bytes > self._taken_bytes
        if takes:
            self._taken_bytes = taken_bytes
            self._progress_ns = now_ns
        elif self.waits_for_peer and now_ns - self._progress_ns > limit_ns:
            self._give_up_slow("it does not read its answers")
            return
        if self.gate is not None and self.gate.is_overdue(now_ns):
            self._give_up_slow("it has not authenticated, or not switched to TLS, in time")
            return
        since_ns = self._frame_since_ns
        frame_limit_ns = int(options.frame_timeout_s * 1e9)
        if since_ns and not self._paused_for and now_ns - since_ns > frame_limit_ns:
            self._give_up_slow("it began a frame and never finished it")
            return
        is_at_work = self._has_asked or takes or self._is_at_work
        self._has_asked = False
        if is_at_work or self.long_polls:
            self._idle_since_ns = now_ns
        elif options.idle_timeout_s:
            self._check_idle(now_ns)
        self._quiet_looks = 0 if is_at_work else self._quiet_looks + 1
        if self._quiet_looks >= _LOOKS_OF_REST and not self._may_go:
            self._may_go = True
            self._owner.places.rest(self)

    def _check_idle(self, now_ns: int) -> None:
        owner = self._owner
        if now_ns - self._idle_since_ns > int(owner.options.idle_timeout_s * 1e9):
            owner.metrics.connections_idle += 1
            _log.info("closing the connection of %s: it is idle", self.peer)
            self.close()

    @property
    def _is_at_work(self) -> bool:
        """Tell whether something is under way for its peer, or its peer is in the midst of asking.

        Answers that it does not take, and polls that wait for news, are no work.
        """
        return bool(
            self.add_bytes
            or self.unsettled
            or self.reads
            or self.read_bytes
            or self._pending_bytes
            or self._paused_for
            or self._answers_bytes
        )

    @property
    def is_read(self) -> bool:
        """Tell whether its peer could send more: no limit stands in the way."""
        return not self._paused_for

    @property
    def frame_since_ns(self) -> int:
        """When the frame that is incomplete was begun; 0 if there is none."""
        return self._frame_since_ns

    @property
    def pending_frame_bytes(self) -> int:
        """Bytes of the frame that is incomplete; none of a connection that is being cut."""
        return 0 if self._closing else self._pending_bytes
