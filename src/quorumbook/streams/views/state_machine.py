"""Replicated state machines: commands in a stream, applied in the same order everywhere.

Every replica restores the newest snapshot, applies what came after it, and follows.  One of them
leads: it is the stream's writer, and what keeps a second one from leading is the fence.  It
applies a command when the command is safe, which is the moment at which others may see it.
``following`` reads, ``state_snapshots`` stores.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from quorumbook.client.waiting.closing import Closing
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import BackpressureError, LocalProtocolError, QuorumbookError
from quorumbook.options import takes
from quorumbook.streams.errors import DataLossError, PositionTruncatedError, RecordTooLargeError
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.views.following import Follower
from quorumbook.streams.views.state_snapshots import Snapshot, SnapshotStore
from quorumbook.streams.writing.appended import Appended
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.writer import StreamWriter

_log = logger("streams.state_machine")


class Command(NamedTuple):
    """A record of the stream, as far as all replicas know the same of it."""

    payload: bytes
    sequence_id: int
    position: Position


class State(Protocol):
    """What an application replicates.

    ``apply`` must do the same everywhere: it looks at nothing but the state and the command, not
    at clocks or random numbers, say.  To refuse a command, return the refusal: if it raises,
    the replica stops, and so does every other one at the same command.
    """

    def apply(self, command: Command, /) -> Any:
        """Change the state; what it returns is what ``propose`` returns."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state; called between two commands."""
        ...

    def restore(self, data: bytes, /) -> None:
        """Replace the whole state by what ``snapshot`` returned."""
        ...


S = TypeVar("S", bound=State)


class _Proposal(NamedTuple):
    payload: bytes
    done: asyncio.Future[Any]


