"""The blocking replica of a state machine."""

from __future__ import annotations

from typing import Any

from quorumbook.options import takes
from quorumbook.streams.views import state_machine as aio
from quorumbook.streams.views.state_machine import S
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.loop import Closing, unwrapped
from quorumbook.sync.streams.stream import Stream


class StateMachine(Closing[aio.StateMachine[S]]):
    """The blocking twin of ``quorumbook.streams.StateMachine``.

    The state's methods run on the loop's thread, where they must not block.  It goes on there
    while other threads look at ``state``: a thread that needs more than one of its values at a time
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
        source = unwrapped(stream)
        super().__init__(
            aio.StateMachine(
                source, state, name=name, snapshot_every=snapshot_every, truncates=truncates
            )
        )
        self.state = state

    def open(self) -> StateMachine[S]:
        """Restore the newest snapshot, apply what is behind it, and follow the stream."""
        self._run(self._aio.open)
        return self

    close = blocking(aio.StateMachine.close)
    """Step down if it leads, and stop following."""

    def __enter__(self) -> StateMachine[S]:
        return self.open()

    is_leading = held(aio.StateMachine, lambda it: it.is_leading)
    """Whether commands can be proposed here, as far as this process knows."""
    next_sequence_id = held(aio.StateMachine, lambda it: it.next_sequence_id)
    """One more than the sequence id of the last command that was applied; 0 before it."""
    position = held(aio.StateMachine, lambda it: it.position)
    """Behind the last command that was applied; None before the first."""
    refresh = blocking(aio.StateMachine.refresh)
    """Wait until everything is applied that readers can see now."""
    wait_for = blocking(aio.StateMachine.wait_for)
    """Wait until the command at a position is applied."""

    @takes(WriterOptions)
    def lead(self, **options: Any) -> None:
        """Become the leader: shut the last one out, and apply everything it has stored."""
        self._run(lambda: self._aio.lead(**options))

    propose = blocking(aio.StateMachine.propose)
    """Append a command, and return what ``apply`` made of it when it was safe."""
    step_down = blocking(aio.StateMachine.step_down)
    """Wait for what was proposed, stop leading, and follow."""
    snapshot = blocking(aio.StateMachine.snapshot)
    """Store the state as it is now, and delete the snapshot before."""
