"""Replay: everything the journal holds behind a mark, in order, as runs.

Which files there must be, and what their ends may look like:

    from the mark's file on, ids without a gap    a missing file is damage
    the newest is the one that ``newest`` names   it may have been deleted
    every file but the last ends cleanly          its successor's header says where
    the last file may end in a torn group         its provable prefix is replayed
    or in a damaged one, or before ``synced``     reported as ``damaged_tail``
    says that it was durable

Where ``synced`` is not known, a file that ends right behind a group of a bookie that was killed,
without the zeros that are kept ahead, counts as cut, and so as damaged.  It does not if the machine
was booted since: a loss of power takes the size of a file along that was not synced.

A start after such a tail writes the next file's header with the place where the replay ended;
so the group is known when it is met again, although it is not in the last file any more.

Replaying twice, or from an earlier mark, ends in the same state: entries are last-wins, keys,
fences and LACs are kept by the visitor as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumbook.env import Env, File, logger
from quorumbook.errors import CorruptJournalError
from quorumbook.storage.journal.format import (
    HEADER_SIZE,
    NEWEST_NAME,
    JournalHeader,
    boot_mark,
    journal_id_of,
    journal_name,
)
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.runs import JournalVisitor, RunCollector
from quorumbook.storage.journal.scan import FileEnd, read_header, scan_checked, scan_plain
from quorumbook.storage.journal.synced import Synced, read_synced

__all__ = ["JournalVisitor", "ReplayReport", "journal_ids", "replay"]

_log = logger("storage.journal")


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        records: Entries and other records handed over.
        end: The end of everything in the newest file; the mark after a full flush.
        damaged_tail: The end could not be read: what this bookie says about its open ledgers
            is not to be trusted until it has been checked (limbo).
        damage: Where, as pairs of path and offset.
        files: Journals read.
    """

    records: int
    end: LogMark
    damaged_tail: bool
    damage: tuple[tuple[str, int], ...] = field(default=())
    files: tuple[str, ...] = field(default=())


def journal_ids(env: Env, directory: str) -> list[int]:
    """Return the ids of all journals in a directory, ascending."""
    ids = (journal_id_of(name) for name in env.disk.list_directory(directory))
    return sorted(journal_id for journal_id in ids if journal_id is not None)


def replay(
    env: Env,
    directory: str,
    mark: LogMark,
    visitor: JournalVisitor,
    *,
    was_unclean: bool = False,
) -> ReplayReport:
    """Hand every record behind the mark to a visitor.  Blocks; belongs into a worker's job.

    Args:
        env: The outside world.
        directory: Where the journals lie.
        mark: Where to begin.
        visitor: Takes the records.
        was_unclean: The bookie was killed, so the last group may be a part of one.

    Raises:
        CorruptJournalError: A file is missing, or damaged where no crash can explain it; the
            message says where.
    """
    ids = [found for found in journal_ids(env, directory) if found >= mark.journal_id]
    _check_newest(env, directory, ids, mark)
    _check_complete(directory, ids, mark)
    collect = RunCollector(visitor)
    boot = boot_mark(env.clock.boot_id())
    synced = read_synced(env.disk, directory)
    damage: list[tuple[str, int]] = []
    end = mark
    journals: list[_Journal] = []
    try:
        for journal_id in ids:
            journals.append(_open(env, directory, journal_id))  # noqa: PERF401 - closed on error
        for number, journal in enumerate(journals, start=1):
            start = mark.offset if journal.id == mark.journal_id else 0
            is_last = number == len(journals)
            successor = None if is_last else journals[number].header
            # A start that did not find a clean end went on in a file of its own.
            was_killed = was_unclean if is_last else successor is not None and successor.is_start
            found = _read(journal, start, collect, boot, is_last=is_last, was_killed=was_killed)
            _doubt(
                journal,
                max(found.valid_end, start),
                found,
                synced,
                boot,
                was_killed=was_unclean and is_last,
            )
            if not is_last:
                _check_end(journal, found, successor, start)
            if found.is_damaged:
                _log.error("%s is damaged at byte %d", journal.file.path, found.valid_end)
                damage.append((journal.file.path, found.valid_end))
            elif found.is_torn:
                _log.info(
                    "%s ends in a write that a kill or a loss of power cut short", journal.file.path
                )
            end = max(end, LogMark(journal.id, found.end))
        collect.flush()
    finally:
        for journal in journals:
            journal.file.close()
    files = tuple(journal.file.path for journal in journals)
    return ReplayReport(collect.records, end, bool(damage), tuple(damage), files)