class StateMachine(Closing, Generic[S]):
    """One replica; opened by ``async with``. It is a follower until it calls ``lead``."""

    def __init__(
        self,
        stream: Stream,
        state: S,
        *,
        name: str = "snapshot",
        snapshot_every: int = 0,
        truncates: bool = False,
    ) -> None:
        """Prepare; nothing is read before ``open``.

        Args:
            stream: Where the commands are; all of them are this machine's.
            state: As it is before the first command.
            name: Of the cursor that points to the newest snapshot.
            snapshot_every: After so many commands this replica makes a snapshot, leading or not;
                0: only when ``snapshot`` is called.
            truncates: Whether to truncate the stream up to a snapshot that was made.
        """
        self.state = state
        self._stream = stream
        self._snapshot_every = snapshot_every
        self._truncates = truncates
        self._snapshots = SnapshotStore(stream_context(stream), name)
        self._follower = Follower(stream, self._apply, on_truncated=self._restore_newer)
        self._follower.go_on_from(None, 0)
        self._snapshot_sequence_id = 0
        self._snapshotting: asyncio.Task[bool] | None = None
        self._writer: StreamWriter | None = None
        #: What came of own commands that a reader saw before they were acknowledged.
        self._results: dict[Position, Any] = {}
        self._proposed = 0
        self._leaving: asyncio.Task[None] | None = None

    # Life ----------------------------------------------------------------------------------

    async def open(self) -> StateMachine[S]:
        """Restore the newest snapshot, apply the commands after it, and follow the stream.

        Raises:
            PositionTruncatedError: commands are gone that no snapshot has.
            DataLossError: they were lost.
        """
        await self._restore(await self._snapshots.load())
        await self._follower.catch_up()
        self._follower.start()
        return self

    async def close(self) -> None:
        """Step down if it leads, and stop following."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        await self._end_leading()
        if self._snapshotting is not None:
            await cancel_and_wait([self._snapshotting])
        await self._follower.close()

    async def __aenter__(self) -> StateMachine[S]:
        return await self.open()

    @property
    def is_leading(self) -> bool:
        """Whether commands can be proposed here, as far as this process knows."""
        return self._writer is not None

    @property
    def next_sequence_id(self) -> int:
        """One more than the sequence id of the last command that was applied; 0 before it."""
        known = self._follower.next_sequence_id
        assert known is not None
        return known

    @property
    def position(self) -> Position | None:
        """The position after the last command that was applied; None before the first."""
        return self._follower.next

    async def refresh(self) -> None:
        """Wait until everything is applied that readers can see now."""
        await self._follower.catch_up()

    async def wait_for(self, position: Position) -> None:
        """Wait until the command at a position is applied."""
        await self._follower.wait_for(position)

    # Leading -------------------------------------------------------------------------------

    @takes(WriterOptions)
    async def lead(self, **options: Any) -> None:
        """Become the leader: shut the last one out, and apply everything it has stored.

        While it waits, this replica follows.

        Args:
            options: Those of ``WriterOptions``.

        Raises:
            WriterBusyError: another one leads.
            StreamSealedError: nobody leads any more.
        """
        self._follower.check()
        if self._leaving is not None:
            await asyncio.wait([self._leaving])
        if self._writer is not None:
            return
        writer = await self._stream.writer(**options)
        try:
            # From here on nobody else appends, and every segment has its end.
            await self._follower.pause()
            reached = await self._follower.catch_up()
            if reached != writer.next_sequence_id:
                raise DataLossError(
                    f"stream {self._stream.name} goes on at sequence id "
                    f"{writer.next_sequence_id}, and the state at {reached}"
                )
        except BaseException:
            await writer.abort()
            if self._follower.error is None:
                self._follower.start()
            raise
        self._writer = writer

    async def propose(self, payload: bytes) -> Any:
        """Append a command, wait until it is safe and applied, and return what ``apply`` returned.

        Raises:
            LocalProtocolError: this replica does not lead.
            WriterFencedError: another replica leads now. Whether the command was stored is known
                only when it is applied, or a later one is.
        """
        try:
            future = await self._append(payload)
        except RecordTooLargeError:
            raise
        except QuorumbookError:
            self._leave()
            raise
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        proposal = _Proposal(payload, done)
        self._proposed += 1
        future.add_done_callback(lambda appended: self._on_appended(proposal, appended))
        return await done

    async def _append(self, payload: bytes) -> asyncio.Future[Appended]:
        while True:
            self._follower.check()
            writer = self._writer
            if writer is None:
                raise LocalProtocolError("this replica does not lead; `lead` makes it")
            try:
                return writer.append_nowait(payload)
            except BackpressureError:
                await writer.drain()

    async def step_down(self) -> None:
        """Wait for what was proposed, stop leading, and follow."""
        await self._end_leading()
        if self._follower.error is None:
            self._follower.start()

    # Snapshots -----------------------------------------------------------------------------

    async def snapshot(self) -> bool:
        """Store the state as it is now, and delete the previous snapshot.

        Returns:
            Whether this is the newest snapshot now; if not, another replica makes or has made one.
        """
        self._follower.check()
        position = self._follower.next
        if position is None or not self.next_sequence_id:
            return False
        self._snapshot_sequence_id = self.next_sequence_id
        # Everything up to here is one step: no command comes between state and position.
        taken = Snapshot(self.state.snapshot(), position, self.next_sequence_id)
        is_newest = await self._snapshots.save(taken)
        if is_newest and self._truncates:
            await self._stream.truncate(position)
        return is_newest

    # Inside --------------------------------------------------------------------------------

    def _apply(self, record: Record) -> None:
        if record.sequence_id < 0:
            raise DataLossError(
                f"whether something is missing before record {record.position} of stream "
                f"{self._stream.name} cannot be known: its writer counted nothing"
            )
        result = self.state.apply(Command(record.payload, record.sequence_id, record.position))
        if self._proposed:
            self._results[record.position] = result
        since = record.sequence_id + 1 - self._snapshot_sequence_id
        is_due = 0 < self._snapshot_every <= since
        if is_due and (self._snapshotting is None or self._snapshotting.done()):
            self._snapshotting = asyncio.get_running_loop().create_task(self._try_snapshot())

    def _on_appended(self, proposal: _Proposal, future: asyncio.Future[Appended]) -> None:
        """Apply an own command that is safe; they come in order."""
        try:
            appended = future.result()
            position = appended.position
            assert position is not None
            self._follower.apply(
                Record(
                    position,
                    appended.sequence_id,
                    appended.txid,
                    proposal.payload,
                    None,
                    appended.ledger_id,
                )
            )
            result = self._results.pop(position, None)
        except QuorumbookError as error:
            if not proposal.done.done():
                proposal.done.set_exception(copy_error(error))
            self._leave()
        else:
            if not proposal.done.done():
                proposal.done.set_result(result)
        self._proposed -= 1
        if not self._proposed:
            self._results.clear()

    def _leave(self) -> None:
        """Lead no more: another one does, or the stream cannot be written."""
        if self._writer is not None and self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._follow_again())

    async def _follow_again(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                await writer.abort()
        finally:
            self._leaving = None
            if self._follower.error is None:
                self._follower.start()

    async def _end_leading(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            # What became of each command its proposer was told.
            with contextlib.suppress(QuorumbookError):
                await writer.close()
            # The callbacks of what was confirmed run first.
            await asyncio.sleep(0)

    async def _try_snapshot(self) -> bool:
        try:
            return await self.snapshot()
        except QuorumbookError as error:
            _log.warning("stream %s: no snapshot: %s", self._stream.name, error)
        except Exception:
            _log.exception("stream %s: no snapshot", self._stream.name)
        return False

    async def _restore(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.state.restore(snapshot.data)
            self._follower.go_on_from(snapshot.position, snapshot.next_sequence_id)
            self._snapshot_sequence_id = snapshot.next_sequence_id

    async def _restore_newer(self) -> None:
        """Go on from a snapshot, where commands that are due were truncated away."""
        newer = await self._snapshots.load()
        if newer is None or newer.next_sequence_id <= self.next_sequence_id:
            raise PositionTruncatedError(
                f"commands of stream {self._stream.name} from sequence id "
                f"{self.next_sequence_id} on were truncated away, and no snapshot has them"
            )
        await self._restore(newer)
