"""The bytes of adds that are not answered yet, of each connection and of all of them together.

Who goes over one of the budgets is not read until half of its own is free and the bookie's is kept.
With nothing of it under way a connection is always read: a frame of maximal size must get in
however small the budgets are.

Adds are journaled in the order in which they came.  While there is more of them than keeps the
journals busy, or the write cache is nearly full, a connection that has much under way waits with
its next chunk (``TurnQueue``), so that a small add of another one stands behind a group or two,
not behind all that was sent.

Two groups of large adds are what a disk needs to be busy all the time, and twice what a small add
should wait.  So those who send much leave the journals a quarter of a group while a connection
that sends little has adds between theirs, and a whole one when they are among themselves.

A run, the adds of a chunk to one ledger, costs more than its bytes: time of the loop to show and to
answer it, and memory until then.  A fence is one, too.  So each counts for ``_RUN_BYTES`` more, and
few of them are left in the journals beside somebody who sends little: their answers alone keep
the loop busy for longer than a disk takes.
"""

from __future__ import annotations

from quorumbook.bookie.connections.frame_budget import LARGE_BYTES

#: What a run of adds to one ledger counts for beside its bytes: 40 us of the loop.
_RUN_BYTES = 8 * 1024
#: Who sends adds of up to so many bytes and runs, and has few of them under way, sends little.
_LITTLE_BYTES = 8 * 1024
_LITTLE_RUNS = 8
#: So much of others' adds is carried out with courtesy after one of somebody who sends little.
_COURTESY_BYTES = 256 * 1024 * 1024
_COURTESY_SHARE = 4
#: And no more than so many runs: 5 ms of the loop.
_COURTESY_RUNS = 128


def add_weight(size_bytes: int, run_count: int) -> int:
    """Return what runs of adds of so many bytes in all count for."""
    return size_bytes + run_count * _RUN_BYTES


class AddBudget:
    """One bookie's; used on the event loop.

    Args:
        connection_limit_bytes: Of one connection.
        limit_bytes: Of all.
        busy_bytes: What keeps the journals busy.
    """

    def __init__(self, connection_limit_bytes: int, limit_bytes: int, busy_bytes: int) -> None:
        self._connection_limit_bytes = connection_limit_bytes
        self._limit_bytes = limit_bytes
        self._busy_bytes = busy_bytes
        #: Bytes of adds that are to come before those who send much are among themselves.
        self._courtesy_bytes = 0
        self.used_bytes = 0
        self._run_count = 0

    @property
    def is_busy(self) -> bool:
        """Tell whether the journals have enough to do."""
        if self._courtesy_bytes > 0:
            return (
                self.used_bytes > self._busy_bytes // _COURTESY_SHARE
                or self._run_count > _COURTESY_RUNS
            )
        return self.used_bytes > self._busy_bytes

    def hold(self, size_bytes: int, run_count: int, connection_bytes: int) -> bool:
        """Count adds, and tell whether their connection, which has that many now, may go on.

        Args:
            size_bytes: What they count for, as ``add_weight`` says.
            run_count: Of how many runs they are.
            connection_bytes: What all of the connection's count for, with these.
        """
        self.used_bytes += size_bytes
        self._run_count += run_count
        if self._courtesy_bytes > 0:
            self._courtesy_bytes -= size_bytes
        if (
            run_count <= _LITTLE_RUNS
            and size_bytes <= add_weight(_LITTLE_BYTES, run_count)
            and connection_bytes <= LARGE_BYTES
            and self.used_bytes - connection_bytes > LARGE_BYTES
        ):
            self._courtesy_bytes = _COURTESY_BYTES
        return (
            connection_bytes <= self._connection_limit_bytes
            and self.used_bytes <= self._limit_bytes
        )

    def release(self, size_bytes: int, run_count: int, connection_bytes: int) -> bool:
        """Count adds as answered, and tell whether their connection may go on if it had to stop."""
        self.used_bytes -= size_bytes
        self._run_count -= run_count
        return not connection_bytes or (
            connection_bytes <= self._connection_limit_bytes // 2
            and self.used_bytes <= self._limit_bytes
        )