def summarize(
    env: Env, directory: str, journal_id: int, visitor: JournalVisitor, *, was_unclean: bool
) -> tuple[int, FileEnd]:
    """Hand all of one journal to a visitor; return its size and where its data ends.

    ``was_unclean`` says that the bookie was killed when it wrote this one.

    Raises:
        CorruptJournalError: It is damaged before its end.
    """
    journal = _open(env, directory, journal_id)
    try:
        collect = RunCollector(visitor)
        boot = boot_mark(env.clock.boot_id())
        end = _read(journal, 0, collect, boot, is_last=True, was_killed=was_unclean)
        collect.flush()
        synced = read_synced(env.disk, directory)
        _doubt(journal, end.valid_end, end, synced, boot, was_killed=was_unclean)
        return journal.file.size_bytes(), end
    finally:
        journal.file.close()


@dataclass(slots=True)
class _Journal:
    """An open journal; ``header`` is None if nothing was ever written to it."""

    id: int
    file: File
    header: JournalHeader | None


def _open(env: Env, directory: str, journal_id: int) -> _Journal:
    file = env.disk.open(f"{directory}/{journal_name(journal_id)}", read_only=True)
    try:
        return _Journal(journal_id, file, read_header(file, journal_id))
    except BaseException:
        file.close()
        raise


def _check_newest(env: Env, directory: str, ids: list[int], mark: LogMark) -> None:
    """Refuse journals whose newest was deleted: what it acknowledged would seem never written."""
    path = f"{directory}/{NEWEST_NAME}"
    if not env.disk.exists(path):
        return
    try:
        newest = int(env.disk.read_file(path), 16)
    except ValueError:
        _log.warning("%s is damaged; the next journal writes it again", path)
        return
    # The peer, if it had the directory meanwhile, went on without keeping the note.
    if newest >= mark.journal_id and newest not in ids:
        raise CorruptJournalError(
            "the journal is missing", path=f"{directory}/{journal_name(newest)}"
        )


def _check_complete(directory: str, ids: list[int], mark: LogMark) -> None:
    """Refuse a gap: whoever deletes journals deletes the oldest."""
    if mark == NO_MARK and not ids:
        return
    expected = ids[0] if mark == NO_MARK else mark.journal_id
    for journal_id in ids or [-1]:
        if journal_id != expected:
            raise CorruptJournalError(
                "the journal is missing", path=f"{directory}/{journal_name(expected)}"
            )
        expected += 1


def _read(
    journal: _Journal,
    start: int,
    collect: RunCollector,
    boot: bytes,
    *,
    is_last: bool,
    was_killed: bool,
) -> FileEnd:
    header = journal.header
    if header is None:
        # Made, and not written to: the crash came before the first group.
        return FileEnd(max(start, HEADER_SIZE), max(start, HEADER_SIZE))
    if header.is_checksummed:
        return scan_checked(
            journal.file,
            header,
            start,
            collect,
            was_killed=was_killed,
            was_booted=_was_booted(header, boot),
        )
    return scan_plain(journal.file, header, start, collect, is_last=is_last)


def _was_booted(header: JournalHeader, boot: bytes) -> bool:
    return bool(boot and header.boot) and boot != header.boot


def _doubt(
    journal: _Journal,
    valid_end: int,
    found: FileEnd,
    synced: Synced | None,
    boot: bytes,
    *,
    was_killed: bool,
) -> None:
    """Take a journal that is not good up to where it was durable for damaged.

    Where that is not known, one of a killed bookie that ends with its data counts as cut: zeros
    are always kept ahead.  Where the disk was full that is not damage, but nothing tells the two
    apart then.  After a loss of power the size says nothing: that of a group under way may be lost.
    """
    header = journal.header
    if header is None or not header.is_checksummed:
        return
    if synced is not None and (synced.journal_id, synced.salt) == (journal.id, header.salt):
        is_damaged = valid_end < synced.end
    else:
        end = max(valid_end, found.end)
        is_cut = journal.file.size_bytes() <= end > HEADER_SIZE
        is_damaged = was_killed and is_cut and not _was_booted(header, boot)
    if is_damaged:
        found.is_damaged, found.is_torn = True, False


def _check_end(
    journal: _Journal, found: FileEnd, successor: JournalHeader | None, start: int
) -> None:
    """Refuse a journal that is not the last and does not end where its successor says."""
    if successor is None or successor.previous_id != journal.id:
        allowed_end, known_end = -1, -1
    else:
        # A roll follows a good group; only a start can have met a torn one.
        allowed_end = successor.previous_end if successor.is_start else -1
        known_end = successor.previous_end
    if (found.is_damaged or found.is_torn) and found.end > allowed_end:
        raise CorruptJournalError(
            "the end of a journal that is not the last is damaged",
            path=journal.file.path,
            offset=found.valid_end,
        )
    if max(found.end, start) < known_end:
        raise CorruptJournalError(
            f"the journal ends early, it went up to {known_end}",
            path=journal.file.path,
            offset=found.end,
        )
