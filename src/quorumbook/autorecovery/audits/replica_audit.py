"""Reads every copy of a range of entries, on the very bookies that should hold it.

The periodic checks of ``ledger_checks`` say which bookie lacks something, for a worker to repair;
this says what is wrong with which copy, and compares copies with each other (``ledger.audit``).
Only settled entries are looked at: of a ledger that is being written, those before its last
fragment.  Nothing is fenced, marked or changed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from quorumbook.autorecovery.audits.copies import ClosedFragment, closed_fragments
from quorumbook.autorecovery.copying.verified_reads import listed_entries, read_verified, split
from quorumbook.client.context import Context
from quorumbook.env import Budget
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    BookieError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    TooManyRequestsError,
    UnauthorizedError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.audit import CopyFinding, RangeJudge, ReplicaFault, end_findings
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol.digest import Digester, DigestType, digester, entries_in, entry_marks

#: Entries that are read and compared together, at most; fewer where they are large.
_MOST_ENTRIES = 10_000
_BLOCKS_AHEAD = 4
_UNWEIGHED_ENTRIES = 16
_GUESSED_ENTRY_BYTES = 1024
#: A ledger whose bookies change while it is read is looked at again so often.
_LOOKS = 3
#: A bookie that sheds load is asked again after this, for so long.
_SHED_RETRY_S = 0.1
_PATIENCE_S = 30.0

Copies = dict[BookieId, bytes | ReplicaFault]
Runs = list[tuple[EntryId, EntryId]]


@dataclass(slots=True)
class Audited:
    """What an audit of a range came to."""

    entries: int = 0
    copies: int = 0
    read_bytes: int = 0
    findings: list[CopyFinding] = field(default_factory=list)


async def audit_range(
    context: Context,
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    last_entry_id: EntryId,
    budget: Callable[[BookieId], Budget],
) -> Audited:
    """Read and compare all copies of some entries of a ledger.

    Args:
        context: The client's.
        ledger_id: The ledger; nothing is found if it was deleted.
        first_entry_id: The first entry.
        last_entry_id: The last one, or any behind the ledger's end.
        budget: What reads of a bookie have to wait for.

    Raises:
        UnauthorizedError: the bookies have the ledger under another password.
        MetadataError: the metadata cannot be read.
    """
    result = Audited()
    seen_version = None
    for _ in range(_LOOKS):
        try:
            metadata, version = await context.ledgers.read(ledger_id)
        except NoSuchLedgerInMetadataError:
            return Audited()
        if version == seen_version:
            break  # what was found is true of the bookies that the metadata still names
        seen_version = version
        auditor = _RangeAudit(context, metadata, budget)
        result = await auditor.run(first_entry_id, last_entry_id)
        if not result.findings:
            break
    return result


class _RangeAudit:
    """One look at a range of a ledger."""

    def __init__(
        self, context: Context, metadata: LedgerMetadata, budget: Callable[[BookieId], Budget]
    ) -> None:
        self._context = context
        self._metadata = metadata
        self._budget = budget
        kind = metadata.digest_type or DigestType.CRC32
        self._digester: Digester = digester(kind, metadata.password or b"")
        self._entry_bytes = 0
        #: Whether all bookies have the same entries, and all answered so far.
        self._reads_together = metadata.write_quorum_size == metadata.ensemble_size
        self._listed: dict[BookieId, Runs | None] = {}
        self._result = Audited()

    async def run(self, first: EntryId, last: EntryId) -> Audited:
        """Judge the settled entries between two ids."""
        metadata, result = self._metadata, self._result
        judge = RangeJudge(
            metadata.ledger_id, self._digester.payload_offset, metadata.ensemble_size
        )
        fragments = list(closed_fragments(metadata))
        await self._list(fragments, first, last)
        judge.begin(await self._copies_before(fragments, first))
        for fragment in fragments:
            start = max(first, fragment.first_entry_id)
            await self._judge(judge, fragment, start, min(last, fragment.last_entry_id) + 1)
        result.findings = judge.findings
        if metadata.is_closed and first <= metadata.last_entry_id <= last:
            result.findings += end_findings(
                metadata.ledger_id, metadata.last_entry_id, metadata.length, judge.length,
                self._listed,
            )  # fmt: skip
        return result

    async def _judge(
        self, judge: RangeJudge, fragment: ClosedFragment, first: EntryId, stop: EntryId
    ) -> None:
        """Judge entries in blocks, of which the next ones are read meanwhile."""
        under_way: deque[tuple[range, asyncio.Task[bytes]]] = deque()
        try:
            while first < stop or under_way:
                while first < stop and len(under_way) < (_BLOCKS_AHEAD if self._entry_bytes else 1):
                    block = range(first, min(stop, first + self._block_entries))
                    task = asyncio.get_running_loop().create_task(self._same(fragment, block))
                    under_way.append((block, task))
                    first = block.stop
                block, task = under_way.popleft()
                data = await task
                if not self._judge_same(judge, fragment, block, data):
                    await self._judge_singly(judge, fragment, block)
        finally:
            await cancel_and_wait([task for _, task in under_way])

    async def _same(self, fragment: ClosedFragment, block: range) -> bytes:
        """Return a block's entries if all bookies give the same bytes; else nothing."""
        metadata = self._metadata
        if not self._reads_together:
            return b""
        options, bookies = self._context.options, self._context.bookies
        size = len(block) * (self._entry_bytes or _GUESSED_ENTRY_BYTES)

        async def ask(bookie_id: BookieId) -> bytes:
            await self._budget(bookie_id).take(size)
            found: list[bytes] = []
            left = block
            while left:  # bookies end their answers where it suits them
                answer = await bookies.fast(bookie_id).read_run(
                    metadata.ledger_id, left.start, len(left), options.read_batch_bytes
                )
                count = 0 if answer.code else entries_in(answer.data)
                if not count:
                    return b""
                found.append(answer.data)
                left = left[count:]
            return b"".join(found)

        try:
            first, *others = await asyncio.gather(*map(ask, fragment.ensemble))
        except QuorumbookError:
            self._reads_together = False  # who asks each bookie by itself learns which it is
            return b""
        return first if others.count(first) == len(others) else b""

    def _judge_same(
        self, judge: RangeJudge, fragment: ClosedFragment, block: range, data: bytes
    ) -> bool:
        """Judge a block that is the same everywhere; False if it is not.

        One copy is verified: the others are these very bytes.
        """
        if not data:
            return False
        offset = self._digester.payload_offset
        try:
            payloads = self._digester.open_run(data, self._metadata.ledger_id, block.start)
        except DigestMismatchError:
            return False
        if len(payloads) != len(block):
            return False
        sizes = list(map(len, payloads))
        marks = entry_marks(data, sizes, offset)
        judge.judge_agreed(block.start, marks.last_adds_confirmed, marks.lengths, sizes)
        self._entry_bytes = max(sizes) + offset
        self._result.entries += len(sizes)
        self._result.copies += len(sizes) * len(fragment.ensemble)
        self._result.read_bytes += (len(data) - 4 * len(sizes)) * len(fragment.ensemble)
        return True

    async def _judge_singly(
        self, judge: RangeJudge, fragment: ClosedFragment, block: range
    ) -> None:
        """Judge entries of which not all copies are alike, or which are not all on all bookies."""
        for entry_id, copies in zip(block, await self._read(fragment, block), strict=True):
            judge.judge(entry_id, copies)
            self._result.copies += len(copies)
        self._result.entries += len(block)

    @property
    def _block_entries(self) -> int:
        if not self._entry_bytes:
            return _UNWEIGHED_ENTRIES
        fitting = self._context.options.read_batch_bytes // (self._entry_bytes + 4)
        return max(1, min(_MOST_ENTRIES, fitting))

    async def _list(self, fragments: list[ClosedFragment], first: EntryId, last: EntryId) -> None:
        """Learn what the bookies of a range say that they have."""
        members = {
            bookie_id
            for fragment in fragments
            if fragment.first_entry_id <= last and fragment.last_entry_id >= first
            for bookie_id in fragment.ensemble
        }

        async def ask(bookie_id: BookieId) -> None:
            try:
                self._listed[bookie_id] = await listed_entries(
                    self._context, self._metadata.ledger_id, bookie_id
                )
            except QuorumbookError:
                self._listed[bookie_id] = None

        await asyncio.gather(*map(ask, sorted(members)))

    async def _copies_before(
        self, fragments: list[ClosedFragment], first: EntryId
    ) -> Copies | None:
        for fragment in fragments:
            if fragment.first_entry_id <= first - 1 <= fragment.last_entry_id:
                return (await self._read(fragment, range(first - 1, first)))[0]
        return None if first == 0 else {}

    async def _read(self, fragment: ClosedFragment, block: range) -> list[Copies]:
        """Return, for each entry of a block, what every bookie of its write set gives."""
        metadata = self._metadata
        shares = list(_shares(metadata, fragment, block))
        answers = await asyncio.gather(*(self._fetch(b, ids) for b, ids in shares))
        by_bookie: dict[BookieId, dict[EntryId, bytes | ReplicaFault]] = {}
        for (bookie_id, ids), bodies in zip(shares, answers, strict=True):
            by_bookie.setdefault(bookie_id, {}).update(zip(ids, bodies, strict=True))
        sizes = [len(b) for bodies in answers for b in bodies if isinstance(b, bytes)]
        self._result.read_bytes += sum(sizes)
        self._entry_bytes = max(sizes, default=self._entry_bytes)
        places = metadata.ensemble_size, metadata.write_quorum_size
        return [
            {
                bookie_id: by_bookie[bookie_id][entry_id]
                for bookie_id in (fragment.ensemble[p] for p in write_set(entry_id, *places))
            }
            for entry_id in block
        ]

    async def _fetch(self, bookie_id: BookieId, ids: range) -> list[bytes | ReplicaFault]:
        """Return what a bookie gives of some entries."""
        found: list[bytes | ReplicaFault] = []
        absent, _ = split(ids, self._listed.get(bookie_id))
        starts = {run[0]: run for run in absent}
        count = len(ids)
        while ids:
            run = starts.get(ids[0])
            asked = ids[:1] if run else ids[:count]
            bodies = await self._ask(bookie_id, asked)
            if isinstance(bodies, ReplicaFault):
                # What it neither lists nor gives is not asked for one by one.
                size = len(run) if run else 1
                if bodies is ReplicaFault.UNASKED:
                    size = len(ids)
                found += [bodies] * size
                ids = ids[size:]
                # Damage comes in runs: do not ask for much in vain.
                count = max(1, count // 2)
                continue
            found += bodies
            ids = ids[len(bodies) :]
            count = 2 * max(count, len(bodies))
        return found

    async def _ask(self, bookie_id: BookieId, ids: range) -> list[bytes] | ReplicaFault:
        """Return the first of some entries, or why the very first does not come."""
        clock = self._context.env.clock
        deadline_ns = clock.now_ns() + int(_PATIENCE_S * 1e9)
        await self._budget(bookie_id).take(len(ids) * (self._entry_bytes or _GUESSED_ENTRY_BYTES))
        while True:
            try:
                return await read_verified(
                    self._context, self._digester, self._metadata.ledger_id, bookie_id, ids
                )
            except DigestMismatchError:
                return ReplicaFault.CORRUPT
            except (NoSuchEntryError, NoSuchLedgerError):
                return ReplicaFault.MISSING
            except UnauthorizedError:
                raise
            except TooManyRequestsError:
                if clock.now_ns() > deadline_ns:
                    return ReplicaFault.UNASKED
                await asyncio.sleep(_SHED_RETRY_S)
            except BookieError:
                return ReplicaFault.UNREADABLE
            except QuorumbookError:
                return ReplicaFault.UNASKED


def _shares(
    metadata: LedgerMetadata, fragment: ClosedFragment, block: range
) -> Iterator[tuple[BookieId, range]]:
    """Yield which entries of a block each bookie stores, as ranges at one distance."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum_size
    for position, bookie_id in enumerate(fragment.ensemble):
        if size == quorum:
            yield bookie_id, block
            continue
        for offset in range(quorum):
            start = block.start + (position - offset - block.start) % size
            if start < block.stop:
                yield bookie_id, range(start, block.stop, size)
