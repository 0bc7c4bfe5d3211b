"""How long a connection bears with its peer.

A peer is given up that never reads its answers, begins a frame and never finishes it, or does not
let itself be closed; one that asks for nothing may be closed, or lose its place.  How long it may
take to authenticate is in ``admission.py``.
"""

from __future__ import annotations

from enum import Enum

from quorumbook.bookie.options import BookieOptions

#: Who asks for nothing for so long, looked at every second, rests: another may get its place.
_LOOKS_OF_REST = 5


class PeerVerdict(Enum):
    """What becomes of a peer; of one that is given up, why."""

    STAYS = "it is at work"
    RESTS = "it asks for nothing"
    IDLE = "it is idle"
    UNREAD = "it does not read its answers"
    UNFINISHED = "it began a frame and never finished it"
    UNCLOSED = "it does not let itself be closed"


class TimeLimits:
    """What one connection's peer has done by when."""

    __slots__ = (
        "_close_by_ns", "_idle_since_ns", "_options", "_progress_ns", "_quiet_looks",
        "_taken_bytes", "frame_since_ns",
    )  # fmt: skip

    def __init__(self, options: BookieOptions, now_ns: int) -> None:
        """Begin with a peer that has just connected."""
        self._options = options
        self._idle_since_ns = now_ns
        #: How often it was looked at since something was done for it.
        self._quiet_looks = 0
        self._close_by_ns: int | None = None
        self._taken_bytes = 0
        self._progress_ns = 0
        #: When the frame that is incomplete was begun; 0 if there is none.
        self.frame_since_ns = 0

    def take_by(self, now_ns: int) -> None:
        """The peer has answers to take from now on."""
        self._progress_ns = now_ns

    def close_by(self, now_ns: int) -> None:
        """The peer has been told the end."""
        self._close_by_ns = now_ns + int(self._options.answer_timeout_s * 1e9)

    def finish_frame_by(self, now_ns: int) -> None:
        """The peer has a frame to finish, from now on."""
        self.frame_since_ns = now_ns

    def has_finished_frame(self) -> None:
        """The peer has no frame to finish."""
        self.frame_since_ns = 0

    def look(
        self, now_ns: int, taken_bytes: int, *,
        must_take: bool, may_send: bool, is_at_work: bool, has_polls: bool,
    ) -> PeerVerdict:  # fmt: skip
        """Return what becomes of the peer; called every now and then.

        Args:
            now_ns: The time.
            taken_bytes: How much of its answers it has taken so far.
            must_take: It gets no more answers before it takes some.
            may_send: No limit keeps it from sending.
            is_at_work: Something is under way for it, or it is in the midst of asking.
            has_polls: It waits for news.
        """
        if self._close_by_ns is not None:
            return PeerVerdict.UNCLOSED if now_ns > self._close_by_ns else PeerVerdict.STAYS
        options = self._options
        takes = taken_bytes > self._taken_bytes
        if takes:
            self._taken_bytes = taken_bytes
            self._progress_ns = now_ns
        elif must_take and now_ns - self._progress_ns > int(options.answer_timeout_s * 1e9):
            return PeerVerdict.UNREAD
        frame_ns = now_ns - self.frame_since_ns if self.frame_since_ns and may_send else 0
        if frame_ns > int(options.frame_timeout_s * 1e9):
            return PeerVerdict.UNFINISHED
        # Whatever was done for it between two looks had answers, which it took.
        is_at_work = is_at_work or takes
        if is_at_work or has_polls or not options.idle_timeout_s:
            self._idle_since_ns = now_ns
        elif now_ns - self._idle_since_ns > int(options.idle_timeout_s * 1e9):
            return PeerVerdict.IDLE
        self._quiet_looks = 0 if is_at_work else self._quiet_looks + 1
        return PeerVerdict.RESTS if self._quiet_looks >= _LOOKS_OF_REST else PeerVerdict.STAYS
