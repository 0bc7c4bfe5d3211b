"""Brings one ledger back to all its copies, as far as that can be done now.

What is healed is decided by two sets.  The bookies to *leave* lose their place: their copies are
made anew on others, fragment by fragment, and each fragment's ensemble is changed by
compare-and-set when all of it was read back (R30).  The bookies to *mend* keep theirs: what they
lack, or hold damaged, is written to them again.  If that is wanted, copies also move where an
ensemble breaks the placement policy and a better one can be had.

The last fragment of a ledger that is not closed belongs to its writer.  There a lost bookie is
reported, and it is the caller's to wait, and to close the ledger by recovery in the end (S72).
Who may work on a ledger is the caller's as well; ``may_go_on`` is asked before anything counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quorumbook.autorecovery.copying.replication import Copier
from quorumbook.autorecovery.copying.verified_reads import missing_entries
from quorumbook.client.context import Context, change_metadata
from quorumbook.client.reading.last_confirmed import read_lac
from quorumbook.client.recovery import recover
from quorumbook.env import logger
from quorumbook.errors import (
    MetadataVersionConflict,
    NoSuchLedgerInMetadataError,
    NotEnoughBookiesError,
    QuorumbookError,
    SessionExpiredError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.machines.copy import CopyState, strands_to_mend, strands_to_move
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.transitions import moved_metadata
from quorumbook.protocol.digest import DigestType, digester, master_key

_log = logger("autorecovery.healing")
T = TypeVar("T")
#: So many targets may fail one after the other before a fragment is left for later.
_TARGETS = 3
#: A ledger may change under our hands so often before it is left for later.
_CONFLICTS = 5

#: Chooses a bookie for each failed position of a fragment, or for some of them.
Chooser = Callable[[Fragment, Mapping[int, BookieId]], Mapping[int, BookieId]]


@dataclass(slots=True)
class HealingOutcome:
    """What became of one ledger."""

    ledger_id: LedgerId
    #: It was deleted: nothing is missing of it.
    is_gone: bool = False
    #: Lost bookies in the last ensemble of a ledger that is not closed.
    open_on: tuple[BookieId, ...] = ()
    #: What stands in the way of the rest, by name.
    problems: list[str] = field(default_factory=list)
    copied_entries: int = 0
    copied_bytes: int = 0
    #: Places in ensembles that went to another bookie.
    moved: int = 0

    @property
    def is_healed(self) -> bool:
        """Tell whether nothing is left to do."""
        return not self.problems and not self.open_on


class Healer:
    """Heals ledgers of one cluster, with the client and the budget of one process.

    Args:
        context: The client's.
        password: Of ledgers whose metadata don't hold one.
    """

    def __init__(self, context: Context, password: bytes = b"") -> None:
        self._context = context
        self._password = password

    async def heal(
        self,
        ledger_id: LedgerId,
        *,
        leave: Collection[BookieId] = (),
        mend: Collection[BookieId] = (),
        adhere: bool = False,
        choose: Chooser | None = None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> HealingOutcome:
        """Heal a ledger.

        Args:
            ledger_id: Which.
            leave: Bookies that hold none of it afterwards.
            mend: Bookies that lack something, or may.
            adhere: Whether ensembles are changed that break the placement policy.
            choose: Chooses the new bookies; the placement policy if not given.
            may_go_on: Tells whether the ledger is still ours to work on.

        Raises:
            MetadataError: the metadata store cannot be asked.
            SessionExpiredError: the ledger is not ours any more.
        """
        outcome = HealingOutcome(ledger_id)
        job = _Job(self._context, self._password, leave, mend, adhere, choose, may_go_on, outcome)
        for _ in range(_CONFLICTS):
            outcome.problems.clear()
            try:
                await job.run()
            except NoSuchLedgerInMetadataError:
                outcome.is_gone = True
            except MetadataVersionConflict as conflict:
                outcome.problems.append(str(conflict))
                continue
            break
        return outcome

    async def close_ledger(self, ledger_id: LedgerId) -> None:
        """Shut the writer of a ledger out and close it where it ends.

        Raises:
            LedgerRecoveryError: too few bookies gave a definite answer.
            NoSuchLedgerInMetadataError: it was deleted.
        """
        metadata, version = await self._context.ledgers.read(ledger_id)
        if not metadata.is_closed:
            password = self._password if metadata.password is None else metadata.password
            seal = digester(metadata.digest_type or DigestType.CRC32, password)
            await recover(self._context, seal, metadata, version, password)


class _Job:
    """One ledger's healing."""

    def __init__(
        self,
        context: Context,
        password: bytes,
        leave: Collection[BookieId],
        mend: Collection[BookieId],
        adhere: bool,
        choose: Chooser | None,
        may_go_on: Callable[[], bool],
        outcome: HealingOutcome,
    ) -> None:
        self._context = context
        self._budget = context.env.background
        self._default_password = password
        self._leave = frozenset(leave)
        self._mend = frozenset(mend) - self._leave
        self._adhere = adhere
        self._choose_by = choose
        self._may_go_on = may_go_on
        self._outcome = outcome

    async def run(self) -> None:
        ledger_id = self._outcome.ledger_id
        self._metadata, self._version = await self._context.ledgers.read(ledger_id)
        metadata = self._metadata
        stored = metadata.password
        password = self._default_password if stored is None else stored
        self._master_key = master_key(password)
        # Writers so old that they did not say knew no other digest by default.
        self._digester = digester(metadata.digest_type or DigestType.CRC32, password)
        self._outcome.open_on = ()
        for first_entry_id in [fragment.first_entry_id for fragment in metadata.fragments]:
            fragment = self._fragment_at(first_entry_id)
            if fragment is None:
                continue
            lost = {i: b for i, b in enumerate(fragment.ensemble) if b in self._leave}
            if fragment is self._metadata.last_fragment and not self._metadata.is_closed:
                self._outcome.open_on = tuple(lost.values())
            elif lost:
                await self._tried(self._move(fragment, lost))
            elif self._adhere:
                await self._tried(self._place(fragment))
            # A move may have replaced some of its bookies before it failed.
            fragment = self._fragment_at(first_entry_id)
            if fragment is None:
                continue
            for position, bookie_id in enumerate(fragment.ensemble):
                if bookie_id in self._mend:
                    await self._tried(self._mend_copy(fragment, position))

    def _fragment_at(self, first_entry_id: EntryId) -> Fragment | None:
        """Return the fragment that begins there by now, or None if the ledger ends before it."""
        fragment = self._metadata.fragment_of(first_entry_id)
        return fragment if fragment.first_entry_id == first_entry_id else None

    async def _tried(self, step: Coroutine[Any, Any, T]) -> T | None:
        """Take a step; what keeps it from being taken is noted, and the others are taken."""
        try:
            return await step
        except (SessionExpiredError, MetadataVersionConflict, NoSuchLedgerInMetadataError):
            raise
        except QuorumbookError as error:
            self._outcome.problems.append(str(error))
            return None

    def _check_ours(self) -> None:
        if not self._may_go_on():
            raise SessionExpiredError(
                f"ledger {self._outcome.ledger_id} is not ours to work on any more",
                ledger_id=self._outcome.ledger_id,
            )

    # Lost bookies --------------------------------------------------------------------------

    async def _place(self, fragment: Fragment) -> Fragment:
        """Move copies of a fragment that stand where the placement policy does not want them."""
        wanted = await self._context.bookies.repaired(
            self._metadata, fragment.ensemble, self._leave
        )
        if wanted is None:
            return fragment
        chosen = {i: new for i, new in enumerate(wanted) if new != fragment.ensemble[i]}
        return await self._move(
            fragment, {i: fragment.ensemble[i] for i in chosen}, lambda *_: chosen
        )

    async def _move(
        self, fragment: Fragment, lost: Mapping[int, BookieId], choose: Chooser | None = None
    ) -> Fragment:
        """Copy what lost bookies hold of a fragment, and record who has it now."""
        choose = choose or self._choose_by
        last = self._metadata.last_entry_of(fragment)
        refused: set[BookieId] = set()
        for _ in range(_TARGETS):
            chosen = (
                choose(fragment, lost) if choose else await self._choose(fragment, lost, refused)
            )
            strands = strands_to_move(self._metadata, fragment, last, chosen)
            state = CopyState(
                self._metadata, fragment, strands, chosen, last_resort=await self._away()
            )
            try:
                await self._copy(state)
            except QuorumbookError:
                if state.failed_target is None or choose is not None:
                    raise
                refused.add(state.failed_target)
                continue
            moved = await self._record(fragment, last, {lost[i]: b for i, b in chosen.items()})
            left = sorted(set(lost.values()) & set(moved.ensemble))
            if left:
                raise NotEnoughBookiesError(f"no bookie is left to replace {', '.join(left)}")
            return moved
        raise NotEnoughBookiesError(
            f"copies of ledger {self._metadata.ledger_id} were taken by none of "
            f"{', '.join(sorted(refused))}"
        )

    async def _choose(
        self, fragment: Fragment, lost: Mapping[int, BookieId], refused: Collection[BookieId]
    ) -> Mapping[int, BookieId]:
        # Who is to leave is no place for copies either, even where it is not a member.
        return await self._context.bookies.replace(
            lost,
            self._metadata,
            fragment.ensemble,
            excluded={*self._leave, *refused},
            is_needed=True,
        )

    async def _away(self) -> frozenset[BookieId]:
        """Return those who are to leave and are not there: they are asked last."""
        bookies = self._context.bookies
        return self._leave - await bookies.writable() - await bookies.read_only()

    async def _record(
        self, fragment: Fragment, last: EntryId, moves: Mapping[BookieId, BookieId]
    ) -> Fragment:
        def change(current: LedgerMetadata) -> LedgerMetadata | None:
            self._check_ours()
            return moved_metadata(current, fragment, last, moves)

        self._metadata, self._version = await change_metadata(
            self._context,
            self._metadata,
            self._version,
            change,
            timeout_s=self._context.options.operation_timeout_s,
            # Who copied unlocked, paused for hours maybe, may find its copies collected.
            in_session=True,
        )
        self._outcome.moved += len(moves)
        _log.info(
            "ledger %d: from entry %d on, %s",
            self._metadata.ledger_id,
            fragment.first_entry_id,
            ", ".join(f"{new} holds what {old} held" for old, new in moves.items()),
        )
        return self._metadata.fragment_of(fragment.first_entry_id)

    # Incomplete and damaged copies ---------------------------------------------------------

    async def _mend_copy(self, fragment: Fragment, position: int) -> None:
        """Write to a bookie what it lacks of a fragment."""
        metadata = self._metadata
        last = None
        if fragment == metadata.last_fragment and not metadata.is_closed:
            # What is confirmed is the writer's very bytes; the rest is still its business.
            last = await read_lac(self._context, self._digester, metadata)
        last = metadata.last_entry_of(fragment, last)
        missing = await missing_entries(
            self._context, self._digester, self._budget, metadata, fragment, position, last
        )
        if missing:
            strands = strands_to_mend(metadata, {position: missing})
            targets = {position: fragment.ensemble[position]}
            await self._copy(CopyState(metadata, fragment, strands, targets))

    async def _copy(self, state: CopyState) -> None:
        self._check_ours()
        copier = Copier(
            self._context,
            self._budget,
            self._metadata.ledger_id,
            self._digester,
            self._master_key,
            state,
        )
        try:
            await copier.run()
        finally:
            self._outcome.copied_entries += state.copied_entries
            self._outcome.copied_bytes += copier.copied_bytes
