"""A storage on a disk that can lose power, its answers as futures, and a book of what it promised.

The index is a real SQLite file: what was committed is there after a crash, what was not is not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from doubles.inside import flusher_of, opened
from doubles.records import entry, lac_packet
from doubles.sim_threads import StepClock, StepThreads
from quorumbook.env import Env
from quorumbook.errors import StorageError
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.disks.index import ModelPlace
from quorumbook.storage.opening import StorageOwner
from quorumbook.storage.options import Damage, StartReport, StorageOptions
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.store import LedgerStorage

KEY = b"0123456789abcdefghij"
SMALL = StorageOptions(
    write_cache_size_bytes=64 * 1024,
    read_cache_size_bytes=256 * 1024,
    flush_interval_s=3600,
    retry_interval_s=0.01,
    journal_file_size_bytes=64 * 1024,
    entry_log_size_bytes=64 * 1024,
    reserve_size_bytes=16 * 1024,
)


class PowerLostError(StorageError):
    """The disk does nothing any more."""


def run_of(
    ledger_id: int, ids: Iterable[int], payload: bytes = b"payload", lac: int | None = None
) -> EntryRun:
    """Return a run of these ids; without ``lac`` each entry confirms the one before the first."""
    ids = list(ids)
    lac = ids[0] - 1 if lac is None else lac
    bodies = {i: entry(ledger_id, i, payload, lac) for i in ids}
    span = range(ids[0], ids[-1] + 1)
    if len(span) == len(ids):
        return EntryRun.of(ledger_id, ids[0], list(bodies.values()))
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies.values())
    return EntryRun(ledger_id, ids[0], ids[-1], [len(bodies.get(i, b"")) for i in span], data)


class World:
    """A storage, restarted as often as the test likes."""

    def __init__(
        self,
        tmp_path: Any,
        *,
        options: StorageOptions = SMALL,
        directories: int = 2,
        journals: int = 1,
        auto: bool = True,
        has_model_index: bool = False,
    ) -> None:
        self.disk = SimDisk()
        self.options = options
        self.index_path = f"{tmp_path}/index.sqlite"
        self.directories = [f"/ledgers{i}" for i in range(directories)]
        #: ``/journal``, and as many others as wanted.
        self.journals = ["/journal", *(f"/journal{i}" for i in range(1, journals))]
        self.auto = auto
        #: The index is the simulator's model of one, whose syncs can fail.
        self.has_model_index = has_model_index
        self.fatal: list[BaseException] = []
        self.full: list[str] = []
        self.damages: list[Damage] = []
        self.storage: LedgerStorage
        self.report: StartReport
        self.threads: StepThreads
        self._dead = False
        self._has_storage = False

    async def start(self, **changes: Any) -> StartReport:
        """Start a storage on what is there."""
        self.threads = StepThreads(auto=True)
        env = Env(clock=StepClock(), random=random.Random(1), disk=self.disk, threads=self.threads)
        self._has_storage = False
        self.storage = await LedgerStorage.open(
            env,
            journal_directories=self.journals,
            ledger_directories=self.directories,
            options=replace(self.options, **changes),
            told=StorageOwner(
                on_fatal=self.fatal.append,
                on_full=lambda error: self.full.append("full"),
                on_space=lambda: self.full.append("space"),
                on_damage=self.damages.append,
            ),
            index_path=self.index_path,
            indexes=ModelPlace(self.disk) if self.has_model_index else None,
        )
        self._has_storage = True
        self.report = self.storage.report
        return self.report

    def cut_power_at(self, call: int) -> None:
        """Let the ``call``-th disk call or index commit from now, and all later ones, fail."""
        left = call

        def on_call(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._dead = True
                raise PowerLostError(f"no power for {operation}", path=path)

        self.disk.faults.on_call = on_call
        self._on_call = on_call

    def watch_commits(self) -> None:
        """Count index commits as disk calls, before and after each."""
        index = opened(self.storage).index
        commit = index.commit

        def watched(**what: Any) -> Any:
            on_call = self.disk.faults.on_call or (lambda *_: None)
            on_call("commit", "index")
            result = commit(**what)
            on_call("committed", "index")
            return result

        index.commit = watched  # type: ignore[method-assign]

    @property
    def has_lost_power(self) -> bool:
        return self._dead

    async def crash(self, rng: random.Random | None = None, keep: float = 0.0) -> None:
        """Drop the process and go on with what the disk may hold."""
        self._end_process()
        self.disk = self.disk.crash(rng, keep=keep)

    async def kill(self) -> None:
        """Drop the process; what it wrote and did not sync is in the system's cache."""
        self._end_process()
        self.disk = self.disk.after_kill()

    def _end_process(self) -> None:
        self._dead = False
        for worker in self.threads.workers.values():
            worker.jobs.clear()
            worker.submit = lambda *_: None  # type: ignore[method-assign]
        if self._has_storage:
            storage = self.storage
            flusher_of(storage).halt()
            storage.gc._index.close()
            storage.scrub._index.close()
            for index in (storage._read_index, opened(storage).loop_index, opened(storage).index):
                index.close()
        self.disk.faults.on_call = None

    async def restart(self, **changes: Any) -> StartReport:
        """Crash without losing what the operating system has, and start again."""
        await self.crash(random.Random(1), keep=1.0)
        return await self.start(**changes)

    # Requests

    async def wait_room(self, size_bytes: int) -> None:
        """Return when an append of this size fits."""
        while not self.storage.has_room(size_bytes):
            woken = asyncio.Event()
            self.storage.on_room(woken.set)
            await woken.wait()

    def handle(self, ledger_id: int, key: bytes = KEY) -> LedgerHandle:
        return self.storage.handle(ledger_id) or self.storage.create_handle(ledger_id, key)

    def append(self, *runs: EntryRun, deferred_sync: bool = False) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        items = [(self.handle(run.ledger_id), run) for run in runs]
        self.storage.append(items, _into(future), deferred_sync=deferred_sync)
        return future

    def fence(self, ledger_id: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.storage.fence(self.handle(ledger_id), _into(future))
        return future

    def write_lac(self, ledger_id: int, lac: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        packet = lac_packet(ledger_id, lac)
        self.storage.write_lac(self.handle(ledger_id), packet, lac, _into(future))
        return future

    async def read(self, *requests: tuple[int, int]) -> list[bytes | BaseException]:
        future: asyncio.Future[list[bytes | BaseException]] = (
            asyncio.get_running_loop().create_future()
        )
        self.storage.read(requests, future.set_result)
        return await future

    def cached_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        found = self.storage.cached_run(ledger_id, entry_id)
        return None if found is None else found[0].entry(entry_id)

    async def read_one(self, ledger_id: int, entry_id: int) -> bytes:
        result = (await self.read((ledger_id, entry_id)))[0]
        if isinstance(result, BaseException):
            raise result
        return result

    async def read_batch(
        self, ledger_id: int, first: int, max_count: int = 0, max_size_bytes: int = 0
    ) -> tuple[bytes, int]:
        future: asyncio.Future[tuple[Sequence[bytes], int, BaseException | None]] = (
            asyncio.get_running_loop().create_future()
        )
        self.storage.read_batch(
            ledger_id, first, max_count, max_size_bytes, lambda *answer: future.set_result(answer)
        )
        pieces, count, error = await future
        if error is not None:
            raise error
        return b"".join(pieces), count

    async def ids(self, ledger_id: int) -> list[int]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.storage.entry_ids(ledger_id, future.set_result)
        return [entry_id for ids in await future for entry_id in ids]


def _into(future: asyncio.Future[None]) -> Any:
    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done
