"""The blocking candidate of an election."""

from __future__ import annotations

from types import TracebackType

from quorumbook.metadata import election as aio
from quorumbook.sync.loop import Owned


class Election(Owned):
    """The blocking twin of ``quorumbook.metadata.election.Election``: it avoids fights, no more.

    Safety is the fence's; a leader that was paused believes to lead while another one does.
    """

    def __init__(self, election: aio.Election) -> None:
        """Wrap a candidate that was made on the loop thread."""
        super().__init__()
        self._aio = election

    def __enter__(self) -> Election:
        self.run(self._aio.__aenter__)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.resign()

    @property
    def candidate(self) -> str:
        """By which name this candidate stands."""
        return self._aio.candidate

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, as far as this process knows."""
        return self._aio.is_leader

    def wait_to_lead(self) -> None:
        """Wait until this candidate leads."""
        self.run(self._aio.wait_to_lead)

    def wait_to_lose(self) -> None:
        """Wait until this candidate does not lead, as far as this process knows."""
        self.run(self._aio.wait_to_lose)

    def leader(self) -> str | None:
        """Return who leads now, None if nobody stands."""
        return self.run(self._aio.leader)

    def resign(self) -> None:
        """Stop leading, withdraw the vote, and stand no more."""
        self.run(self._aio.resign)
