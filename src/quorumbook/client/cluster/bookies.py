"""The bookies a client knows: who takes writes, where they listen, which ones are suspect.

``ClientBookies`` watches the registrations, chooses ensembles and replacements from them, and keeps
the channels to every bookie it talked to.  A bookie that failed is in quarantine: it is not
chosen for new ensembles while enough others are there, and reads ask it last.  It ends early when
the bookie is provably back: a connection that works ends what a broken connection began, a bookie
that registers anew was started anew, and one that was silent or refused adds is asked to force a
ledger, which only a journal that works can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from quorumbook.client.cluster.placement import ClientPlacement
from quorumbook.client.cluster.racks import RackSource
from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.channels import ControlChannel
from quorumbook.client.transport.connection import Channel
from quorumbook.client.transport.deferred import DeferredChannel
from quorumbook.client.transport.entry_reads import ReadChannel
from quorumbook.client.transport.handshake import Security
from quorumbook.client.transport.ticker import Ticker
from quorumbook.client.waiting.outcomes import outcome_of
from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    BookieUnavailableError,
    ClientClosedError,
    MetadataError,
    NotEnoughBookiesError,
    QuorumbookError,
    SecurityError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.policy import Adherence, Shape
from quorumbook.metadata.bookies.service_info import BookieServiceInfo
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3

_log = logger("client.bookies")
_NS = 1_000_000_000
C = TypeVar("C", bound=Channel)
#: Registrations that could not be read when they changed are read again after this.
_READ_AGAIN_S = 5.0
#: How long after it failed a bookie is first asked for a proof; twice as long after each failure.
_FIRST_PROOF_S = 1.0


class Registrations(Protocol):
    """What is needed of ``metadata.registration``."""

    async def bookies(
        self, watch: Callable[[], None] | None = None
    ) -> tuple[Collection[BookieId], Collection[BookieId]]:
        """Return the writable and the read-only bookies."""
        ...

    async def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        """Return where a bookie listens."""
        ...

    async def service_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """Return what a registered bookie says about itself."""
        ...


@dataclass(slots=True)
class _Quarantine:
    until_ns: int
    #: Began with a lost or failed connection; one that works again ends it.
    is_connection: bool


class ClientBookies:
    """Registrations, quarantine and channels of one client."""

    def __init__(
        self,
        env: Env,
        registrations: Registrations,
        racks: RackSource,
        options: ClientOptions,
        ticker: Ticker,
        security: Security | None = None,
    ) -> None:
        self._env = env
        self._registrations = registrations
        self._options = options
        self._ticker = ticker
        #: Who is chosen, of those who can be.
        self.placement = ClientPlacement(
            env, registrations, racks, options.placement, self._free_bytes
        )
        self._security = security
        self._writable: frozenset[BookieId] = frozenset()
        self._read_only: frozenset[BookieId] = frozenset()
        self._is_stale = True
        self._refreshing: asyncio.Task[None] | None = None
        self._fast: dict[BookieId, ReadChannel] = {}
        self._control: dict[BookieId, ControlChannel] = {}
        self._deferred: dict[BookieId, DeferredChannel] = {}
        self._quarantine: dict[BookieId, _Quarantine] = {}
        #: How often a bookie was silent or refused adds, and who asks it for a proof.
        self._offences: dict[BookieId, int] = {}
        self._proofs: dict[BookieId, asyncio.Task[None]] = {}
        #: Until when bookies are asked last, because they were silent or gave damaged entries.
        self._slow: dict[BookieId, int] = {}
        self._on_change: dict[Callable[[], None], None] = {}
        self._later: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def quarantined(self) -> frozenset[BookieId]:
        """Return the bookies that are not chosen for now."""
        if not self._quarantine:
            return frozenset()
        now_ns = self._env.clock.now_ns()
        for bookie_id in [b for b, q in self._quarantine.items() if q.until_ns <= now_ns]:
            del self._quarantine[bookie_id]
        return frozenset(self._quarantine)

    def is_suspect(self, bookie_id: BookieId) -> bool:
        """Tell whether a bookie is in quarantine."""
        return bookie_id in self._quarantine and bookie_id in self.quarantined

    def read_ranks(self, ensemble: Sequence[BookieId]) -> Mapping[BookieId, int]:
        """Return who is asked later than others that store an entry: the higher, the later.

        Last come bookies in quarantine, before them those that were silent or gave damaged
        entries lately, and those that have many more reads under way than the idlest one.
        The others are asked in the order of how near they are, where we know that.
        """
        options = self._options
        if not options.reorder_reads:
            return {}
        ranks = dict(self.placement.nearness(ensemble))
        least = options.reorder_pending_reads
        if least:
            pending = [self.fast(bookie_id).pending_reads for bookie_id in ensemble]
            limit = min(pending) + least
            ranks |= {b: 3 for b, reads in zip(ensemble, pending, strict=True) if reads >= limit}
        now_ns = self._env.clock.now_ns()
        for bookie_id in [b for b, until_ns in self._slow.items() if until_ns <= now_ns]:
            del self._slow[bookie_id]
        ranks.update(dict.fromkeys(self._slow, 4))
        ranks.update(dict.fromkeys(self.quarantined, 5))
        return ranks

    def is_asked_late(self, bookie_id: BookieId, ensemble: Sequence[BookieId]) -> bool:
        """Tell whether others are asked for an entry before this one."""
        options = self._options
        if not (
            self._quarantine
            or self._slow
            or options.reorder_pending_reads
            or options.placement.local_location
        ):
            return False
        ranks = self.read_ranks(ensemble)
        return ranks.get(bookie_id, 0) > min(ranks.get(other, 0) for other in ensemble)

    def note_slow_read(self, bookie_id: BookieId) -> None:
        """Ask a bookie after others for a while: it was silent, or gave a damaged entry."""
        self._slow[bookie_id] = self._env.clock.now_ns() + int(self._options.quarantine_s * _NS)

    @property
    def pending_requests(self) -> int:
        """Return how many reads and other requests have no answer yet; adds are the writers'."""
        controls = (*self._control.values(), *self._deferred.values())
        reads = sum(each.pending_reads for each in self._fast.values())
        return reads + sum(each.pending_requests for each in controls)

    def fast(self, bookie_id: BookieId) -> ReadChannel:
        """Return the v2 channel to a bookie."""
        return self._channel(self._fast, ReadChannel, bookie_id)

    def control(self, bookie_id: BookieId) -> ControlChannel:
        """Return the v3 channel to a bookie."""
        return self._channel(self._control, ControlChannel, bookie_id)

    def deferred(self, bookie_id: BookieId) -> DeferredChannel:
        """Return the channel for adds that a bookie need not sync."""
        return self._channel(self._deferred, DeferredChannel, bookie_id)

    def _channel(self, known: dict[BookieId, C], kind: type[C], bookie_id: BookieId) -> C:
        channel = known.get(bookie_id)
        if channel is None:
            channel = known[bookie_id] = kind(
                self._env,
                bookie_id,
                self._resolve,
                self._options,
                self._ticker,
                self._on_connection,
                self._security,
            )
        return channel

    async def writable(self) -> frozenset[BookieId]:
        """Return the bookies that take new entries."""
        await self._fresh()
        return self._writable

    async def read_only(self) -> frozenset[BookieId]:
        """Return the bookies that only serve reads."""
        await self._fresh()
        return self._read_only

    @property
    def registered(self) -> frozenset[BookieId]:
        """Return the bookies that were there when the registrations were read last."""
        return self._writable | self._read_only

    async def new_ensemble(
        self, shape: Shape, custom_metadata: Mapping[str, bytes]
    ) -> tuple[BookieId, ...]:
        """Choose the bookies of a new ledger; quarantined ones only if it takes them.

        Only bookies that accept a connection are chosen, so that a ledger does not begin with
        an ensemble change after a bookie died and its registration lives on for a while.

        Args:
            shape: The ledger's.
            custom_metadata: The ledger's; say what bookies must carry, and how they are spread.

        Raises:
            NotEnoughBookiesError: too few bookies are writable and can be reached.
            SecurityError: so it is because they and we don't let each other in.
        """
        await self._fresh()
        refused: dict[BookieId, BookieUnavailableError] = {}
        while True:
            place = partial(self.placement.new_ensemble, shape, custom_metadata, self._writable)
            try:
                chosen = await place({*refused, *self.quarantined})
            except NotEnoughBookiesError:
                try:
                    chosen = await place(refused)
                except NotEnoughBookiesError as too_few:
                    for error in refused.values():
                        if isinstance(error, SecurityError):
                            # More bookies would be no remedy.
                            raise error  # noqa: B904 - it is the cause
                    if self._read_only:
                        raise self._beside_read_only(too_few) from None
                    raise
            newly_refused = await self.refusing(chosen)
            if not newly_refused:
                return chosen
            refused |= newly_refused

    def _beside_read_only(self, too_few: NotEnoughBookiesError) -> NotEnoughBookiesError:
        """Say that there are bookies, and what most often keeps them from being written to."""
        return NotEnoughBookiesError(
            f"{too_few}; {len(self._read_only)} are read-only, as a bookie is whose disk is "
            "fuller than bookie.max_disk_usage: see quorumbook bookie ls"
        )

    async def replace(
        self,
        failed: Mapping[int, BookieId],
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        *,
        excluded: Collection[BookieId] = (),
        is_needed: bool = False,
    ) -> dict[int, BookieId]:
        """Choose a bookie for each failed position, or for as many as there are bookies.

        Only bookies that accept a connection are chosen, and carry what labels the ledger wants.

        Args:
            failed: Positions and the bookies that stand there.
            metadata: The ledger's.
            ensemble: All present members.
            excluded: Bookies that are not to be chosen.
            is_needed: Without a replacement the ledger stops, so take a quarantined one too.

        Raises:
            NotEnoughBookiesError: there is none for any position.
        """
        await self._fresh()
        good: dict[int, BookieId] = {}
        refused = set(excluded)
        while missing := {i: b for i, b in failed.items() if i not in good}:
            members = [good.get(i, b) for i, b in enumerate(ensemble)]
            place = partial(self.placement.replacements, missing, metadata, members, self._writable)
            try:
                try:
                    chosen = await place({*refused, *self.quarantined})
                except NotEnoughBookiesError:
                    if not is_needed:
                        raise
                    chosen = await place(refused)
            except NotEnoughBookiesError:
                if good:
                    break
                raise
            refused.update(await self.refusing(chosen.values()))
            good.update({i: b for i, b in chosen.items() if b not in refused})
        return good

    async def repaired(
        self, metadata: LedgerMetadata, ensemble: Sequence[BookieId], excluded: Collection[BookieId]
    ) -> tuple[BookieId, ...] | None:
        """Return an ensemble that keeps to the placement policy, changed as little as can be.

        Returns:
            None if it keeps to it already, or nothing better can be had now.
        """
        await self._fresh()
        out = {*excluded, *(self.quarantined - set(ensemble))}
        return await self.placement.repaired(metadata, ensemble, self._writable, out)

    async def adherence(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> Adherence:
        """Tell how far an ensemble keeps to the placement policy and to its ledger's labels."""
        await self._fresh()
        return await self.placement.adherence(metadata, ensemble, self._writable)

    async def refusing(
        self, bookie_ids: Iterable[BookieId]
    ) -> dict[BookieId, BookieUnavailableError]:
        """Connect to bookies; return those that cannot be connected to, and why."""
        wanted = [bookie_id for bookie_id in bookie_ids if not self.fast(bookie_id).is_connected]
        if not wanted:  # as of nearly every new ledger
            return {}
        outcomes = await asyncio.gather(
            *(self.fast(bookie_id).connected() for bookie_id in wanted), return_exceptions=True
        )
        refused: dict[BookieId, BookieUnavailableError] = {}
        for bookie_id, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, BookieUnavailableError):
                refused[bookie_id] = outcome
            elif outcome is not None:
                raise outcome
        return refused

    async def has_replacement(self, metadata: LedgerMetadata, ensemble: Sequence[BookieId]) -> bool:
        """Tell whether a healthy bookie outside of the ensemble is known that a ledger may use."""
        others = self._writable - self.quarantined - set(ensemble)
        return bool(others and await self.placement.fitting(metadata, others))

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback run whenever the registrations changed; return its removal."""
        self._on_change[callback] = None
        return lambda: self._on_change.pop(callback, None) and None

    def report_failure(self, bookie_id: BookieId, ledger_id: LedgerId | None = None) -> None:
        """Put a bookie that refused or did not answer an add into quarantine.

        Args:
            bookie_id: Which.
            ledger_id: A ledger by which it can prove that it is back.
        """
        self._put_into_quarantine(bookie_id, is_connection=False)
        if ledger_id is None or bookie_id in self._proofs or bookie_id not in self._quarantine:
            return
        self._offences[bookie_id] = self._offences.get(bookie_id, 0) + 1
        task = asyncio.get_running_loop().create_task(self._ask_for_proof(bookie_id, ledger_id))
        self._proofs[bookie_id] = task
        task.add_done_callback(lambda _: self._proofs.pop(bookie_id, None))

    async def _ask_for_proof(self, bookie_id: BookieId, ledger_id: LedgerId) -> None:
        """End the quarantine as soon as the bookie syncs its journal."""
        delay_s = _FIRST_PROOF_S * 2 ** min(self._offences[bookie_id] - 1, 10)
        while self.is_suspect(bookie_id):
            await asyncio.sleep(delay_s)
            delay_s *= 2
            try:
                response = await self.control(bookie_id).request(
                    "a force", lambda txn_id: v3.encode_force(txn_id, ledger_id)
                )
            except QuorumbookError:
                continue
            if response.status is Status.OK:
                _log.info("bookie %s is back", bookie_id)
                self._quarantine.pop(bookie_id, None)

    async def close(self) -> None:
        """Close every channel and stop watching."""
        self._is_closed = True
        self._on_change.clear()
        task, self._refreshing = self._refreshing, None
        if self._later is not None:
            self._later.cancel()
        await self.placement.close()
        await cancel_and_wait([*self._proofs.values(), *([task] if task is not None else [])])
        channels: list[Channel] = [*self._fast.values(), *self._control.values()]
        for channel in [*channels, *self._deferred.values()]:
            await channel.close()

    async def _free_bytes(self, bookie_id: BookieId) -> int:
        response = await self.control(bookie_id).request("free space", v3.encode_bookie_info)
        return response.free_disk_bytes or 0

    async def _resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        return await self._registrations.resolve(bookie_id)

    def _on_connection(self, bookie_id: BookieId, is_good: bool) -> None:
        if not is_good:
            self._put_into_quarantine(bookie_id, is_connection=True)
            return
        quarantine = self._quarantine.get(bookie_id)
        if quarantine is not None and quarantine.is_connection:
            del self._quarantine[bookie_id]

    def _put_into_quarantine(self, bookie_id: BookieId, *, is_connection: bool) -> None:
        if self._is_closed or not self._options.quarantine_s:
            return
        known = self._quarantine.get(bookie_id)
        # Many clients see the same bookie fail at the same time; they must not all come back
        # to it at the same time.
        seconds = self._options.quarantine_s * (0.75 + 0.5 * self._env.random.random())
        until_ns = self._env.clock.now_ns() + int(seconds * _NS)
        if known is None:
            _log.warning("bookie %s is in quarantine for %.0f s", bookie_id, seconds)
            self._quarantine[bookie_id] = _Quarantine(until_ns, is_connection)
        else:
            known.until_ns = max(known.until_ns, until_ns)
            known.is_connection = known.is_connection and is_connection

    async def _fresh(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._is_stale and self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        if self._refreshing is not None:
            await outcome_of(self._refreshing)

    async def _refresh(self) -> None:
        try:
            while self._is_stale and not self._is_closed:
                self._is_stale = False
                writable, read_only = await self._registrations.bookies(self._changed)
                appeared = set(writable) - self._writable if self._writable else set()
                for bookie_id in self._quarantine.keys() & appeared:
                    del self._quarantine[bookie_id]
                self.placement.on_registrations()
                self._writable = frozenset(writable)
                self._read_only = frozenset(read_only)
        except MetadataError as error:
            # The bookies known so far are better than none, and are asked for again next time.
            self._is_stale = True
            # The watch may be used up, and whoever waits for a change asks for nothing.
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(_READ_AGAIN_S, self._read_again)
            if not self._writable:
                raise
            _log.warning("registrations cannot be read: %s", error)
            return
        finally:
            self._refreshing = None
        for callback in list(self._on_change):
            callback()

    def _read_again(self) -> None:
        self._later = None
        if self._is_stale:
            self._changed()

    def _changed(self) -> None:
        self._is_stale = True
        if self._refreshing is None and not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing = task
            task.add_done_callback(_log_failure)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.warning("registrations cannot be read: %s", task.exception())
