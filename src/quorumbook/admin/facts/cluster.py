"""All that a verdict on a cluster is made of, in one picture.

Every ledger's metadata is read for it: only they tell which bookies should be there, and which
entries have no replica left on one that is.  A server keeps the picture for a while.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, MutableSequence
from dataclasses import dataclass, field

from quorumbook.admin.facts.bookies import DOWN, READ_ONLY, WRITABLE, BookieFacts, ask_all
from quorumbook.admin.facts.bookies import known_bookies as read_bookies
from quorumbook.env.shown import shown
from quorumbook.errors import MetadataFormatError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.danger import exposure
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.election import current_leader
from quorumbook.metadata.ledgers import LedgerManager, walk
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.quarantine import FailedHealing, Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore

#: So many names are kept of what is counted.
_NAMES_KEPT = 100


@dataclass(slots=True)
class LedgerFacts:
    """What the metadata of all ledgers say together."""

    #: When it was begun to read them.
    at_ms: int = 0
    ledgers: int = 0
    open_ledgers: int = 0
    #: Of closed ledgers, each byte once however many replicas it has.
    length_bytes: int = 0
    #: How many ledgers name each bookie.
    named: Counter[BookieId] = field(default_factory=Counter)
    #: Ledgers of whose entries some have no registered bookie; the first of them.
    unreadable: list[LedgerId] = field(default_factory=list)
    unreadable_count: int = 0
    #: Damaged metadata, in words; the first of them.
    damaged: list[str] = field(default_factory=list)
    damaged_count: int = 0


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster at one moment."""

    #: Without name and password.
    metadata_uri: str
    instance_id: str
    at_ms: int
    #: How long the metadata store took for one read.
    metadata_ms: float
    bookies: tuple[BookieFacts, ...]
    ledgers: LedgerFacts
    underreplicated: int
    quarantined: tuple[FailedHealing, ...]
    auditor: str | None
    is_recovery_enabled: bool
    #: What of the queue and the registrations could not be understood, in words.
    damaged: tuple[str, ...] = ()

    def ids(self, state: str) -> list[BookieId]:
        """Return the bookies in a state."""
        return [bookie.bookie_id for bookie in self.bookies if bookie.state == state]

    def row(self) -> dict[str, object]:
        """Return the numbers as JSON has them."""
        ledgers = self.ledgers
        return {
            "metadata": self.metadata_uri,
            "metadata_ms": round(self.metadata_ms, 3),
            "instance_id": self.instance_id,
            "at_ms": self.at_ms,
            "writable_bookies": len(self.ids(WRITABLE)),
            "read_only_bookies": len(self.ids(READ_ONLY)),
            "down_bookies": len(self.ids(DOWN)),
            "ledgers_at_ms": ledgers.at_ms,
            "ledgers": ledgers.ledgers,
            "open_ledgers": ledgers.open_ledgers,
            "length_bytes": ledgers.length_bytes,
            "unreadable_ledgers": ledgers.unreadable_count,
            "underreplicated_ledgers": self.underreplicated,
            "quarantined_ledgers": len(self.quarantined),
            "auditor": self.auditor,
            "recovery_enabled": self.is_recovery_enabled,
        }


async def all_ledgers(
    store: MetadataStore,
    damaged: MutableSequence[MetadataFormatError],
    *,
    after: LedgerId | None = None,
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield the metadata of all ledgers, ascending by id.

    Args:
        store: The cluster's metadata.
        damaged: Takes an error for each that cannot be understood.
        after: Only ledgers of greater ids.

    Raises:
        MetadataError: The store does not answer.
    """
    manager = LedgerManager(store)

    async def wanted() -> AsyncGenerator[LedgerId, None]:
        async with contextlib.aclosing(manager.list()) as ids:
            async for ledger_id in ids:
                if after is None or ledger_id > after:
                    yield ledger_id

    async with contextlib.aclosing(walk(wanted(), manager.read_many, damaged)) as found:
        async for metadata in found:
            yield metadata


async def survey(store: MetadataStore) -> LedgerFacts:
    """Read the metadata of all ledgers."""
    bookies = await read_bookies(store)
    there = {bookie.bookie_id for bookie in bookies.bookies if bookie.state != DOWN}
    facts = LedgerFacts(at_ms=store.env.clock.wall_ms())
    damaged: list[MetadataFormatError] = []
    async for metadata in all_ledgers(store, damaged):
        facts.ledgers += 1
        facts.length_bytes += metadata.length
        facts.open_ledgers += not metadata.is_closed
        named = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        facts.named.update(named)
        if named <= there:
            continue
        if any(each.copies == 0 for each in exposure(metadata, there)):
            facts.unreadable_count += 1
            if len(facts.unreadable) < _NAMES_KEPT:
                facts.unreadable.append(metadata.ledger_id)
    facts.damaged_count = len(damaged)
    facts.damaged = [str(error) for error in damaged[:_NAMES_KEPT]]
    return facts


async def cluster_facts(
    store: MetadataStore, *, ledgers: LedgerFacts | None = None
) -> ClusterFacts:
    """Look at a cluster.

    Args:
        store: Its metadata.
        ledgers: What was found of the ledgers before; None has all of them read.

    Raises:
        ClusterNotInitializedError: There is no cluster.
        MetadataUnavailableError: The store does not answer.
    """
    began_ns = store.env.clock.now_ns()
    instance_id = await read_instance_id(store)
    metadata_ms = (store.env.clock.now_ns() - began_ns) / 1e6
    if ledgers is None:
        ledgers = await survey(store)
    known = await read_bookies(store, ledgers.named)
    queue = UnderreplicationQueue(store)
    problems: list[MetadataFormatError] = []
    try:
        underreplicated = len([mark.ledger_id async for mark in queue.list(problems)])
        is_enabled = await queue.is_enabled()
    finally:
        queue.close()
    try:
        election = TreePaths(store.ledgers_root).auditor_election
        auditor = await current_leader(store, election)
    except MetadataFormatError as error:
        problems.append(error)
        auditor = None
    failures = [failure async for failure in Quarantine(store).list() if failure.is_quarantined]
    return ClusterFacts(
        metadata_uri=shown(store.uri),
        instance_id=instance_id,
        at_ms=store.env.clock.wall_ms(),
        metadata_ms=metadata_ms,
        bookies=await ask_all(known.bookies, disks=True),
        ledgers=ledgers,
        underreplicated=underreplicated + len(problems),
        quarantined=tuple(failures),
        auditor=auditor,
        is_recovery_enabled=is_enabled,
        damaged=(*known.damaged, *map(str, problems)),
    )
