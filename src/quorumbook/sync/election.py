"""The blocking candidate of an election."""

from __future__ import annotations

from types import TracebackType

from quorumbook.metadata import election as aio
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.loop import Twin


class Election(Twin[aio.Election]):
    """The blocking twin of ``quorumbook.metadata.election.Election``: it avoids fights, no more.

    Safety is the fence's; a leader that was paused believes to lead while another one does.
    """

    def __enter__(self) -> Election:
        self._run(self._aio.__aenter__)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.resign()

    candidate = held(aio.Election, lambda it: it.candidate)
    """By which name this candidate stands."""
    is_leader = held(aio.Election, lambda it: it.is_leader)
    """Whether this candidate leads, as far as this process knows."""
    wait_to_lead = blocking(aio.Election.wait_to_lead)
    """Wait until this candidate leads."""
    wait_to_lose = blocking(aio.Election.wait_to_lose)
    """Wait until this candidate does not lead, as far as this process knows."""
    leader = blocking(aio.Election.leader)
    """Return who leads now, None if nobody stands."""
    resign = blocking(aio.Election.resign)
    """Stop leading, withdraw the vote, and stand no more."""
