"""What the periodic checks look at in one ledger, and what they make of it.

    LedgerVerification   reads every entry of every copy and verifies its digest (S76)
    ReplicaCount         asks bookies for lists of what they hold, and counts copies by them
    PlacementCheck       judges ensembles by the placement policy and the ledger's labels

All look at what is settled: fragments that take no more entries (``copies.closed_fragments``).
A bookie that is not registered is the audits' business, one that gives no answer is unknown:
neither is reported as lacking something.  Whoever answers, and lacks entries that the write set
puts there or gives damaged ones, is; the worker asks it again and writes to it what it lacks.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from quorumbook.autorecovery.audits.copies import closed_fragments, count_copies
from quorumbook.autorecovery.copying.verified_reads import listed_entries, missing_entries
from quorumbook.client.context import Context
from quorumbook.env import logger
from quorumbook.errors import QuorumbookError
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.policy import Adherence
from quorumbook.protocol.digest import DigestType, digester

_log = logger("autorecovery.auditor")
#: Entries that a message names at most.
_NAMED = 5


class LedgerCheck(ABC):
    """One run of a check over all ledgers.

    Args:
        context: The client's.
        registered: Tells who is registered now.
    """

    def __init__(self, context: Context, registered: Callable[[], Collection[BookieId]]) -> None:
        self._context = context
        self._registered = registered
        #: Bookies that gave no answer, each as often as that happened.
        self.silent = 0

    @abstractmethod
    async def look(self, metadata: LedgerMetadata) -> set[BookieId] | None:
        """Return which bookies lack something of a ledger; None: it needs nobody's care."""

    def gauges(self) -> Mapping[str, float]:
        """Return what was found, by the name of its gauge, when all ledgers were looked at."""
        return {}

    def _note_silence(self, ledger_id: LedgerId, bookie_id: BookieId, error: object) -> None:
        self.silent += 1
        _log.debug("ledger %d: bookie %s gives no answer: %s", ledger_id, bookie_id, error)


class LedgerVerification(LedgerCheck):
    """Reads everything, at the pace of the background budget."""

    async def look(self, metadata: LedgerMetadata) -> set[BookieId] | None:
        """Return which bookies lack entries, or give damaged ones."""
        kind = metadata.digest_type or DigestType.CRC32
        seal = digester(kind, metadata.password or b"")
        budget = self._context.env.background
        lacking: set[BookieId] = set()
        for fragment in closed_fragments(metadata):
            for position, bookie_id in enumerate(fragment.ensemble):
                if bookie_id in lacking or bookie_id not in self._registered():
                    continue
                whole = metadata.fragment_of(fragment.first_entry_id)
                try:
                    missing = await missing_entries(
                        self._context, seal, budget, metadata, whole, position,
                        fragment.last_entry_id,
                    )  # fmt: skip
                except QuorumbookError as error:
                    self._note_silence(metadata.ledger_id, bookie_id, error)
                    continue
                if missing:
                    lacking.add(bookie_id)
                    _log.warning(
                        "ledger %d: bookie %s lacks, or has damaged, %s",
                        metadata.ledger_id, bookie_id, _entries(missing),
                    )  # fmt: skip
        return lacking or None


class ReplicaCount(LedgerCheck):
    """Counts copies, without reading entries."""

    def __init__(self, context: Context, registered: Callable[[], Collection[BookieId]]) -> None:
        super().__init__(context, registered)
        #: Ledgers by what the entry with the fewest copies lacks.
        self.without_any = 0
        self.below_ack_quorum = 0
        self.below_write_quorum = 0

    async def look(self, metadata: LedgerMetadata) -> set[BookieId] | None:
        """Return which bookies don't list what they should hold."""
        fragments = list(closed_fragments(metadata))
        members = {bookie_id for fragment in fragments for bookie_id in fragment.ensemble}
        asked = sorted(members & set(self._registered()))
        lists = dict(
            zip(
                asked,
                await asyncio.gather(*(self._list(metadata.ledger_id, b) for b in asked)),
                strict=True,
            )
        )
        quorum = metadata.write_quorum_size
        least = quorum
        lacking: set[BookieId] = set()
        for fragment in fragments:
            held = [lists.get(bookie_id) for bookie_id in fragment.ensemble]
            copies = count_copies(fragment.first_entry_id, fragment.last_entry_id, held, quorum)
            least = min(least, copies.least)
            lacking.update(fragment.ensemble[position] for position in copies.lacking)
        self.without_any += least == 0
        self.below_ack_quorum += 0 < least < metadata.ack_quorum_size
        self.below_write_quorum += metadata.ack_quorum_size <= least < quorum
        if least < metadata.ack_quorum_size:
            _log.warning(
                "ledger %d: some entry has %d copies, of %d", metadata.ledger_id, least, quorum
            )
        return lacking or None

    async def _list(
        self, ledger_id: LedgerId, bookie_id: BookieId
    ) -> list[tuple[EntryId, EntryId]] | None:
        try:
            found = await listed_entries(self._context, ledger_id, bookie_id)
        except QuorumbookError as error:
            self._note_silence(ledger_id, bookie_id, error)
            return None
        if found is None:
            self._note_silence(ledger_id, bookie_id, "it cannot say what it has")
        return found

    def gauges(self) -> Mapping[str, float]:
        """Return how many ledgers have an entry with too few copies."""
        return {
            "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": self.without_any,
            "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": self.below_ack_quorum,
            "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": self.below_write_quorum,
        }


class PlacementCheck(LedgerCheck):
    """Judges ensembles, and asks no bookie.

    Args:
        context: The client's.
        registered: Tells who is registered now.
        repairs: Whether ledgers that break the policy are marked, naming nobody.
    """

    def __init__(
        self, context: Context, registered: Callable[[], Collection[BookieId]], *, repairs: bool
    ) -> None:
        super().__init__(context, registered)
        self._repairs = repairs
        self.failed = 0
        self.soft = 0

    async def look(self, metadata: LedgerMetadata) -> set[BookieId] | None:
        """Return an empty set where the ledger is to be placed otherwise."""
        worst = Adherence.STRICT
        for fragment in closed_fragments(metadata):
            judged = await self._context.bookies.adherence(metadata, fragment.ensemble)
            worst = min(worst, judged)
        self.soft += worst is Adherence.SOFT
        if worst is not Adherence.FAIL:
            return None
        self.failed += 1
        _log.warning("ledger %d breaks the placement policy", metadata.ledger_id)
        return set() if self._repairs else None

    def gauges(self) -> Mapping[str, float]:
        """Return how many ledgers keep to the policy softly, or not at all."""
        return {
            "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": self.failed,
            "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY": self.soft,
        }


def _entries(missing: list[range]) -> str:
    """Name entries for people."""
    runs = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in missing[:_NAMED]]
    more = f" and {len(missing) - _NAMED} more runs" if len(missing) > _NAMED else ""
    count = sum(map(len, missing))
    return f"{count} entr{'y' if count == 1 else 'ies'} ({', '.join(runs)}{more})"
