"""Reading runs and entries from the entry logs, as jobs of the read worker.

The index says where and what must be there.  A run that is read as a whole is compared with its
checksum, a single entry with its size and ids; what does not fit is damage, noted down for
repair, and an I/O error for the reader, never "no such entry" (R9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol, TypeVar

from google_crc32c import value as crc32c

from quorumbook.errors import BookieIOError, NoSuchEntryError, StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.options import Damage
from quorumbook.storage.times import JobTimes

T = TypeVar("T")
_ENTRY_HEAD = Struct(">iqq")
#: Ids that may lie between two reads in a row (the ensemble stripes).
STRIDE = 16
_RUNS_PER_JOB = 16


class LogReader(Protocol):
    """Reads bytes of an entry log."""

    def __call__(self, entry_log_id: int, position: int, size_bytes: int) -> bytes:
        """Return exactly that many bytes; errors are ``StorageError``."""
        ...


@dataclass(slots=True)
class ReadStatistics:
    """Counters since the start."""

    cache_hits: int = 0
    #: Single entries that the operating system had in memory.
    page_cache_reads: int = 0
    disk_reads: int = 0
    run_reads: int = 0
    read_ahead_runs: int = 0
    damaged: int = 0


@dataclass(slots=True)
class Loaded:
    """What a job brings back to the loop."""

    results: list[bytes | BaseException] = field(default_factory=list)
    runs: list[EntryRun] = field(default_factory=list)
    #: Rows by which single entries were found.
    rows: list[StoredRun] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    error: BaseException | None = None
    times: JobTimes | None = None


class MismatchError(StorageError):
    """Other bytes lie there than were written."""


class KnownDamageError(MismatchError):
    """The index says that these bytes are damaged; nobody has to be told again."""


class Loader:
    """Loads what the index points to; belongs to one worker.

    Args:
        index: Says where.
        read_log: Reads there.
        statistics: What is counted.
        now_ns: The clock by which the times of ``Loaded`` are taken; None: they are not.
    """

    def __init__(
        self,
        index: IndexReader,
        read_log: LogReader,
        statistics: ReadStatistics,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self._index = index
        self._read_log = read_log if now_ns is None else self._timed(read_log, now_ns)
        self._statistics = statistics
        self._disk_ns = 0
        self._now_ns = now_ns

    def timed(self, job: Callable[[], Loaded]) -> Loaded:
        """Run a job and note when; the loader was made with a clock."""
        assert self._now_ns is not None
        self._disk_ns = 0
        began_ns = self._now_ns()
        loaded = job()
        loaded.times = JobTimes(began_ns, self._now_ns(), self._disk_ns)
        return loaded

    def _timed(self, read_log: LogReader, now_ns: Callable[[], int]) -> LogReader:
        def read(entry_log_id: int, position: int, size_bytes: int) -> bytes:
            before = now_ns()
            try:
                return read_log(entry_log_id, position, size_bytes)
            finally:
                self._disk_ns += now_ns() - before

        return read

    def load_entries(
        self, wanted: list[tuple[int, LedgerId, EntryId, bool]], max_size_bytes: int
    ) -> Loaded:
        """Load entries (place, ledger, entry, whether to read the whole run), one by one.

        None after more than that size have been loaded.
        """
        loaded = Loaded()
        size = 0
        run: EntryRun | None = None
        before: tuple[LedgerId, EntryId] | None = None
        for _, ledger_id, entry_id, is_adjacent in wanted:
            if size > max_size_bytes:
                break
            adjacent = is_adjacent or (
                before is not None and before[0] == ledger_id and 0 < entry_id - before[1] <= STRIDE
            )
            before = (ledger_id, entry_id)
            if run is not None and run.ledger_id == ledger_id and run.has(entry_id):
                body = run.entry(entry_id)
                assert body is not None
                size += len(body)
                loaded.results.append(body)
                continue
            try:
                body, whole = self._load_entry(ledger_id, entry_id, adjacent, loaded)
            except (StorageError, NoSuchEntryError) as error:
                loaded.results.append(self._failure(ledger_id, entry_id, entry_id, error, loaded))
                continue
            run = whole or run
            size += len(body)
            loaded.results.append(body)
        return loaded

    def _load_entry(
        self, ledger_id: LedgerId, entry_id: EntryId, adjacent: bool, loaded: Loaded
    ) -> tuple[bytes, EntryRun | None]:
        def load(row: StoredRun) -> tuple[bytes, EntryRun | None]:
            if adjacent:
                try:
                    run = self.load_run(row)
                except MismatchError as error:
                    # One bad entry must not cost its neighbours: they are read one by one.
                    self._damage(
                        row.ledger_id, row.first_entry_id, row.last_entry_id, error, loaded
                    )
                else:
                    loaded.runs.append(run)
                    body = run.entry(entry_id)
                    assert body is not None
                    return body, run
            body = self._load_single(row, entry_id)
            loaded.rows.append(row)
            return body, None

        return self._with_row(ledger_id, entry_id, load)

    def _with_row(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        load: Callable[[StoredRun], T],
        found: StoredRun | None = None,
    ) -> T:
        """Look an entry up and load; if its log is gone by then, look once more."""
        for attempt in (1, 2):
            row = found or self._index.find(ledger_id, entry_id)
            found = None
            if row is None:
                break
            try:
                return load(row)
            except StorageError:
                again = self._index.find(ledger_id, entry_id)
                if attempt == 2 or again == row:
                    raise
        raise NoSuchEntryError(ledger_id=ledger_id, entry_id=entry_id)

    def _load_single(self, row: StoredRun, entry_id: EntryId) -> bytes:
        _demand_undamaged(row)
        size = row.size_of(entry_id)
        position = row.position_of(entry_id)
        data = self._read_log(row.entry_log_id, position, size + 4)
        self._statistics.disk_reads += 1
        if len(data) != size + 4 or entry_head(data, 0) != (size, row.ledger_id, entry_id):
            raise MismatchError(
                f"entry {entry_id} of ledger {row.ledger_id} is not where the index says: "
                f"entry log {row.entry_log_id:x}, byte {position}"
            )
        return data[4:]

    def load_run(self, row: StoredRun) -> EntryRun:
        """Read a whole run and check it.

        Raises:
            MismatchError: Other bytes lie there than were written.
            StorageError: They cannot be read.
        """
        _demand_undamaged(row)
        data = self._read_log(row.entry_log_id, row.position, row.size_bytes)
        self._statistics.run_reads += 1
        run = EntryRun(row.ledger_id, row.first_entry_id, row.last_entry_id, row.sizes, data)
        known = row.checksum
        is_good = crc32c(data) == known if known is not None else _is_framed(run)
        if not is_good:
            raise MismatchError(
                f"entries {row.first_entry_id} to {row.last_entry_id} of ledger {row.ledger_id} "
                f"are damaged: entry log {row.entry_log_id:x}, byte {row.position}"
            )
        return run

    def load_runs(
        self, ledger_id: LedgerId, entry_id: EntryId, max_count: int, max_size_bytes: int
    ) -> Loaded:
        """Load whole runs from an entry on until count or size is reached."""
        loaded = Loaded()
        wanted = entry_id
        try:
            run = self._with_row(ledger_id, entry_id, self.load_run)
            loaded.runs.append(run)
            size = len(run.data) - (run.bounds(entry_id)[0] - 4)
            last = run.last_entry_id
            while (
                last - entry_id + 1 < max_count
                and size < max_size_bytes
                and len(loaded.runs) < _RUNS_PER_JOB
            ):
                wanted = last + 1
                row = self._index.find(ledger_id, wanted)
                if row is None or row.first_entry_id != wanted:
                    break
                run = self._with_row(ledger_id, wanted, self.load_run, row)
                loaded.runs.append(run)
                size += len(run.data)
                last = run.last_entry_id
        except NoSuchEntryError:
            pass
        except StorageError as error:
            row = self._index.find(ledger_id, wanted)
            first, last = (row[1], row[2]) if row is not None else (wanted, wanted)
            failure = self._failure(ledger_id, first, last, error, loaded)
            if not loaded.runs:
                loaded.error = failure
        return loaded

    def _failure(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        last: EntryId,
        error: StorageError | NoSuchEntryError,
        loaded: Loaded,
    ) -> BaseException:
        """Say what a failed read means; damage is noted down."""
        if isinstance(error, NoSuchEntryError):
            return error
        self._damage(ledger_id, first, last, error, loaded)
        return BookieIOError(str(error), ledger_id=ledger_id, entry_id=first)

    @staticmethod
    def _damage(
        ledger_id: LedgerId, first: EntryId, last: EntryId, error: BaseException, loaded: Loaded
    ) -> None:
        if not isinstance(error, KnownDamageError):
            loaded.damages.append(Damage(ledger_id, first, last, str(error)))


def entry_head(data: bytes, position: int) -> tuple[int, LedgerId, EntryId]:
    """Return the size, the ledger and the entry id that stand at a position, or none of sense."""
    if len(data) - position < _ENTRY_HEAD.size:
        return (-1, -1, -1)
    size, ledger_id, entry_id = _ENTRY_HEAD.unpack_from(data, position)
    return size, ledger_id, entry_id


def _demand_undamaged(row: StoredRun) -> None:
    if row.is_damaged:
        raise KnownDamageError(
            f"entries {row.first_entry_id} to {row.last_entry_id} of ledger {row.ledger_id} are "
            f"damaged: entry log {row.entry_log_id:x}, byte {row.position}"
        )


def _is_framed(run: EntryRun) -> bool:
    """Compare sizes and ids of a run whose checksum was lost by a cut."""
    for entry_id in run.entry_ids():
        start, end = run.bounds(entry_id)
        if end > len(run.data):
            return False
        if entry_head(run.data, start - 4) != (end - start, run.ledger_id, entry_id):
            return False
    return True
