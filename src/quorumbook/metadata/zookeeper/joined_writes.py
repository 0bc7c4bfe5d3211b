"""Writes that are asked for in the same turn of the loop, gathered for one step.

A server does a lot for a request and little for one more operation of a step: creations in steps
of 25 take a fifth of its processor time.  What is gathered here has nothing to do with each
other, so each of them stands for itself all the same: where the step is refused or its answer is
lost, they go on alone.  Sending the step is the store's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from quorumbook.metadata.store import Create, Node, Set
from quorumbook.metadata.zookeeper.connection import AnswerLost

#: A step holds other clients' writes up while it is carried out, and is at most some 400 KB.
_STEP_MAX = 50
JOINED_DATA_MAX_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class JoinedWrite:
    """One of them."""

    operation: Create | Set
    #: The session that it was asked for in.
    session_id: int
    #: The node as it is now, or an error of this operation; or that it is to go on alone, where
    #: the answer to its step was lost with that, and otherwise with None.
    told: asyncio.Future[Node | AnswerLost | None]

    def tell(self, node: Node) -> None:
        """It was carried out."""
        if not self.told.done():
            self.told.set_result(node)

    def refuse(self, error: Exception) -> None:
        """It was not, and why."""
        if not self.told.done():
            self.told.set_exception(error)

    def go_on_alone(self, lost: AnswerLost | None) -> None:
        """Nothing is known of it if an answer was lost, else it was not carried out."""
        if not self.told.done():
            self.told.set_result(lost)


class JoinedWrites:
    """Gathers them until the end of a turn of the loop.

    Args:
        send: Carries out one step of them, and tells each what became of it; it never fails.
    """

    def __init__(self, send: Callable[[Sequence[JoinedWrite]], Coroutine[Any, Any, None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._waiting: list[JoinedWrite] = []
        self._steps: set[asyncio.Task[None]] = set()

    async def add(self, operation: Create | Set, session_id: int) -> Node | AnswerLost | None:
        """Have an operation carried out; returns or raises what ``JoinedWrite.told`` says."""
        write = JoinedWrite(operation, session_id, self._loop.create_future())
        if not self._waiting:
            self._loop.call_soon(self._begin_steps)
        self._waiting.append(write)
        return await write.told

    def _begin_steps(self) -> None:
        waiting, self._waiting = self._waiting, []
        step: dict[str, JoinedWrite] = {}
        for write in waiting:
            if write.told.done():
                continue
            if write.operation.path in step:
                # What one does to the other must not depend on a step that is not carried out.
                write.go_on_alone(None)
                continue
            step[write.operation.path] = write
            if len(step) == _STEP_MAX:
                self._begin_step([*step.values()])
                step.clear()
        if step:
            self._begin_step([*step.values()])

    def _begin_step(self, step: list[JoinedWrite]) -> None:
        if len(step) == 1:
            step[0].go_on_alone(None)
            return
        task = self._loop.create_task(self._send(step))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
