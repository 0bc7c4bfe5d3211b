"""The second half of ``quorumbook demo``: a ledger that lost a bookie heals, and is looked through.

Auto-recovery does the healing; here it is only watched, by what anybody can see: the mark in the
queue of under-replicated ledgers, the bookies' lists of what they hold, and the ledger's metadata.
Then every copy of every entry is read from the very bookie that should hold it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorumbook.cli.errors import DifferenceFoundError
from quorumbook.cli.progress import progress
from quorumbook.client.context import client_context, client_store
from quorumbook.env import patience
from quorumbook.errors import NoSuchEntryError, QuorumbookError

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.client.context import Context
    from quorumbook.client.writing.writer import LedgerWriter
    from quorumbook.ids import BookieId, EntryId, LedgerId
    from quorumbook.ledger.metadata import LedgerMetadata
    from quorumbook.protocol.digest import Digester

_LOOK_S = 0.2
_TELL_S = 1.0
#: Far beyond what it takes; who sets long session time-outs or delays has to wait longer.
_HEALED_WITHIN_S = 300.0
_MOST_ENTRIES = 10_000


class NotHealedError(QuorumbookError):
    """The ledger lacks replicas still."""

    code = -1


@dataclass(slots=True)
class HealingDemo:
    """What was seen of it; times are seconds after the kill, None until it happened."""

    noticed_s: float | None = None
    healed_s: float | None = None
    #: Entries that the killed bookie should hold, and those that others have instead by now.
    lacking: int = 0
    copied: int = 0

    def notice(self, after_s: float) -> None:
        """The ledger stands among those that lack replicas, or has stood there."""
        if self.noticed_s is None:
            self.noticed_s = after_s

    def heal(self, after_s: float) -> None:
        """Nothing lacks any more."""
        self.healed_s, self.copied = after_s, self.lacking

    def count(self, lacking: int, copied: int) -> None:
        """So many entries are to be copied, and so many were."""
        self.lacking, self.copied = lacking, copied


async def watch(bk: BookKeeper, ledger_id: LedgerId, lost: BookieId, seen: HealingDemo) -> None:
    """Note what happens to a ledger until no fragment of it names a bookie that was just killed.

    Raises:
        NotHealedError: nothing of that came in five minutes.
    """
    from quorumbook.metadata.recovery.queue import UnderreplicationQueue

    began, queue = time.perf_counter(), UnderreplicationQueue(client_store(bk))
    try:
        while True:
            metadata = await bk.ledger_metadata(ledger_id)
            after_s = time.perf_counter() - began
            is_healed = all(lost not in fragment.ensemble for fragment in metadata.fragments)
            if seen.noticed_s is None and (is_healed or await queue.read(ledger_id) is not None):
                seen.notice(after_s)
            if is_healed and await queue.read(ledger_id) is None:
                seen.heal(after_s)
                return
            await _count(client_context(bk), metadata, lost, seen)
            if after_s > _HEALED_WITHIN_S:
                raise NotHealedError(
                    f"ledger {ledger_id} lacks replicas {after_s:.0f} s after bookie {lost} was"
                    " killed; `quorumbook recovery underreplicated` says why"
                )
            await asyncio.sleep(_LOOK_S)
    finally:
        queue.close()


async def _count(
    context: Context, metadata: LedgerMetadata, lost: BookieId, seen: HealingDemo
) -> None:
    """Count the entries that a lost bookie should hold, and those that a new place has already."""
    from quorumbook.autorecovery.copying.verified_reads import listed_entries

    lacking = copied = 0
    # Where a ledger that is open ends is not known.
    fragments = metadata.fragments[: None if metadata.is_closed else -1]
    for fragment in fragments:
        if lost not in fragment.ensemble:
            continue
        end = metadata.last_entry_of(fragment) + 1
        lacking += end - fragment.first_entry_id
        if seen.noticed_s is None:
            continue
        for bookie_id in await context.bookies.writable() - set(fragment.ensemble):
            try:
                runs = await listed_entries(context, metadata.ledger_id, bookie_id)
            except QuorumbookError:
                continue
            for first, last in runs or ():
                copied += max(0, min(last + 1, end) - max(first, fragment.first_entry_id))
    if lacking:
        seen.count(lacking, copied)


async def tell(watching: asyncio.Task[None], seen: HealingDemo, say: Callable[[str], None]) -> None:
    """Say what has happened, and what happens from now on, until the ledger is healed."""
    told, is_noticed = -1, False
    while True:
        await asyncio.wait([watching], timeout=_TELL_S)
        if seen.noticed_s is not None and not is_noticed:
            is_noticed = True
            say(
                f"Nobody needs to do anything about the lost copies: {seen.noticed_s:.1f} s after"
                " the kill, when its session had ended, the auditor put the ledger into its queue."
            )
        if watching.done():
            watching.result()
            break
        if is_noticed and seen.copied != told:
            told = seen.copied
            say(f"Healing: {told:,} of {seen.lacking:,} lost copies have been made again.")
    say(
        f"{seen.healed_s:.1f} s after the kill the ledger was healed: {seen.lacking:,} entries"
        " were copied, and each one is on three bookies again."
    )


async def wait_for_last_copies(
    bk: BookKeeper, writer: LedgerWriter, entry_id: EntryId, killed: BookieId
) -> None:
    """Wait until all living bookies that should have the last entry do, and so all before it.

    An ack quorum has what was acknowledged.  Where a writer crashes, the other copies of its last
    entries may be missing, which only an audit of all replicas finds: another story.  What the
    killed one lacks, auto-recovery copies: it is still in the ensemble where everything was
    acknowledged before its place was given to another.
    """
    seal = _digester_of(writer.metadata)
    async with patience.timeout(_HEALED_WITHIN_S):
        for bookie_id in writer.metadata.fragment_of(entry_id).ensemble:
            while bookie_id != killed:
                if await _has(client_context(bk), seal, writer.id, bookie_id, entry_id):
                    break
                await asyncio.sleep(_LOOK_S)


async def _has(
    context: Context, seal: Digester, ledger_id: LedgerId, bookie_id: BookieId, entry_id: EntryId
) -> bool:
    from quorumbook.autorecovery.copying.verified_reads import read_verified

    try:
        await read_verified(context, seal, ledger_id, bookie_id, range(entry_id, entry_id + 1))
    except NoSuchEntryError:
        return False
    return True


async def verify_copies(
    bk: BookKeeper, ledger_id: LedgerId, sha256: str
) -> tuple[int, list[dict[str, object]]]:
    """Read every copy of every entry, verify its digest, and compare what each bookie gives.

    The ledger's ensembles must be as large as its write quorums, so that what lies at one position
    is all that was written.

    Returns:
        How many copies were read, and the fragments.

    Raises:
        DifferenceFoundError: a copy is missing, damaged, or not what was written.
    """
    metadata = await bk.ledger_metadata(ledger_id)
    positions = range(metadata.ensemble_size)
    total = len(positions) * (metadata.last_entry_id + 1)
    with progress("verifying", total) as advance:
        found = await asyncio.gather(
            *(
                _read_position(client_context(bk), metadata, position, advance)
                for position in positions
            )
        )
    for position, (_, found_sha256) in zip(positions, found, strict=True):
        if found_sha256 != sha256:
            raise DifferenceFoundError(
                f"the copies at position {position} of ledger {ledger_id} are not what was written"
            )
    fragments: list[dict[str, object]] = [
        {"first_entry_id": fragment.first_entry_id, "ensemble": list(fragment.ensemble)}
        for fragment in metadata.fragments
    ]
    return sum(count for count, _ in found), fragments


async def _read_position(
    context: Context, metadata: LedgerMetadata, position: int, advance: Callable[[int], None]
) -> tuple[int, str]:
    """Return how many entries the bookies at a position gave, and the SHA-256 of their lines."""
    digest, count = hashlib.sha256(), 0
    async for payloads in _payloads(context, metadata, position):
        digest.update(b"".join([payload + b"\n" for payload in payloads]))
        count += len(payloads)
        advance(len(payloads))
    return count, digest.hexdigest()


async def _payloads(
    context: Context, metadata: LedgerMetadata, position: int
) -> AsyncIterator[list[bytes]]:
    from quorumbook.autorecovery.copying.verified_reads import read_verified

    seal = _digester_of(metadata)
    entry_id: EntryId = 0
    while entry_id <= metadata.last_entry_id:
        fragment = metadata.fragment_of(entry_id)
        end = metadata.last_entry_of(fragment) + 1
        asked = range(entry_id, min(end, entry_id + _MOST_ENTRIES))
        try:
            entries = await read_verified(
                context, seal, metadata.ledger_id, fragment.ensemble[position], asked
            )
        except QuorumbookError as error:
            raise DifferenceFoundError(
                f"bookie {fragment.ensemble[position]} does not give its copy of entry"
                f" {entry_id} of ledger {metadata.ledger_id}: {error}"
            ) from error
        yield [seal.payload(entry) for entry in entries]
        entry_id += len(entries)


def _digester_of(metadata: LedgerMetadata) -> Digester:
    from quorumbook.protocol.digest import DigestType, digester

    assert metadata.digest_type is not None
    return digester(DigestType(metadata.digest_type), metadata.password or b"")
