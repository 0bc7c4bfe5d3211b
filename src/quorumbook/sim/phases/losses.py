"""The directed phase ``losses``: ``shares``, and one bookie's disk is lost for good now and then.

The bookie begins anew on an empty disk, under its name and as a new one, and its cookie is deleted
as an operator does it.  What it had promised, fences as well, it does not know any more: it must
neither deny what it had nor take what it would have refused.  So many copies as others have stay.
"""

from __future__ import annotations

from typing import Any

from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.phases import shares

#: What it wants of the plan.
PLAN: dict[str, Any] = shares.PLAN


class Losses(shares.Shares):
    """Ledgers beside a bookie that forgets."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._forgetful = self._tape.pick(self._bookies)

    def begin(self) -> None:
        """Begin."""
        super().begin()
        self._later(0.5, 2.0, self._lose)

    def _lose(self) -> None:
        # A bookie that starts reads its cookie, and must find it as it is.
        if self._forgetful.serves:
            self._forgetful.lose_disk()
            self._later(0.5, 1.5, self._lose)
        else:
            self._later(0.05, 0.1, self._lose)
