"""A member of a consumer group: hands out the records of the partitions that it has.

``group_state`` decides who has which; here is what a member does about it, beside its application:

    look at the group's nodes → rebalance, or release what is another's, claim what is ours

A partition is released when the application has come back for more, so that the record it had in
hand is done and counted, or ``release_timeout_s`` has passed.  Whoever claims it takes the cursor
too: a member that was paused and does not know yet that its session is over can commit nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import chain, repeat

from quorumbook.client.waiting.closing import Closing
from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait, finish_all
from quorumbook.errors import MetadataError, MetadataUnavailableError
from quorumbook.metadata.nodes import give_up_later
from quorumbook.metadata.store import Revision, Watch
from quorumbook.streams.cursors.cursor import Cursor, take_over
from quorumbook.streams.cursors.reader import Progress, resume_position
from quorumbook.streams.errors import CursorConflictError, PartitionLostError
from quorumbook.streams.partitions.group_nodes import GroupNodes
from quorumbook.streams.partitions.group_state import GroupState, next_steps
from quorumbook.streams.partitions.merging import MergedBatches, is_passing
from quorumbook.streams.partitions.options import ConsumerOptions
from quorumbook.streams.partitions.reader import PartitionRecord
from quorumbook.streams.partitions.redelivery import DeadLetters, Redeliveries
from quorumbook.streams.partitions.share import PartitionShare
from quorumbook.streams.reading.batches import RecordBatch, made, made_at_once
from quorumbook.streams.reading.hand_out import HandOut, Place
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import stream_context

_log = logger("streams.consumer")
_RETRY_FIRST_S = 0.1
_RETRY_LAST_S = 5.0
#: Watches may be lost; a look now and then costs little.
_LOOK_S = 30.0
_CLOSE_S = 10.0


class Delivery(PartitionRecord):
    """A record, its partition, and how often it was handed out."""

    #: This time included; only what ``nack`` was called on is counted.
    delivery_count: int = 1


def _deliveries(number: int, batch: RecordBatch) -> Iterator[Delivery]:
    return made(Delivery, zip(repeat(number), batch))


async def _told(callback: Callable[[int], Awaitable[None] | None] | None, number: int) -> None:
    answer = None if callback is None else callback(number)
    if answer is not None:
        await answer


class Consumer(Closing):
    """A member of a group; made by ``PartitionedStream.consumer``.

    Iterate over it for records, or call ``read``; one after the other.  It has no end.
    """

    def __init__(
        self,
        find_partitions: Callable[[Watch | None], Awaitable[tuple[Stream, ...]]],
        nodes: GroupNodes,
        options: ConsumerOptions,
        letters: DeadLetters,
    ) -> None:
        """Take what finds the stream's partitions, and the group's nodes; ``open`` joins."""
        self._find_partitions = find_partitions
        self._partitions: tuple[Stream, ...] = ()
        self._nodes = nodes
        self._group = options.group
        self._options = options
        self._reader_options = options.of_stream()
        self._letters = letters
        #: Another one for each session, the same as long as one lasts: it may be there already.
        self._member = ""
        self._session_id: int | None = None
        self._state = GroupState()
        #: What is its own for certain, and what may be, as nobody heard what became of it.
        self._claims: set[int] = set()
        self._unsure: set[int] = set()
        self._shares: dict[int, PartitionShare] = {}
        self._merged = MergedBatches()
        self._hand: HandOut[Delivery] = HandOut()
        #: Which partition's records that hands out; its complement: those that come again.
        self._source = 0
        #: What the application has in hand, by partition: the last record, and all that came again.
        self._in_hand: dict[int, Place] = {}
        self._again: dict[int, list[Delivery]] = {}
        self._came_back = asyncio.Event()
        self._news = asyncio.Event()
        self._ring = self._news.set
        self._error: Exception | None = None
        self._must_join = True
        self._is_closing = False
        #: What is being closed since a session ended.
        self._ending: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._remove_callback: Callable[[], None] | None = None

    # Life ----------------------------------------------------------------------------------

    async def _open(self) -> Consumer:
        self._partitions = await self._find_partitions(None)
        stream_context(self._partitions[0]).check_writable()
        await self._nodes.prepare()
        self._remove_callback = self._nodes.store.on_session_expired(self._on_session_expired)
        try:
            await self._join()
        except BaseException:
            self._remove_callback()
            if self._member:
                give_up_later(self._nodes.store, partial(self._nodes.leave, self._member))
            raise
        self._task = asyncio.ensure_future(self._run())
        return self

    async def close(self, *, is_done: bool = False) -> None:
        """Leave the group, and let the others have the partitions.

        Args:
            is_done: Whether the records that were handed out last count as done.
        """
        task, self._task = self._task, None
        if task is not None:
            self._catch_up()
            if is_done:
                self._mark_done()
            self._in_hand.clear()
            self._again.clear()
            self._is_closing = True
            self._came_back.set()
            self._ring()
            # Others wait for the partitions: it goes on without whoever is cancelled.
            self._leaving = asyncio.ensure_future(self._leave(task))
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    async def _leave(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task}, timeout=_CLOSE_S)  # what it is at is finished if possible
        await cancel_and_wait([task])
        self._nodes.store.unwatch(self._ring)
        assert self._remove_callback is not None
        self._remove_callback()
        try:
            await asyncio.gather(*map(self._release, list(self._claims)))
            await self._nodes.leave(self._member)
        except MetadataError as error:
            _log.warning("%r goes later: %s", self, error)
            give_up_later(self._nodes.store, partial(self._nodes.leave, self._member))
        finally:
            await asyncio.gather(*map(self._drop, list(self._shares)))
            await asyncio.gather(*self._ending)
            await self._merged.close()

    async def _end_block(self, error: BaseException | None) -> None:
        await self.close(is_done=error is None)

    # What it knows -------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The group's name, which its cursors have too."""
        return self._group

    @property
    def member(self) -> str:
        """By which name this member is known in the group."""
        return self._member

    @property
    def generation(self) -> int:
        """The generation of the group that this member knows of."""
        return self._state.generation

    @property
    def assignment(self) -> frozenset[int]:
        """The partitions whose records this member hands out now."""
        return frozenset(self._shares)

    # Consuming -----------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        for delivery, _ in self._hand.records:
            return delivery
        delivery = (await self.read(1, wait_s=None))[0]
        if self._source >= 0:
            self._hand.one_by_one(partial(_deliveries, self._source))
        return delivery

    async def read(self, max_records: int = 1000, *, wait_s: float | None = 0.5) -> list[Delivery]:
        """Return the next records: one at least, unless none comes in time.

        Args:
            max_records: Return no more.
            wait_s: How long to wait for the first; None: for ever.

        Raises:
            QuorumbookError: a partition cannot be read.  If that is ``retriable``, the next call
                goes on with it where it stopped.
        """
        self._mark_done()
        found: list[Iterable[Delivery]] = []
        missing = max_records
        while missing:
            if self._error is not None and not found:
                raise self._error
            if not self._hand.is_over:
                part = self._hand.part(missing)
                missing -= len(part)
                found.append(self._taken(part))
                continue
            taken = self._merged.take(raises=not found)
            if taken is not None:
                self._source, batch = taken
                self._hand.begin(batch)
            elif found or not await self._wait(wait_s):
                break
        return made_at_once(chain.from_iterable(found))

    async def commit(self, record: PartitionRecord, *, state: bytes | None = None) -> None:
        """Store that a record and all before it in its partition are done; see ``Cursor.commit``.

        Raises:
            PartitionLostError: another member has the partition, or is about to.
        """
        with self._losses(record.partition) as cursor:
            await cursor.commit(record.record, state=state)

    async def ack(self, *records: PartitionRecord) -> None:
        """Store that single records are done, in any order; see ``Cursor.ack``.

        Raises:
            PartitionLostError: another member has a partition, or is about to.
        """
        for number in {each.partition for each in records}:
            with self._losses(number) as cursor:
                await cursor.ack(*(each.record for each in records if each.partition == number))

    async def nack(self, *records: PartitionRecord, delay_s: float = 0) -> None:
        """Refuse records: they are handed out again, to the member that then has the partition.

        The group's cursor does not pass such a record until it is done, even if later records are
        committed.  A record that was handed out ``max_deliveries`` times is given up instead.

        Args:
            records: As they were handed out.
            delay_s: How long they wait at least.

        Raises:
            PartitionLostError: another member has a partition, or is about to.
            LocalProtocolError: the cursor passed a record.
            AckLimitError: too many wait already.
            WriterBusyError: somebody else keeps the stream of dead letters; nothing was changed.
        """
        for number in {each.partition for each in records}:
            mine = [each.record for each in records if each.partition == number]
            with self._losses(number):
                await self._shares[number].again.refuse(mine, delay_s)
            refused = {record.sequence_id for record in mine}
            in_hand = self._again.get(number, [])
            in_hand[:] = [each for each in in_hand if each.record.sequence_id not in refused]

    def cursor(self, partition: int) -> Cursor:
        """Return the group's cursor in a partition that this member has.

        Raises:
            PartitionLostError: it does not have it.
        """
        share = self._shares.get(partition)
        if share is None:
            raise PartitionLostError(
                f"partition {partition} is not {self._member}'s in group {self._group} any more"
            )
        return share.cursor

    @contextlib.contextmanager
    def _losses(self, partition: int) -> Iterator[Cursor]:
        cursor = self.cursor(partition)
        try:
            yield cursor
        except CursorConflictError as error:
            if partition in self._shares:
                self._shares[partition].progress.fail(error)
            raise PartitionLostError(
                f"partition {partition} went to another member of group {self._group}, or its "
                "cursor was moved by hand; the record is read again there"
            ) from error

    def _mark_done(self) -> None:
        """Count what is in the application's hands as done: it came back."""
        self._catch_up()
        for number, share in self._shares.items():
            if number in self._in_hand:
                share.progress.on_done(*self._in_hand[number])
            if number in self._again:
                share.progress.on_done_again(each.record for each in self._again[number])
        self._in_hand.clear()
        self._again.clear()
        self._came_back.set()

    def _catch_up(self) -> None:
        """Count what was handed out one by one: the last is in hand, those before it are done."""
        news = self._hand.news()
        share = self._shares.get(self._source)
        if news is not None and share is not None:
            done, self._in_hand[self._source] = news
            share.progress.on_done(*done)

    def _taken(self, part: RecordBatch) -> Iterable[Delivery]:
        """Note that a part of the present batch was handed out."""
        number = self._source
        if number >= 0:
            self._in_hand[number] = self._hand.place(self._hand.count - 1)
            return _deliveries(number, part)
        number = ~number
        refused = list(_deliveries(number, part))
        again = self._shares[number].again
        for each in refused:
            each.delivery_count = again.delivery_count(each.record.sequence_id)
        self._again.setdefault(number, []).extend(refused)
        return refused

    async def _wait(self, wait_s: float | None) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._merged.changed.wait()
        except TimeoutError:
            return False
        return True

    # Beside the application: the group -----------------------------------------------------

    async def _run(self) -> None:
        delay_s = _RETRY_FIRST_S
        while not self._is_closing:
            self._news.clear()
            try:
                await self._look()
            except Exception as error:
                if not isinstance(error, MetadataError) and not is_passing(error):
                    self._error = error
                    self._merged.changed.set()
                    return
                _log.warning("%r waits: %s", self, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _RETRY_LAST_S)
                continue
            delay_s = _RETRY_FIRST_S
            if self._is_closing:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()

    async def _look(self) -> None:
        """Take one look at the group, and do what follows from it."""
        if self._must_join:
            await self._join()
        self._nodes.store.unwatch(self._ring)
        for number, share in list(self._shares.items()):
            if share.progress.has_failed:
                _log.warning("%r: %r was moved by somebody else", self, share.cursor)
                await self._drop(number)
        # First, so that it is not behind what others who know more made of the group.
        self._partitions = await self._find_partitions(self._ring)
        state, revision, live = await self._nodes.look(self._ring)
        if self._member not in live:
            self._must_join = True
            self._ring()
            return
        self._state = state
        claims = self._claims | self._unsure
        steps = next_steps(self._member, live, state, claims, len(self._partitions))
        if steps.is_behind:
            raise MetadataUnavailableError(f"{self} is behind: partitions were added")
        if steps.rebalance is not None:
            await self._nodes.rebalance(steps.rebalance, revision)
            self._ring()
            return
        # Either may be repeated.
        claim = steps.claim | (self._unsure - steps.release)
        # What still went on after a failure would be begun once more by the next look.
        await finish_all(
            *map(self._release, steps.release),
            *(self._claim(number, revision) for number in claim),
        )
        closed = self._claims - self._shares.keys()
        await finish_all(*map(self._open_share, closed))

    async def _join(self) -> None:
        context = stream_context(self._partitions[0])
        session_id = await self._nodes.store.renew_session()
        if session_id != self._session_id:
            self._session_id = session_id
            self._member = f"{context.client_id}-{context.store.env.random.getrandbits(32):08x}"
        await self._nodes.join(self._member)
        self._must_join = False

    async def _claim(self, number: int, revision: Revision) -> None:
        member = self._member
        self._unsure.add(number)
        is_claimed = await self._nodes.claim(number, member, revision, self._ring)
        if is_claimed and not self._must_join and member == self._member:
            self._claims.add(number)
            self._unsure.discard(number)

    async def _open_share(self, number: int) -> None:
        stream, options = self._partitions[number], self._options
        cursor = await stream.cursor(
            self._group, start=options.start, holds_retention=options.holds_retention
        )
        if number not in self._claims:
            return  # the session ended meanwhile
        await take_over(cursor, self._member)
        first = await resume_position(stream_context(stream), cursor)
        await _told(options.on_assigned, number)
        if number not in self._claims:
            return
        reader = StreamReader(stream_context(stream), first, self._reader_options)
        progress = Progress(cursor, options.auto_commit_s, self._ring, self._catch_up)
        again = Redeliveries(stream_context(stream), cursor, self._letters)
        self._shares[number] = share = PartitionShare(cursor, reader, progress, again)
        self._merged.add(number, share.source.read_batches)
        self._merged.add(~number, again.read_batches, ahead_bytes=0)

    async def _release(self, number: int) -> None:
        """Stop handing out a partition, and let another one have it."""
        if number in self._shares:
            pumps = self._forget(number)
            with contextlib.suppress(TimeoutError):
                async with patience.timeout(self._options.release_timeout_s):
                    while number in self._in_hand or number in self._again:
                        self._came_back.clear()
                        await self._came_back.wait()
            if number in self._shares:
                await _told(self._options.on_revoked, number)
            await cancel_and_wait(pumps)
            await self._drop(number, commits=True)
        member = self._member
        if number in self._claims | self._unsure:
            self._claims.discard(number)
            self._unsure.add(number)
            await self._nodes.release(number, member)
            self._unsure.discard(number)

    def _forget(self, number: int) -> list[asyncio.Task[None]]:
        """Hand out nothing more of a partition."""
        if self._source in (number, ~number):
            self._catch_up()
            self._hand.begin(None)
        return self._merged.forget(number) + self._merged.forget(~number)

    async def _drop(self, number: int, *, commits: bool = False) -> None:
        share = self._shares.pop(number, None)
        self._in_hand.pop(number, None)
        self._again.pop(number, None)
        if share is not None:
            await share.close(self._forget(number), commits=commits)

    def _on_session_expired(self) -> None:
        """Hand out nothing more: others may have the partitions now."""
        self._must_join = True
        self._claims.clear()
        self._unsure.clear()
        shares, self._shares = self._shares, {}
        for number, share in shares.items():
            closing = share.close(self._forget(number), commits=False)
            self._ending.add(asyncio.ensure_future(closing))
        self._ending = {task for task in self._ending if not task.done()}
        self._in_hand.clear()
        self._again.clear()
        self._came_back.set()
        self._ring()

    def __repr__(self) -> str:
        return f"<Consumer {self._member} of group {self._group}, {sorted(self._shares)}>"


async def join_group(consumer: Consumer) -> Consumer:
    """Make a consumer a member; ``PartitionedStream.consumer`` does it."""
    return await consumer._open()  # noqa: SLF001 - of this module
