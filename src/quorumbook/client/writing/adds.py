"""Drives the append machine of one writer: packs, sends, hears answers, notices silence.

Groups of payloads come in, their futures get resolved in order; nothing here runs per entry.
Which entries are safe, and what follows from a failure, is decided by ``ledger.append``; the
frames, the positions, the window's accounts and the time-outs around it are kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from quorumbook.client.context import Context
from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.connection import Channel
from quorumbook.client.transport.deferred import force, seal_deferred_adds
from quorumbook.client.waiting.outcomes import copy_error, outcome_of
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, Window
from quorumbook.client.writing.ensemble import EnsembleKeeper
from quorumbook.client.writing.explicit_lac import LacPublisher
from quorumbook.client.writing.pending import Group, PendingGroups
from quorumbook.client.writing.positions import EnsemblePosition, stripe_of
from quorumbook.env import logger
from quorumbook.errors import (
    AddQuorumTimeoutError,
    BookieUnavailableError,
    ClientClosedError,
    InternalError,
    LedgerFencedError,
    QuorumbookError,
    ReadOnlyBookieError,
    RequestTimeoutError,
    TooManyRequestsError,
    UnauthorizedError,
)
from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.append_effects import (
    AppendFailed,
    ChangeEnsemble,
    Confirmed,
    DegradedWarning,
    Send,
)
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.status import error_for, status_of_v2
from quorumbook.protocol.v2 import packets as v2

_log = logger("client.writer")
_NS = 1_000_000_000
#: A bookie that sheds load gets the refused entries again after this.
_SHED_RETRY_S = 0.05


class AddDriver:
    """The adds of one writer under way; it listens to the channels of its bookies."""

    def __init__(
        self,
        context: Context,
        options: ClientOptions,
        metadata: LedgerMetadata,
        version: int,
        password: bytes,
        on_failed: Callable[[QuorumbookError], None],
        *,
        is_deferred_sync: bool = False,
    ) -> None:
        """Begin with a ledger that was just created.

        Args:
            context: The client's.
            options: The writer's.
            metadata: As written.
            version: Its version.
            password: The ledger's.
            on_failed: Runs once when the writer is done for.
            is_deferred_sync: Bookies acknowledge before they sync; ``force`` makes up for it.
        """
        self._context = context
        self._options = options
        self._clock = context.env.clock
        self._loop = asyncio.get_running_loop()
        self._id = metadata.ledger_id
        self._on_failed = on_failed
        self._is_deferred_sync = is_deferred_sync
        self._master_key = master_key(password)
        self._digester = digester(metadata.digest_type or DigestType.CRC32C, password)
        self.state = AppendState(
            metadata,
            delay_ensemble_change=options.delay_ensemble_change,
            require_replacement=options.require_replacement,
            max_ensemble_changes=options.max_ensemble_changes or None,
            is_deferred_sync=is_deferred_sync,
            ack_domains=context.bookies.placement.ack_domains,
        )
        self.keeper = EnsembleKeeper(
            context,
            self.state,
            version,
            self._on_ensemble_progress,
            require_replacement=options.require_replacement,
        )
        self._lac = LacPublisher(
            context,
            self.state,
            self._digester,
            self._master_key,
            options.lac_delay_s,
            options.operation_timeout_s,
            self._on_lac_refused,
        )
        self.window = Window(options.max_pending_entries, options.max_pending_bytes)
        self._pending = PendingGroups()
        self._forcing: set[asyncio.Task[None]] = set()
        #: A heap: callers may wait for any entry.
        self._awaited: list[tuple[EntryId, int, asyncio.Future[None]]] = []
        self._tickets = count()
        self._positions: list[EnsemblePosition] = []
        self._position_of: dict[BookieId, EnsemblePosition] = {}
        self._bind_positions()

    # Packing and sending -------------------------------------------------------------------

    def send(self, groups: Sequence[Group]) -> None:
        """Pack groups and send them, together, to everybody who stores them."""
        now_ns = self._clock.now_ns()
        lac = self.state.last_add_confirmed
        for group in groups:
            self._pack(group, now_ns)
        frames: Sequence[bytes] = groups[0].frames
        if len(groups) > 1:
            frames = [frame for group in groups for frame in group.frames]
        self._send_new(groups[0].first_entry_id, frames, now_ns)
        self._lac.on_sent(lac, now_ns)
        self._context.ticker.watch(self._check)
        if self.state.failed:
            # What was noted while nothing was pending is acted on now.
            self.act()

    def _pack(self, group: Group, now_ns: int) -> None:
        payloads = group.payloads
        sizes = list(map(len, payloads))
        total = sum(sizes)
        is_uniform = sizes.count(sizes[0]) == len(sizes)
        first, lac, length = self.state.push(total, len(sizes), None if is_uniform else sizes)
        group.first_entry_id = first
        group.size_bytes = total + len(sizes) * ENTRY_OVERHEAD_BYTES
        group.sent_ns = now_ns
        if self._is_deferred_sync:
            group.frames = seal_deferred_adds(
                self._digester, self._master_key, self._id, first, lac, length, payloads
            )
        else:
            group.frames, _ = v2.seal_add_frames(
                self._digester, self._master_key, 0, self._id, first, lac, length, payloads
            )
        group.payloads = ()
        self._pending.add(group)

    def _send_new(self, first: EntryId, frames: Sequence[bytes], now_ns: int) -> None:
        metadata = self.state.metadata
        ensemble_size, write_quorum_size = metadata.ensemble_size, metadata.write_quorum_size
        whole = b"".join(frames) if write_quorum_size == ensemble_size else None
        for index, _ in self.state.targets():
            position = self._positions[index]
            if whole is not None:
                position.send(whole, len(frames), now_ns)
                continue
            part = stripe_of(frames, first, index, ensemble_size, write_quorum_size)
            if part:
                position.send(b"".join(part), len(part), now_ns)

    def _send_again(self, position: EnsemblePosition, first: EntryId, last: EntryId) -> bool:
        """Send unconfirmed entries to one bookie again; False if none is left of them."""
        metadata = self.state.metadata
        frames = self._pending.frames_of(
            first, last, position.index, metadata.ensemble_size, metadata.write_quorum_size
        )
        if not frames:
            return False
        now_ns = self._clock.now_ns()
        position.since_ns = now_ns
        position.send(b"".join(frames), len(frames), now_ns)
        self._context.ticker.watch(self._check)
        return True

    # Waiting -------------------------------------------------------------------------------

    async def confirmed(self, entry_id: EntryId) -> None:
        """Wait until an entry is safe; raises the writer's error if it never will be."""
        if self.state.error is not None:
            raise copy_error(self.state.error)
        if entry_id <= self.state.last_add_succeeded:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        heappush(self._awaited, (entry_id, next(self._tickets), future))
        await future

    @property
    def has_unforced(self) -> bool:
        """Tell whether bookies may lose what they acknowledged, because they have not synced it."""
        return self.state.last_add_confirmed < self.state.last_add_succeeded

    async def force(self) -> None:
        """Have everything pushed so far synced, and confirmed by that.

        Raises:
            WriteFailedError: not every bookie did; what they acknowledged is not lost by that.
        """
        state = self.state
        await self.confirmed(state.last_add_pushed)
        last = state.last_add_succeeded
        if last <= state.last_add_confirmed:
            return
        bookies = self._context.bookies
        forcing = self._context.spawn(
            force(self._id, [bookies.deferred(bookie_id) for bookie_id in state.ensemble]),
            is_awaited=True,
        )
        self._forcing.add(forcing)
        try:
            await outcome_of(forcing)
        except ClientClosedError:
            if state.error is not None:
                raise copy_error(state.error) from None
            raise
        finally:
            forcing.cancel()
            self._forcing.discard(forcing)
        state.on_forced(last)
        if state.error is not None:
            raise copy_error(state.error)
        self._lac.on_confirmed()

    async def publish(self) -> None:
        """Have readers see everything that is confirmed; raises as ``LacPublisher.publish``."""
        await self._lac.publish()

    async def _on_lac_refused(self, refusals: Mapping[BookieId, QuorumbookError]) -> None:
        """Replace bookies that take no writes if others do; appends would find out only later."""
        refusing = [i for i, error in refusals.items() if isinstance(error, ReadOnlyBookieError)]
        if self._is_deferred_sync or not await self.keeper.could_replace(refusing):
            return
        for bookie_id in refusing:
            position = self._position_of.get(bookie_id)
            if position is not None:
                self._fail_position(position, refusals[bookie_id])
        self.state.retry_replacement()
        self.act()

    def stop(self) -> None:
        """Hear and publish nothing any more."""
        self._lac.stop()
        for forcing in self._forcing:
            forcing.cancel()
        for position in self._positions:
            position.detach()
        self._position_of.clear()

    # Answers -------------------------------------------------------------------------------

    def on_add_answers(self, channel: Channel, answers: v2.AddAnswers) -> None:
        """Take a run of answers; ``on_answers_end`` follows."""
        position = self._position_of.get(channel.bookie_id)
        if position is None:
            return  # late, of a bookie that was replaced
        _, first, last, code = answers
        position.on_answers(last - first + 1)
        if not code:
            self.state.on_acks(position.index, position.bookie_id, first, last)
            return
        error = error_for(
            status_of_v2(code), ledger_id=self._id, entry_id=first, bookie_id=channel.bookie_id
        )
        if isinstance(error, TooManyRequestsError):
            retry = partial(self._retry_shed, position, first, last, error)
            self._loop.call_later(_SHED_RETRY_S, retry)
            return
        self._fail_position(position, error)

    def on_answers_end(self) -> None:
        """Act on everything a packet brought, once."""
        self.act()

    def on_channel_lost(self, channel: Channel, error: BookieUnavailableError) -> None:
        """What was sent on the channel and not answered will never be answered."""
        self.on_channel_drained()  # what it never took is room again
        position = self._position_of.get(channel.bookie_id)
        if position is None or position.index in self.state.failed:
            return
        # Late answers of what was given up once may have been counted for what was sent since.
        is_idle = not position.outstanding and not self.state.owes(position.index)
        # The bookie that is met again may have lost what it had not synced.
        if is_idle and not self.has_unforced:
            return
        self._fail_position(position, error)
        self.act()

    def on_channel_drained(self) -> None:
        """A bookie took what had been piling up for it."""
        self.window.give_back(0, 0, self._clogged_bytes())

    def _retry_shed(
        self, position: EnsemblePosition, first: EntryId, last: EntryId, error: QuorumbookError
    ) -> None:
        """Send again what an overloaded bookie refused.

        Another bookie in its place would only get the load of all the others.  How long this
        goes on is bounded by the time an entry may take.
        """
        state = self.state
        is_current = self._position_of.get(position.bookie_id) is position
        if state.error is not None or not is_current or position.index in state.failed:
            return
        since_ns = position.since_ns
        if self._send_again(position, first, last):
            # The time-out of these entries runs on from their first sending.
            position.since_ns = since_ns
            return
        # Confirmed without it, and their frames are gone: this bookie has a hole.
        self._fail_position(position, error)
        self.act()

    def _fail_position(self, position: EnsemblePosition, error: QuorumbookError) -> None:
        position.forget()
        # A fence, or another's key, is the ledger's trouble and not the bookie's.
        if not isinstance(error, LedgerFencedError | UnauthorizedError | BookieUnavailableError):
            self._context.bookies.report_failure(position.bookie_id, self._id)
        elif isinstance(error, UnauthorizedError):
            self._context.has_met_strangers = True
        self.keeper.on_failure(position.index, error)
        self.state.on_failure(position.index, position.bookie_id, error)
        if self._options.delay_ensemble_change:
            self.keeper.start_watch()  # it keeps its place, and is used again when it is back

    # What the machine wants ----------------------------------------------------------------

    def act(self) -> None:
        """Carry out what the machine wants."""
        for effect in self.state.poll():
            if isinstance(effect, Confirmed):
                self._confirm(effect.last_entry_id)
            elif isinstance(effect, Send):
                ids = effect.entry_ids
                self._send_again(self._positions[effect.bookie_index], ids[0], ids[-1])
            elif isinstance(effect, ChangeEnsemble):
                self.keeper.start_change(effect)
            elif isinstance(effect, DegradedWarning):
                _log.warning(
                    "ledger %d goes on without %s: no bookie is left to replace it",
                    self._id,
                    ", ".join(effect.failed.values()),
                )
                self.keeper.start_watch()
            elif isinstance(effect, AppendFailed):
                self._fail(effect.error)

    def _confirm(self, last_entry_id: EntryId) -> None:
        pending = self._pending
        entries, size_bytes = pending.entries, pending.size_bytes
        pending.confirm(last_entry_id)
        awaited = self._awaited
        while awaited and awaited[0][0] <= last_entry_id:
            _, _, future = heappop(awaited)
            if not future.done():
                future.set_result(None)
        self.window.give_back(
            entries - pending.entries, size_bytes - pending.size_bytes, self._clogged_bytes()
        )
        self._lac.on_confirmed()

    def _fail(self, error: QuorumbookError) -> None:
        _log.info("ledger %d: the writer stops: %s", self._id, error)
        self._pending.fail(error)
        self._lac.stop()
        awaited, self._awaited = self._awaited, []
        for _, _, future in awaited:
            if not future.done():
                future.set_exception(copy_error(error))
        self._on_failed(error)
        self.window.clear()

    # Ensemble and time ---------------------------------------------------------------------

    def _on_ensemble_progress(self) -> None:
        if self.state.error is None:
            self._bind_positions()
        self.act()
        if self.state.is_degraded and self.state.failed and self.state.error is None:
            self.keeper.start_watch()

    def _bind_positions(self) -> None:
        """Have a position for each member of the present ensemble."""
        old = self._positions
        self._positions = []
        for index, bookie_id in enumerate(self.state.ensemble):
            if old and old[index].bookie_id == bookie_id:
                self._positions.append(old[index])
                continue
            if old:
                old[index].detach()
            bookies = self._context.bookies
            channel: Channel = bookies.fast(bookie_id)
            if self._is_deferred_sync:
                channel = bookies.deferred(bookie_id)
            self._positions.append(EnsemblePosition(index, bookie_id, channel, self._id, self))
        self._position_of = {position.bookie_id: position for position in self._positions}

    def _check(self, now_ns: int) -> bool:
        """Notice silence; the ticker asks a few times a second while adds are under way."""
        state = self.state
        if state.error is not None:
            return False
        if not self._pending and not any(p.outstanding for p in self._positions):
            # The usual end of an entry's time, once for each of thousands of ledgers.
            if self.window.clogged_bytes:
                self.on_channel_drained()
            if state.failed:
                self.act()
            return False
        limit_ns = now_ns - int(self._options.add_timeout_s * _NS)
        for position in self._positions:
            since_ns = position.silent_since_ns()
            if since_ns is not None and since_ns <= limit_ns:
                self._on_silent(position, since_ns)
        if self._pending:
            self._check_oldest(now_ns, limit_ns)
        self.on_channel_drained()
        self.act()
        return bool(self._pending) or any(position.outstanding for position in self._positions)

    def _check_oldest(self, now_ns: int, limit_ns: int) -> None:
        state = self.state
        sent_ns = self._pending.oldest.sent_ns
        quorum_ns = int(self._options.add_quorum_timeout_s * _NS)
        if quorum_ns and sent_ns <= now_ns - quorum_ns:
            entry_id = state.last_add_succeeded + 1
            state.abort(
                AddQuorumTimeoutError(
                    f"entry {entry_id} of ledger {self._id} did not reach its ack quorum within "
                    f"{self._options.add_quorum_timeout_s:g} s; its outcome is unknown",
                    ledger_id=self._id,
                    entry_id=entry_id,
                )
            )
        elif sent_ns <= limit_ns and not state.is_changing:
            # One answer lost among others that arrive is not noticed by counting them.
            failed = state.failed
            for index in state.missing(state.last_add_succeeded + 1):
                position = self._positions[index]
                since_ns = max(position.since_ns, sent_ns)
                if index not in failed and since_ns <= limit_ns:
                    self._on_silent(position, since_ns)

    def _on_silent(self, position: EnsemblePosition, since_ns: int) -> None:
        error = RequestTimeoutError(
            f"bookie {position.bookie_id} did not answer an add within "
            f"{self._options.add_timeout_s:g} s",
            ledger_id=self._id,
            bookie_id=position.bookie_id,
        )
        self._context.bookies.report_failure(position.bookie_id, self._id)
        self._fail_position(position, error)
        position.channel.drop_if_silent(since_ns)

    def _clogged_bytes(self) -> int:
        return max([position.channel.unsent_bytes for position in self._positions])

    def check(self) -> None:
        """Derive again what the accounts claim; for tests."""
        self.state.check()
        if self._pending.entries != self.state.pending_count and self.state.error is None:
            raise InternalError("groups and machine disagree about what is pending")
