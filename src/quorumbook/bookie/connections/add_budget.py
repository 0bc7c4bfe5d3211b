"""The bytes of adds that are not answered yet, of each connection and of all of them together.

Who goes over one of the budgets is not read until half of its own is free and the bookie's is kept.
With nothing of it under way a connection is always read: a frame of maximal size must get in
however small the budgets are.

Adds are journaled in the order in which they came.  While there is more of them than keeps the
journals busy, or the write cache is nearly full, a connection that has much under way waits with
its next chunk (``TurnQueue``), so that a small add of another one stands behind a group or two,
not behind all that was sent.
"""

from __future__ import annotations


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
        self.used_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Tell whether the journals have enough to do."""
        return self.used_bytes > self._busy_bytes

    def hold(self, size_bytes: int, connection_bytes: int) -> bool:
        """Count an add, and tell whether its connection, which has that many now, may go on."""
        self.used_bytes += size_bytes
        return (
            connection_bytes <= self._connection_limit_bytes
            and self.used_bytes <= self._limit_bytes
        )

    def release(self, size_bytes: int, connection_bytes: int) -> bool:
        """Count an add as answered, and tell whether its connection may go on if it had to stop."""
        self.used_bytes -= size_bytes
        return not connection_bytes or (
            connection_bytes <= self._connection_limit_bytes // 2
            and self.used_bytes <= self._limit_bytes
        )
