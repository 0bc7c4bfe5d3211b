"""Reading from entry logs: one read at a known place, over a bounded cache of open files.

The reader says what bytes are there; whether they are the right ones is checked by whoever knows
what must be there (the index, or the run record).  One instance belongs to one worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from quorumbook.env import Env, File
from quorumbook.errors import MissingEntryLogError, ShortReadError, StorageError
from quorumbook.storage.entrylog.format import entry_log_name

DEFAULT_OPEN_FILES = 256


class EntryLogReader:
    """Open entry logs, the least recently used closed first."""

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        *,
        open_files_max: int = DEFAULT_OPEN_FILES,
        uncached: bool = True,
    ) -> None:
        self._disk = env.disk
        self._directories = list(directories)
        self._open_files_max = max(open_files_max, 1)
        self._uncached = uncached
        self._files: OrderedDict[int, File] = OrderedDict()

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return len(self._files)

    def read(self, entry_log_id: int, position: int, size_bytes: int) -> bytes:
        """Read exactly these bytes.

        Raises:
            MissingEntryLogError: No directory has the log; it may just have been compacted, so
                look the entry up once more.
            ShortReadError: The log ends before.
        """
        file = self._file(entry_log_id)
        try:
            data = file.read(position, size_bytes)
            if len(data) != size_bytes:
                raise ShortReadError(
                    f"{size_bytes} bytes must be here, {len(data)} are",
                    path=file.path, offset=position,
                )  # fmt: skip
        except StorageError:
            # It may be another file by the next time: one that was put back, or mounted again.
            self.forget(entry_log_id)
            raise
        return data

    def peek(self, entry_log_id: int, position: int, size_bytes: int) -> bytes | None:
        """Return exactly these bytes if the operating system has them in memory."""
        data = self._file(entry_log_id).read_cached(position, size_bytes)
        return data if data is not None and len(data) == size_bytes else None

    def _file(self, entry_log_id: int) -> File:
        file = self._files.get(entry_log_id)
        if file is None:
            return self._open(entry_log_id)
        self._files.move_to_end(entry_log_id)
        return file

    def size_bytes(self, entry_log_id: int) -> int:
        """Return a log's length."""
        file = self._files.get(entry_log_id) or self._open(entry_log_id)
        return file.size_bytes()

    def forget(self, *entry_log_ids: int) -> None:
        """Close logs that are deleted, or may be other files by now."""
        for entry_log_id in entry_log_ids:
            file = self._files.pop(entry_log_id, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, entry_log_id: int) -> File:
        name = entry_log_name(entry_log_id)
        unseen: StorageError | None = None
        for directory in self._directories:
            path = f"{directory}/{name}"
            try:
                if self._disk.exists(path):
                    break
            except StorageError as error:
                # A disk that is gone takes no entries along that lie on another one.
                unseen = unseen or error
        else:
            raise unseen or MissingEntryLogError(
                "the entry log is in none of the ledger directories", path=name
            )
        while len(self._files) >= self._open_files_max:
            self._files.popitem(last=False)[1].close()
        file = self._disk.open(path, read_only=True, uncached=self._uncached)
        self._files[entry_log_id] = file
        return file
