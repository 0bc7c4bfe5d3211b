"""What a storage is made of when it opens: locked directories, a replayed journal, an owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quorumbook.env import Env, Worker, run_job
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.directories.places import Directories
from quorumbook.storage.directories.unclean import mark_running
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.options import Damage, StorageOptions
from quorumbook.storage.startup import Opened, open_storage
from quorumbook.storage.times import GroupTimes

#: Entry logs that the loop holds open beside the read worker.
_PEEKED_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOwner:
    """What the owner of a storage hears of it."""

    #: The storage can no longer keep its promises (a journal write failed); the bookie stops at
    #: once.  Called once.
    on_fatal: Callable[[BaseException], None] = lambda _: None
    #: A disk is full; nothing is lost and reads go on, but the bookie should be read-only until
    #: ``on_space``.
    on_full: Callable[[BaseException], None] = lambda _: None
    #: The flush that had failed went through.
    on_space: Callable[[], None] = lambda: None
    #: Entries cannot be given back; also collected in ``damaged``.
    on_damage: Callable[[Damage], None] = lambda _: None
    #: A journal group was written or synced; those who wait for it are called next.
    on_group: Callable[[GroupTimes], None] = lambda _: None
    #: Those who waited for a journal group have been called.
    on_told: Callable[[], None] = lambda: None


class StorageParts(NamedTuple):
    """What is there when the directories are locked and the journal is replayed."""

    env: Env
    directories: Directories
    indexes: IndexPlace
    caches: Caches
    flush_worker: Worker
    opened: Opened
    #: Of the read worker, and of the loop.
    readers: tuple[EntryLogReader, EntryLogReader]


async def open_parts(
    env: Env,
    directories: Directories,
    options: StorageOptions,
    open_files_max: int,
    indexes: IndexPlace,
) -> StorageParts:
    """Lock the directories and replay the journal; ``LedgerStorage.open`` has the errors."""
    caches = Caches(read_cache_size_bytes=options.read_cache_size_bytes)
    worker = env.threads.start_worker("storage-flush")

    def opened() -> Opened:
        directories.prepare()
        found = open_storage(env, directories, caches, options, indexes)
        mark_running(env.disk, directories.ledgers)
        return found

    try:
        found = await run_job(worker, opened)
    except BaseException:
        worker.stop()
        directories.release()
        raise
    files, ledgers = open_files_max, directories.ledgers
    readers = (
        EntryLogReader(env, ledgers, open_files_max=files),
        EntryLogReader(env, ledgers, open_files_max=min(files, _PEEKED_FILES), uncached=False),
    )
    return StorageParts(env, directories, indexes, caches, worker, found, readers)
