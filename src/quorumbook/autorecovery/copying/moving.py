"""Bookie recovery by an operator's order: everything that some bookies hold goes to others.

It is the same for bookies that are lost and for those that are drained while they serve; the
latter give their own copies.  What is left to do stands in the ledgers' metadata, so an order that
was interrupted is given again and goes on.  Ledgers are locked like a worker's: whatever a worker
is at is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from quorumbook.autorecovery.copying.healing import Chooser, Healer, HealingOutcome
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context, client_store
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    SessionExpiredError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.danger import share_of
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.recovery.quarantine import Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue, Work

#: A ledger that a worker is at is looked at again after this.
_LOCKED_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Share:
    """What some bookies hold of one ledger."""

    ledger_id: LedgerId
    state: str
    #: About how many payload bytes; 0 where the ledger is not closed: nobody knows yet.
    size_bytes: int
    bookies: tuple[BookieId, ...]

    @classmethod
    def of(cls, metadata: LedgerMetadata, bookie_ids: Collection[BookieId]) -> Share | None:
        """Return what bookies hold; None if they have no place in the ledger."""
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        found = tuple(sorted(members & set(bookie_ids)))
        if not found:
            return None
        size = round(metadata.length * share_of(metadata, found))
        return cls(metadata.ledger_id, metadata.state.name.lower(), size, found)


async def shares(client: BookKeeper, bookie_ids: Collection[BookieId]) -> AsyncIterator[Share]:
    """Yield what bookies hold, ascending by ledger.

    A ledger whose metadata cannot be understood comes last: nobody knows whether it names them, so
    it is in the way until somebody repairs or deletes it.
    """
    damaged: list[MetadataFormatError] = []
    async for metadata in client.list_ledgers(damaged=damaged):
        share = Share.of(metadata, bookie_ids)
        if share is not None:
            yield share
    for error in damaged:
        if error.ledger_id is not None:
            yield Share(error.ledger_id, "damaged", 0, tuple(sorted(bookie_ids)))


async def is_well_placed(
    client: BookKeeper, ledger_id: LedgerId, source: BookieId, target: BookieId
) -> bool:
    """Tell whether a bookie may take another's place in a ledger, as the placement policy sees it.

    Where an ensemble breaks the policy already, it may go on doing so.
    """
    metadata = await client.ledger_metadata(ledger_id)
    judge = client_context(client).bookies.adherence
    for fragment in metadata.fragments:
        if source in fragment.ensemble:
            after = tuple(target if b == source else b for b in fragment.ensemble)
            if await judge(metadata, after) < await judge(metadata, fragment.ensemble):
                return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """How ledgers are moved.

    Attributes:
        name: Whom the locks name, for people to read.
        ledgers_at_a_time: How many are moved at once.
        open_ledger_grace_s: How long writers have to replace the bookies themselves.
        skip_open: Leave ledgers alone that are not closed.
    """

    name: str
    ledgers_at_a_time: int = 2
    open_ledger_grace_s: float = 30.0
    skip_open: bool = False


@dataclass(slots=True)
class Moved:
    """What an order came to."""

    ledgers: int = 0
    copied_entries: int = 0
    copied_bytes: int = 0
    #: Why a ledger is still on the bookies.
    blocked: dict[LedgerId, str] = field(default_factory=dict)
    #: Those of them that are only being written: moving again moves them.
    for_later: set[LedgerId] = field(default_factory=set)

    def count(self, outcome: HealingOutcome) -> bool:
        """Take in what became of a ledger; tell whether it needs no other try."""
        self.copied_entries += outcome.copied_entries
        self.copied_bytes += outcome.copied_bytes
        if outcome.problems:
            self.blocked[outcome.ledger_id] = "; ".join(outcome.problems)
        elif outcome.open_on:
            return False
        else:
            self.ledgers += 1
        return True

    def add(self, other: Moved) -> None:
        """Take in what another order came to."""
        self.ledgers += other.ledgers
        self.copied_entries += other.copied_entries
        self.copied_bytes += other.copied_bytes
        self.blocked |= other.blocked


class Mover:
    """Carries one order out.

    Args:
        client: Started.
        leave: The bookies that are to hold nothing afterwards.
        options: See there.
        on_done: Runs with each share that is dealt with, whatever came of it.
        targets: Where each ledger's copies go; the placement policy decides if not given.
    """

    def __init__(
        self,
        client: BookKeeper,
        leave: Collection[BookieId],
        options: MoveOptions,
        *,
        on_done: Callable[[Share], None] = lambda share: None,
        targets: Mapping[LedgerId, BookieId] | None = None,
    ) -> None:
        self._context = client_context(client)
        self._store = client_store(client)
        self._leave = leave
        self._options = options
        self._on_done = on_done
        self._targets = targets or {}
        self._queue = UnderreplicationQueue(client_store(client), options.name)
        self._quarantine = Quarantine(client_store(client))
        self._healer = Healer(client_context(client))
        self.moved = Moved()

    async def run(self, chosen: Iterable[Share]) -> Moved:
        """Move shares; ledgers that are being written come last, when their writers had time.

        Raises:
            MetadataError: the metadata store cannot be asked.
        """
        try:
            waiting = await self._all(chosen, may_close=False)
            if waiting and not self._options.skip_open:
                await asyncio.sleep(self._options.open_ledger_grace_s)
                waiting = await self._all(waiting, may_close=True)
            for share in waiting:
                self.moved.blocked[share.ledger_id] = "it is being written"
                self.moved.for_later.add(share.ledger_id)
                self._on_done(share)
        finally:
            self._queue.close()
        return self.moved

    async def _all(self, chosen: Iterable[Share], *, may_close: bool) -> list[Share]:
        """Move shares, some at a time; return those of ledgers that are not closed."""
        left = iter(chosen)
        is_open: list[Share] = []

        async def work() -> None:
            for share in left:
                if await self._one(share, may_close=may_close):
                    self._on_done(share)
                else:
                    is_open.append(share)

        tasks = [asyncio.create_task(work()) for _ in range(self._options.ledgers_at_a_time)]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_and_wait(tasks)
        return is_open

    async def _one(self, share: Share, *, may_close: bool) -> bool:
        """Move one ledger's share; False if its writer is to be given time first."""
        try:
            outcome = await self._locked(share, may_close=may_close)
        except SessionExpiredError:
            await self._store.renew_session()
            return await self._one(share, may_close=may_close)
        except QuorumbookError as error:
            outcome = HealingOutcome(share.ledger_id, problems=[str(error)])
        return self.moved.count(outcome)

    async def _locked(self, share: Share, *, may_close: bool) -> HealingOutcome:
        while (work := await self._queue.take_this(share.ledger_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOCKED_PAUSE_S)
        outcome = None
        try:
            if may_close:
                await self._close(share)
            outcome = await self._healer.heal(
                share.ledger_id,
                leave=self._leave,
                choose=self._chooser(share.ledger_id),
                may_go_on=lambda: self._queue.is_held(work),
            )
            return outcome
        finally:
            try:
                await self._let_go(work, is_healed=outcome is not None and outcome.is_healed)
            finally:
                self._queue.give_up(work)

    async def _let_go(self, work: Work, *, is_healed: bool) -> None:
        if self._queue.is_held(work):
            # What a mark says beyond these bookies is not known to be done; one that names
            # nobody says that all copies are doubtful, and may stand in the wrong places.
            named = set(work.mark.replicas)
            if is_healed and named and named <= set(self._leave):
                await self._quarantine.remove(work.ledger_id)
                await self._queue.done(work)
            else:
                await self._queue.release(work)

    async def _close(self, share: Share) -> None:
        try:
            metadata, _ = await self._context.ledgers.read(share.ledger_id)
        except NoSuchLedgerInMetadataError:
            return
        if not metadata.is_closed and set(metadata.ensemble) & set(self._leave):
            await self._healer.close_ledger(share.ledger_id)

    def _chooser(self, ledger_id: LedgerId) -> Chooser | None:
        target = self._targets.get(ledger_id)
        if target is None:
            return None

        def choose(fragment: Fragment, lost: Mapping[int, BookieId]) -> Mapping[int, BookieId]:
            del fragment
            return dict.fromkeys(lost, target)

        return choose
