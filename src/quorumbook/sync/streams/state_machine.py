"""The blocking replica of a state machine."""

from __future__ import annotations

from typing import Any, Generic

from quorumbook.options import takes
from quorumbook.streams.format.position import Position
from quorumbook.streams.views import state_machine as aio
from quorumbook.streams.views.state_machine import S
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.loop import Closing
from quorumbook.sync.streams.stream import Stream, unwrapped


class StateMachine(Closing, Generic[S]):
    """The blocking twin of ``quorumbook.streams.StateMachine``.

    The state's methods run on the loop's thread, where they must not block.  It goes on there
    while other threads look at ``state``: whoever needs more than one of its values at a time
    gives it a lock, or asks by a command.
    """

    def __init__(
        self,
        stream: Stream,
        state: S,
        *,
        name: str = "snapshot",
        snapshot_every: int = 0,
        truncates: bool = False,
    ) -> None:
        """Prepare; nothing is read before ``open``.  See the asyncio twin."""
        super().__init__()
        self.state = state
        self._aio = aio.StateMachine(
            unwrapped(stream), state, name=name, snapshot_every=snapshot_every, truncates=truncates
        )

    def open(self) -> StateMachine[S]:
        """Restore the newest snapshot, apply what is behind it, and follow the stream."""
        self.run(self._aio.open)
        return self

    def close(self) -> None:
        """Step down if it leads, and follow no more."""
        self.run(self._aio.close)

    def __enter__(self) -> StateMachine[S]:
        return self.open()

    @property
    def is_leading(self) -> bool:
        """Whether commands can be proposed here, as far as this process knows."""
        return self._aio.is_leading

    @property
    def next_sequence_id(self) -> int:
        """One more than the sequence id of the last command that was applied; 0 before it."""
        return self._aio.next_sequence_id

    @property
    def position(self) -> Position | None:
        """Behind the last command that was applied; None before the first."""
        return self._aio.position

    def refresh(self) -> None:
        """Wait until everything is applied that readers can see now."""
        self.run(self._aio.refresh)

    def wait_for(self, position: Position) -> None:
        """Wait until the command at a position is applied."""
        self.run(lambda: self._aio.wait_for(position))

    @takes(WriterOptions)
    def lead(self, **options: Any) -> None:
        """Become the leader: shut the last one out, and apply everything it has stored."""
        self.run(lambda: self._aio.lead(**options))

    def propose(self, payload: bytes) -> Any:
        """Append a command, and return what ``apply`` made of it when it was safe.

        An interrupt does not take the command back.
        """
        return self.run(lambda: self._aio.propose(payload))

    def step_down(self) -> None:
        """Wait for what was proposed, lead no more, and follow."""
        self.run(self._aio.step_down)

    def snapshot(self) -> bool:
        """Store the state as it is now, and delete the snapshot before."""
        return self.run(self._aio.snapshot)
