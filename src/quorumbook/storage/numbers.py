"""The numbers of a storage's parts, by the names that metrics have them under."""

from __future__ import annotations

from dataclasses import asdict

from quorumbook.storage.checkpoint.checkpoint import Checkpointer
from quorumbook.storage.directories.places import CURRENT, Directories
from quorumbook.storage.entrylog.writer import EntryLogs
from quorumbook.storage.journal.journals import Journals
from quorumbook.storage.reading.reads import StorageReads


def counters(reads: StorageReads, checkpointer: Checkpointer, journals: Journals) -> dict[str, int]:
    """Return what journals, reads and flushes counted; ``name@index`` is that of one journal."""
    numbers = {
        f"journal_{name}@{index}": number
        for index, journal in enumerate(journals.statistics())
        for name, number in journal.items()
    }
    numbers |= {f"read_{name}": number for name, number in asdict(reads.statistics).items()}
    return numbers | {
        f"flush_{name}": number for name, number in asdict(checkpointer.statistics).items()
    }


def sync_times(
    directories: Directories, entry_logs: EntryLogs, journals: Journals
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return by directory and use ("journal", "ledgers") how many syncs, and nanoseconds."""
    times = entry_logs.sync_times
    found = {("ledgers", path): times.get(path, (0, 0)) for path in directories.ledgers}
    for path, one in zip(directories.journals, journals.statistics(), strict=True):
        found["journal", path] = one["syncs"], one["sync_ns"]
    return {(use, path.removesuffix("/" + CURRENT)): took for (use, path), took in found.items()}
