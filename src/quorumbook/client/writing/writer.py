"""The writer of a ledger: entries in, ids out, in order, as fast as batches can be.

What the caller appends in one turn of the event loop is packed once, written once to each bookie,
and confirmed by runs; per entry there is one future and nothing else.  ``adds`` does that work;
here is what the caller sees: appending, waiting, closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from quorumbook.client.context import Context
from quorumbook.client.options import ClientOptions
from quorumbook.client.waiting.closing import ClosingQuietly
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, Window
from quorumbook.client.writing.adds import AddDriver
from quorumbook.client.writing.ending import Ending
from quorumbook.client.writing.explicit_ids import Append, ChosenAppends
from quorumbook.client.writing.pending import Group, frozen
from quorumbook.errors import (
    BackpressureError,
    InternalError,
    LedgerClosedError,
    LocalProtocolError,
    QuorumbookError,
)
from quorumbook.ids import FRAME_OVERHEAD_BYTES, EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata


class LedgerWriter(ClosingQuietly):
    """A ledger that this process writes; made by ``BookKeeper.create_ledger``.

    Use it as an async context manager: leaving it waits for pending entries and closes the
    ledger.  Cancelling an awaited ``append`` does not take the entry back; it may be stored.
    """

    def __init__(
        self,
        context: Context,
        options: ClientOptions,
        metadata: LedgerMetadata,
        version: int,
        password: bytes,
        on_over: Callable[[LedgerWriter], None] | None = None,
        *,
        is_deferred_sync: bool = False,
        explicit_entry_ids: bool = False,
    ) -> None:
        """Begin to write a ledger that was just created; see ``BookKeeper.create_ledger``."""
        self._context = context
        self._options = options
        self._id = metadata.ledger_id
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._adds = AddDriver(
            context,
            options,
            metadata,
            version,
            password,
            self._on_failed,
            is_deferred_sync=is_deferred_sync,
        )
        self._state = self._adds.state
        self._window = self._adds.window
        self._chosen: ChosenAppends | None = None
        #: What appends without an id look at; over from the beginning where ids are chosen.
        self._front = self._window
        if explicit_entry_ids:
            most = options.max_pending_entries
            self._chosen = ChosenAppends(self._id, self._window, most, self._append_row)
            self._front = Window(0, 0)
            self._front.is_over = True
        self._max_payload_bytes = options.max_frame_bytes - FRAME_OVERHEAD_BYTES
        # What was appended in this turn of the loop and is not packed yet.
        self._payloads: list[bytes] = []
        self._futures: list[asyncio.Future[EntryId]] = []
        self._unpacked: list[Group] = []
        self._is_flush_scheduled = False
        over = None if on_over is None else partial(on_over, self)
        self._ending = Ending(context, options, self._adds, over)
        #: What a child made by fork is told.
        self._forked: LocalProtocolError | None = None

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._id

    @property
    def options(self) -> ClientOptions:
        """The options of this writer."""
        return self._options

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote it."""
        return self._ending.metadata or self._state.metadata

    @property
    def last_add_pushed(self) -> EntryId:
        """The id of the newest entry appended so far, confirmed or not."""
        if self._chosen is not None:
            return self._chosen.last_entry_id
        unpacked = len(self._payloads) + sum(group.count for group in self._unpacked)
        return self._state.last_add_pushed + unpacked

    @property
    def last_add_confirmed(self) -> EntryId:
        """The id of the newest entry that is safe with all before it; -1 if there is none."""
        return self._state.last_add_confirmed

    @property
    def length(self) -> int:
        """How many payload bytes are confirmed."""
        return self._state.close_point()[1]

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be appended any more: closed, aborted or failed."""
        return self._ending.has_begun or self._state.error is not None

    @property
    def is_degraded(self) -> bool:
        """Whether writing goes on with fewer bookies than wanted."""
        return self._state.is_degraded

    @property
    def pending_entries(self) -> int:
        """How many entries were appended and are not confirmed."""
        return self._window.used_entries

    @property
    def pending_bytes(self) -> int:
        """How many bytes the window holds, with the bytes that slow bookies have not taken yet."""
        return self._window.used_bytes

    # Appending -----------------------------------------------------------------------------

    async def append(self, payload: bytes) -> EntryId:
        """Append an entry and wait until it is safe.

        If the window is full, it waits for room first.

        Args:
            payload: The entry; anything but ``bytes`` is copied.

        Returns:
            The entry's id.

        Raises:
            LedgerFencedError: another client took the ledger over; the entry's fate is unknown.
            LedgerClosedError: the writer is closed.
            LedgerError: the writer failed; the entry's fate is unknown.
        """
        if type(payload) is not bytes:
            payload = frozen(payload)
        window, size = self._front, len(payload)
        if window.has_waiters or not window.has_room(1, size):
            self._check_size(payload)  # who waits for its turn must also use it
            await window.wait()
            while not window.is_over and not window.has_room(1, size):
                await window.wait()
        return await self.append_nowait(payload)

    def append_nowait(self, payload: bytes) -> asyncio.Future[EntryId]:
        """Append an entry and return a future of its id.

        Raises:
            BackpressureError: the window is full; ``await drain()`` and try again.
            LedgerClosedError: the writer is closed, and other errors that ended it.
        """
        if type(payload) is not bytes:
            payload = frozen(payload)
        size = len(payload) + ENTRY_OVERHEAD_BYTES
        window = self._front
        if window.entries <= 0 or window.size_bytes < size or window.is_over:
            self._check_unnumbered()
            self._check_open()
            window.check_room(1, len(payload))
        if size > self._max_payload_bytes:
            self._check_size(payload)
        window.entries -= 1
        window.size_bytes -= size
        future: asyncio.Future[EntryId] = self._create_future()
        self._payloads.append(payload)
        self._futures.append(future)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._context.send_turns.call(self._flush)
        return future

    async def append_at(self, entry_id: EntryId, payload: bytes) -> EntryId:
        """Append an entry under an id, and wait until it and all entries below it are safe.

        Only for a ledger whose writer chooses the ids.  Ids may come in any order. An entry waits
        until all lower ids have come, so append them at the same time, and do not wait for one
        before you append the next.

        Args:
            entry_id: 0 or above, not used before.
            payload: The entry; anything but ``bytes`` is copied.

        Returns:
            The entry's id.

        Raises:
            DuplicateEntryIdError: the id was used before.
            LedgerClosedError: the writer is, or gets, closed while a lower id is missing.
            LocalProtocolError: this ledger's writer does not choose the ids.
            LedgerError: the writer failed; the entry's fate is unknown.
        """
        while True:
            try:
                future = self.append_at_nowait(entry_id, payload)
            except BackpressureError:
                await self._window.wait()
            else:
                return await future

    def append_at_nowait(self, entry_id: EntryId, payload: bytes) -> asyncio.Future[EntryId]:
        """Append an entry under an id and return a future of it; see ``append_at``.

        Raises:
            BackpressureError: the window is full, or the id too far ahead of a missing one.
        """
        if self._chosen is None:
            raise LocalProtocolError(
                f"ledger {self._id} gives the ids itself: create it with explicit_entry_ids",
                ledger_id=self._id,
            )
        self._check_open()
        payload = frozen(payload)
        self._check_size(payload)
        return self._chosen.append(entry_id, payload)

    def _append_row(self, row: list[Append]) -> None:
        for payload, future in row:
            self._payloads.append(payload)
            self._futures.append(future)
        self._schedule_flush()

    async def append_batch(self, payloads: Iterable[bytes]) -> range:
        """Append entries with consecutive ids, wait until all are safe, and return their ids.

        If the window is full, it waits for room first.

        Raises:
            LocalProtocolError: they are more than the window ever holds.
            LedgerError: as ``append`` says.
        """
        kept = [item if type(item) is bytes else frozen(item) for item in payloads]
        while True:
            try:
                future = self.append_batch_nowait(kept)
            except BackpressureError:
                await self._window.wait()
            else:
                return await future

    def append_batch_nowait(self, payloads: Iterable[bytes]) -> asyncio.Future[range]:
        """Append entries with consecutive ids and return one future of the range of ids.

        Raises:
            BackpressureError: the window has no room for them; ``await drain()`` and try again.
            LedgerClosedError: the writer is closed, and other errors that ended it.
            LocalProtocolError: they are more than the window ever holds.
        """
        kept = [item if type(item) is bytes else frozen(item) for item in payloads]
        future: asyncio.Future[range] = self._create_future()
        if not kept:
            next_id = self.last_add_pushed + 1
            future.set_result(range(next_id, next_id))
            return future
        self._append_group(Group(kept, None, future))
        return future

    def _append_group(self, group: Group) -> None:
        """Append what was put together elsewhere (the blocking twin does)."""
        payloads = group.payloads
        self._check_unnumbered()
        self._check_open()
        size = sum(map(len, payloads))
        self._window.check_room(group.count, size)
        self._check_size(max(payloads, key=len))
        self._window.entries -= group.count
        self._window.size_bytes -= size + group.count * ENTRY_OVERHEAD_BYTES
        self._gather_singles()
        self._unpacked.append(group)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._context.send_turns.call(self._flush)

    async def drain(self) -> None:
        """Wait until the window has room for the append that it refused last."""
        self._check_open()
        await self._window.drained()
        self._check_open()

    async def confirmed(self, entry_id: EntryId | None = None) -> None:
        """Wait until an entry, and all before it, are safe.

        Args:
            entry_id: Which; everything appended so far if not given.  It does not wait for entries
                that wait for a missing explicit id.

        Raises:
            LocalProtocolError: no entry has this id yet.
            LedgerError: the writer failed; the entry's fate is unknown.
        """
        self._flush()
        last = self._state.last_add_pushed
        if entry_id is not None and entry_id > last:
            raise LocalProtocolError(
                f"ledger {self._id} has no entry {entry_id} yet; the last is {last}",
                ledger_id=self._id,
                entry_id=entry_id,
            )
        await self._adds.confirmed(last if entry_id is None else entry_id)

    async def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it.

        Without ``flush``, readers see the last entries after ``lac_delay_s``; ``confirmed`` only
        waits until entries are safe.

        Raises:
            WriteFailedError: too few bookies were told within ``operation_timeout_s``; what was
                appended is safe.
            LedgerError: the writer failed.
        """
        await self.confirmed()
        await self._adds.publish()
        # An entry that was sent meanwhile carries the number; it tells nobody before it arrived.
        await self._adds.confirmed(self._state.last_add_pushed)

    async def force(self) -> EntryId:
        """Make all bookies of the ensemble sync everything that was appended so far.

        It does more than ``flush`` only for a ledger with deferred sync: there, only ``force``
        moves the last add confirmed, so that readers see the entries.

        Returns:
            The last add confirmed.

        Raises:
            WriteFailedError: a bookie did not sync; try again, or leave the ledger to recovery.
            LedgerError: the writer failed; what was not forced may or may not be stored.
        """
        self._flush()
        await self._adds.force()
        return self.last_add_confirmed

    async def close(self, *, force: bool = True) -> None:
        """Wait for pending entries, then close the ledger after the last confirmed one.

        With deferred sync the close begins with a force.  If that fails, the ledger stays open, and
        a recovery closes it after the last entry that bookies still have.  With ``force=False`` it
        is closed after the last forced entry; later entries are dropped.

        If the writer failed, the ledger is closed after the last confirmed entry, unless another
        client took it over, and the failure is raised. Whether later entries were stored is
        unknown; readers do not see them.  Several calls wait for the same close.

        Raises:
            LedgerFencedError: another client took the ledger over.
            MetadataVersionConflict: another client closed it at another entry.
            LedgerError: an earlier append failed.
        """
        self._check_owner()
        if not self._ending.is_closing:
            self._flush()
            self._state.close()
            if self._chosen is not None:
                self._chosen.give_up()
            self._window.is_over = True
            self._window.wake()
            self._ending.close(force=force)
        await self._ending.closed()

    async def abort(self) -> None:
        """Stop at once: pending appends fail, and the ledger stays open until it is recovered."""
        self._check_owner()
        self._ending.abort()
        self._stop(LedgerClosedError("the writer was aborted", ledger_id=self._id))
        await self._ending.stopped()

    def _stop(self, error: QuorumbookError) -> None:
        """Fail what is pending; the client calls it when it closes."""
        self._state.abort(error)
        self._adds.act()
        self._ending.detach()

    def _abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: take nothing more; see ``env.forks``."""
        self._forked = error
        if may_act:
            self._stop(error)
        self._state.error = self._state.error or error
        self._window.is_over = self._front.is_over = True

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<LedgerWriter {self._id}, {state}, confirmed {self.last_add_confirmed}>"

    def _gather_singles(self) -> None:
        if self._payloads:
            self._unpacked.append(Group(self._payloads, self._futures, None))
            self._payloads, self._futures = [], []

    def _flush(self) -> None:
        """Pack and send what was appended in this turn of the loop; runs once a turn."""
        self._is_flush_scheduled = False
        self._gather_singles()
        if not self._unpacked:
            return
        groups, self._unpacked = self._unpacked, []
        if self._state.error is None:
            try:
                self._adds.send(groups)
            except Exception as error:
                # A bug must end the writer loudly, not leave its callers waiting.
                failure = InternalError(f"sending failed: {error!r}")
                failure.__cause__ = error
                self._state.abort(failure)
                self._adds.act()
        if self._state.error is not None:
            for group in groups:
                group.fail(self._state.error)

    def _on_failed(self, error: QuorumbookError) -> None:
        if self._chosen is not None:
            self._chosen.give_up(error)
        self._gather_singles()
        groups, self._unpacked = self._unpacked, []
        for group in groups:
            group.fail(error)

    def _check_size(self, payload: bytes) -> None:
        """Raise LocalProtocolError if a payload fits into no frame."""
        if len(payload) > self._max_payload_bytes:
            raise LocalProtocolError(
                f"an entry of {len(payload)} bytes is larger than the {self._max_payload_bytes} "
                "that fit into a frame; split it",
                ledger_id=self._id,
            )

    def _check_unnumbered(self) -> None:
        if self._chosen is not None:
            raise LocalProtocolError(
                f"entries of ledger {self._id} need an id: use append_at", ledger_id=self._id
            )

    def _check_open(self) -> None:
        """Raise what ended the writer, if it is ended."""
        if self._state.error is not None:
            raise copy_error(self._state.error)
        if self._ending.has_begun:
            raise LedgerClosedError(f"ledger {self._id} is closed", ledger_id=self._id)

    def _check_owner(self) -> None:
        if self._forked is not None:
            raise copy_error(self._forked)


def append_group(writer: LedgerWriter, group: Group) -> None:
    """Append what was put together elsewhere, as the blocking twin and streams do."""
    writer._append_group(group)  # noqa: SLF001 - of this module


def check_append(writer: LedgerWriter, payload: bytes = b"") -> None:
    """Raise what stands against an append: what ended the writer, or a payload too large."""
    writer._check_open()  # noqa: SLF001 - of this module
    writer._check_size(payload)  # noqa: SLF001 - of this module


async def publish_confirmed(writer: LedgerWriter) -> None:
    """Wait until tailing readers can see what is confirmed by now, whatever is pending."""
    await writer._adds.publish()  # noqa: SLF001 - of this module


def check_accounts(writer: LedgerWriter) -> None:
    """Derive again what a writer's accounts claim; for tests and the simulation.

    Raises:
        InternalError: They contradict each other.
    """
    writer._adds.check()  # noqa: SLF001 - of this module


def stop_writer(writer: LedgerWriter, error: QuorumbookError) -> None:
    """Fail what is pending, and leave the ledger open."""
    writer._stop(error)  # noqa: SLF001 - of this module
