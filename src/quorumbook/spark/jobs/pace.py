"""What a job's reads and writes have to wait for: so many bytes a second for each bookie.

Tasks know nothing of each other, so each gets its share: the limit divided by the tasks that run
at once.  The engine cuts a wave into tasks of about the same size that all touch the same bookies,
so the shares add up to the limit.  How many requests of a job a bookie has at once is bounded by
the number of tasks: each of them has one under way.
"""

from __future__ import annotations

from quorumbook.env import Budget, Env
from quorumbook.ids import BookieId

_EVERYBODY = ""


class Pace:
    """One task's share, for each bookie."""

    def __init__(self, env: Env, rate_bytes: int) -> None:
        """Take the share in bytes a second; 0 sets no limit."""
        self._env = env
        #: 0: no limit.
        self.rate_bytes = rate_bytes
        self._budgets: dict[BookieId, Budget] = {}

    def of(self, bookie_id: BookieId) -> Budget:
        """Return the share of a bookie."""
        budget = self._budgets.get(bookie_id)
        if budget is None:
            budget = self._budgets[bookie_id] = Budget(
                self._env.clock, self._env.threads, self.rate_bytes
            )
        return budget

    async def take(self, size_bytes: int) -> None:
        """Wait where it is not known which bookie is read: as if it were always the same one."""
        await self.of(_EVERYBODY).take(size_bytes)
