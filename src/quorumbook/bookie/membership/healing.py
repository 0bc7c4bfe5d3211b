"""A bookie's damaged and doubtful ledgers: found, made known to the cluster, and trusted again.

What is damaged here (``storage.scrub``) and what is in limbo stays that way, over restarts, until
there is proof.  Meanwhile the ledger stands in the queue of under-replicated ledgers with this
bookie as the one that lacks copies; a replication worker, ours or the peer's, copies what it
lacks from the other bookies, by adding the entries here again or by giving them to another one.
A worker that saw nothing wrong takes the ledger off the queue; it is put there again, ever later.

The proof is the metadata of a closed ledger: every entry that its ensembles expect of this bookie
is here and readable, or none is expected of it any more.  Then limbo ends, and what is left of
the damage is forgotten.

Nothing is copied here, and no other bookie is asked for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass

from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    StorageError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.holdings import lacking
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore
from quorumbook.protocol.digest import Digester, DigestType, digester
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.options import Damage, ScrubOptions
from quorumbook.storage.scrub.scrubber import Scrubber
from quorumbook.storage.store import LedgerStorage

_log = logger("bookie.healing")
_LONGEST_PAUSE_S = 3600.0
_SECOND = 1_000_000_000


@dataclass(slots=True)
class HealingStatistics:
    """How many ledgers wait, and counters since the start."""

    damaged_ledgers: int = 0
    ledgers_in_limbo: int = 0
    marks: int = 0
    healed_ledgers: int = 0


@dataclass(slots=True)
class _Pause:
    """When a ledger is looked at again."""

    until_ns: int = 0
    length_s: float = 0.0


class Healing:
    """Scrubs, marks, and ends what is healed; used on the event loop.

    Args:
        env: The outside world.
        storage: Started.
        store: The metadata store.
        bookie_id: This bookie.
        options: How often and how fast.
    """

    def __init__(
        self,
        env: Env,
        storage: LedgerStorage,
        store: MetadataStore,
        bookie_id: BookieId,
        options: ScrubOptions,
    ) -> None:
        self._clock = env.clock
        self._storage = storage
        self._scrub_storage = storage.scrub
        self._ledgers = LedgerManager(store)
        self._queue = UnderreplicationQueue(store, bookie_id)
        self._bookie_id = bookie_id
        self._options = options
        self._pauses: dict[LedgerId, _Pause] = {}
        #: Damaged or in limbo when it was looked last.
        self._waiting: set[LedgerId] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.statistics = HealingStatistics()
        self.scrubber = Scrubber(
            self._scrub_storage,
            options,
            env,
            digester=self._digester,
            on_damage=self._found,
            on_index_damaged=storage.distrust_index,
        )

    def start(self) -> None:
        """Begin; what an earlier process left unhealed is looked at first."""
        self.scrubber.start()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End."""
        await self.scrubber.stop()
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait([task])
        self._queue.close()

    def numbers(self) -> dict[str, int]:
        """Return counters and sizes for metrics."""
        scrub = {f"scrub_{name}": n for name, n in asdict(self.scrubber.statistics).items()}
        return scrub | {f"healing_{name}": n for name, n in asdict(self.statistics).items()}

    def _found(self, damage: Damage) -> None:
        self._pauses.pop(damage.ledger_id, None)
        self._wake.set()

    async def _digester(self, ledger_id: LedgerId) -> Digester | None:
        """Return what verifies a ledger's entries, if the metadata can be had and says so."""
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except QuorumbookError as error:
            _log.info("the entries of ledger %d cannot be verified now: %s", ledger_id, error)
            return None
        kind, password = metadata.digest_type, metadata.password
        if kind in (None, DigestType.DUMMY) or (kind is DigestType.HMAC and password is None):
            return None
        return digester(kind, password or b"")

    async def _run(self) -> None:
        while True:
            try:
                await self.heal()
            except QuorumbookError as error:
                _log.warning("what is damaged or in limbo stays so for now: %s", error)
            except Exception:
                _log.exception("what is damaged or in limbo stays so for now")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._options.heal_interval_s, 0.01)):
                    await self._wake.wait()
            self._wake.clear()

    async def heal(self) -> None:
        """Look once at every ledger that is damaged or in limbo, unless it has a pause."""
        if await self._scrub_storage.damaged_runs():
            # What was added again replaces what is damaged; a disk that is full keeps nobody from
            # believing what it gives back.
            with contextlib.suppress(StorageError):
                await self._storage.flush()
        damaged: dict[LedgerId, list[StoredRun]] = {}
        for row in await self._scrub_storage.damaged_runs():
            damaged.setdefault(row.ledger_id, []).append(row)
        limbo = await self._scrub_storage.ledgers_in_limbo()
        self.statistics.damaged_ledgers = len(damaged)
        self.statistics.ledgers_in_limbo = len(limbo)
        waiting = sorted({*damaged, *limbo})
        self.statistics.healed_ledgers += len(self._waiting.difference(waiting))
        self._waiting = set(waiting)
        self._pauses = {one: self._pauses[one] for one in waiting if one in self._pauses}
        for ledger_id in waiting:
            pause = self._pauses.setdefault(ledger_id, _Pause())
            try:
                await self._heal_one(ledger_id, damaged.get(ledger_id, []), pause)
            except (MetadataFormatError, StorageError) as error:
                # That costs this ledger alone.
                _log.warning("ledger %d stays damaged or in limbo for now: %s", ledger_id, error)

    async def _heal_one(self, ledger_id: LedgerId, rows: list[StoredRun], pause: _Pause) -> None:
        if self._clock.now_ns() < pause.until_ns:
            # A disk that is mended gives all back: one run of them tells.
            if not rows or any(part.is_damaged for part in await self.scrubber.redeem(rows[0])):
                return
            rows = await self._scrub_storage.damaged_runs(ledger_id)
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedgerInMetadataError:
            return  # it is deleted here as well, on the proof that this takes
        if await self._is_healed(metadata, rows):
            _log.info("ledger %d is whole here again", ledger_id)
        elif rows or await self._lacks(metadata):
            await self._mark(ledger_id, pause)

    async def _is_healed(self, metadata: LedgerMetadata, rows: list[StoredRun]) -> bool:
        """End damage and limbo where there is proof; tell whether there is."""
        for row in rows:
            # The digest may not have been known when it was put on record, or the disk was away.
            await self.scrubber.redeem(row)
        if not metadata.is_closed:
            return (
                bool(rows)
                and not await self._scrub_storage.damaged_runs(metadata.ledger_id)
                and (not await self._is_in_limbo(metadata.ledger_id))
            )
        # Before the entries are counted: what is found damaged after that stays on record.
        left = await self._scrub_storage.damaged_runs(metadata.ledger_id)
        if await self._lacks(metadata):
            return False
        await self._scrub_storage.record([(row, ()) for row in left])
        await self._storage.clear_limbo([metadata.ledger_id])
        return True

    async def _is_in_limbo(self, ledger_id: LedgerId) -> bool:
        handle = self._storage.handle(ledger_id)
        return handle is not None and handle.is_in_limbo

    async def _lacks(self, metadata: LedgerMetadata) -> bool:
        return await lacks(self._storage, metadata, self._bookie_id)

    async def _mark(self, ledger_id: LedgerId, pause: _Pause) -> None:
        mark = await self._queue.read(ledger_id)
        pause_s = self._options.heal_interval_s
        if mark is None or self._bookie_id not in mark.replicas:
            await self._queue.mark(ledger_id, [self._bookie_id], self._clock.wall_ms())
            self.statistics.marks += 1
            # Somebody who took the mark off saw nothing wrong, and will not tomorrow.
            pause_s = min(max(2 * pause.length_s, pause_s), _LONGEST_PAUSE_S)
            pause.length_s = pause_s
        pause.until_ns = self._clock.now_ns() + int(pause_s * _SECOND)


async def lacks(storage: LedgerStorage, metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Tell whether a bookie lacks an entry that it has to hold and could give back.

    Raises:
        StorageError: The index cannot tell.
    """
    future: asyncio.Future[list[range]] = asyncio.get_running_loop().create_future()

    def done(answer: list[range] | BaseException) -> None:
        if future.done():
            return
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    storage.entry_ids(metadata.ledger_id, done)
    held = await future
    return await storage.scrub.run(
        lambda: next(lacking(metadata, bookie_id, held), None) is not None
    )
