"""lastMark: up to where the journal is known to be in the entry logs and the index.

    file lastMark          one journal
    file lastMark.<i>      journal i of several
    content, 16 bytes      int64 journal id, int64 offset (big-endian)

Every ledger directory keeps a copy.  Replay starts at the smallest, and journals are deleted
below the smallest, because a directory that missed an update must not lose its entries.  The
copies are overwritten in place: 16 bytes lie in one sector, and a full disk cannot refuse them.
A mark never moves back, neither on a call that comes too late nor for one journal while another
one advances.  All calls block and come from one worker; when a checkpoint may advance the mark
is decided by the flush.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from quorumbook.env import Disk, Env
from quorumbook.errors import CorruptStateError, InternalError, StorageError

_MARK = Struct(">qq")
#: Replaying what is stored already changes nothing.
_FIX = "remove the file, and the next start replays every journal there is"
_NAME = re.compile(r"lastMark(\.[0-9]+)?")


class LogMark(NamedTuple):
    """A place in one journal; all records before it are in ledger storage."""

    journal_id: int
    offset: int


#: One for each journal, in the order of the configured directories.
Marks: TypeAlias = tuple[LogMark, ...]
#: Before everything: replay takes every journal there is.
NO_MARK = LogMark(0, 0)


def mark_file_name(journal_index: int = 0, journal_count: int = 1) -> str:
    """Return the file name of a journal's mark."""
    return "lastMark" if journal_count == 1 else f"lastMark.{journal_index}"


def is_mark_file(name: str) -> bool:
    """Tell whether a file name is that of a mark."""
    return _NAME.fullmatch(name) is not None


def encode_mark(mark: LogMark) -> bytes:
    """Return the 16 bytes of a mark."""
    return _MARK.pack(*mark)


def decode_mark(data: bytes, path: str = "") -> LogMark:
    """Parse a mark; an empty file is one that a crash kept from being written."""
    if not data:
        return NO_MARK
    if len(data) != _MARK.size:
        raise CorruptStateError(f"a mark has 16 bytes, not {len(data)}; {_FIX}", path=path)
    mark = LogMark(*_MARK.unpack(data))
    if mark.journal_id < 0 or mark.offset < 0:
        raise CorruptStateError(f"a mark is not negative; {_FIX}", path=path)
    return mark


def read_mark(disk: Disk, directory: str, name: str = "lastMark") -> LogMark:
    """Read one directory's mark; a missing file is ``NO_MARK``."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return NO_MARK
    return decode_mark(disk.read_file(path), path)


def write_mark(disk: Disk, directory: str, mark: LogMark, name: str = "lastMark") -> None:
    """Overwrite one directory's mark in place, durably."""
    path = f"{directory}/{name}"
    is_new = not disk.exists(path)
    file = disk.open(path, create=is_new)
    try:
        file.write([encode_mark(mark)], 0)
        file.sync()
    finally:
        file.close()
    if is_new:
        disk.sync_directory(directory)


def furthest(marks: Marks, others: Marks) -> Marks:
    """Return the later mark of each journal."""
    return tuple(map(max, marks, others))


def has_reached(marks: Sequence[LogMark], others: Sequence[LogMark]) -> bool:
    """Tell whether every journal of ``marks`` is at or behind its counterpart in ``others``.

    Marks of several journals have no order as a whole: (2, 1) and (1, 2) have not reached each
    other, and whoever waits for one of them still has to flush.
    """
    if len(marks) != len(others):
        raise InternalError(f"{len(marks)} marks compared with {len(others)}")
    return all(mark >= other for mark, other in zip(marks, others, strict=True))


class LastMarks:
    """The marks of all journals in all ledger directories."""

    def __init__(self, env: Env, directories: Sequence[str], journal_count: int = 1) -> None:
        self._disk = env.disk
        self._directories = list(directories)
        self._names = [mark_file_name(index, journal_count) for index in range(journal_count)]
        self._marks: dict[str, list[LogMark]] = {}

    @property
    def journal_count(self) -> int:
        """How many journals there are."""
        return len(self._names)

    def load(self) -> None:
        """Read every copy."""
        self._marks = {
            directory: [read_mark(self._disk, directory, name) for name in self._names]
            for directory in self._directories
        }

    def prepare(self) -> None:
        """Make each copy durable as it was read, and create those that are missing.

        A bookie may have been killed between the write and the sync of a mark: a journal that is
        deleted for its sake would be missed after a power cut.  If that sync failed, another one
        writes nothing, so each copy is written again.  And a disk that fills up later cannot stop
        a mark whose copies are there.
        """
        for directory in self._directories:
            for name, mark in zip(self._names, self._loaded(directory), strict=True):
                write_mark(self._disk, directory, mark, name)
            self._disk.sync_directory(directory)

    @property
    def minima(self) -> Marks:
        """Return where the replay of each journal starts."""
        return tuple(self.minimum(index) for index in range(len(self._names)))

    @property
    def maxima(self) -> Marks:
        """Return the newest copy of each journal's mark."""
        return tuple(self.maximum(index) for index in range(len(self._names)))

    def minimum(self, journal_index: int = 0) -> LogMark:
        """Return where replay starts, and below which journals may be deleted."""
        return min(self._loaded(directory)[journal_index] for directory in self._directories)

    def maximum(self, journal_index: int = 0) -> LogMark:
        """Return the newest copy: where the peer's replay starts."""
        return max(self._loaded(directory)[journal_index] for directory in self._directories)

    def advance(self, mark: LogMark, journal_index: int = 0) -> LogMark:
        """Write a mark to every directory whose copy is older; return the new minimum.

        A directory that fails keeps its old mark, so the minimum stays true; the others are
        still written before the error is raised.
        """
        error: StorageError | None = None
        for directory in self._directories:
            marks = self._loaded(directory)
            if mark <= marks[journal_index]:
                continue
            try:
                write_mark(self._disk, directory, mark, self._names[journal_index])
            except StorageError as failure:
                error = error or failure
            else:
                marks[journal_index] = mark
        if error is not None:
            raise error
        return self.minimum(journal_index)

    def advance_all(self, marks: Iterable[LogMark]) -> Marks:
        """Advance one mark for each journal, each on its own; return the new minima."""
        return tuple(self.advance(mark, index) for index, mark in enumerate(marks))

    def mend(self, mark: LogMark, journal_index: int = 0) -> None:
        """Take copies back that claim more than ``mark``, which is known to be all there is.

        The one exception from "never back": such a copy is damaged, and what it would skip may
        be acknowledged.
        """
        for directory in self._directories:
            marks = self._loaded(directory)
            if marks[journal_index] > mark:
                write_mark(self._disk, directory, mark, self._names[journal_index])
                marks[journal_index] = mark

    def _loaded(self, directory: str) -> list[LogMark]:
        if directory not in self._marks:
            self.load()
        return self._marks[directory]
