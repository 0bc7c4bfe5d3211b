"""What lies in the directories of a stopped bookie of the peer, put into an index of ours.

The peer's directories are only read.  From its index come keys, fences and explicit LACs, and
which copy of an entry counts; sizes and bytes come from the entry logs; what lies behind the marks
comes from the journals.  Each ledger in the logs is one of

    known        the peer's index has it: exactly the entries that it names are taken
    journaled    the index has it not yet, and all its entries are in the journals as well
    unexplained  neither: it was deleted, or its part of the index is lost; the metadata decides

Every entry that the index names must be found, else there is damage.  Without an index all
ledgers are unexplained, and damage is what a scan stumbles over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from google_crc32c import value as crc32c

from quorumbook.env import Env
from quorumbook.errors import CorruptEntryLogError, ForeignDirectoryError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.adoption.peer_index import IndexFiles, PeerIndex
from quorumbook.storage.adoption.rocksdb import RocksIndex
from quorumbook.storage.directories.places import current
from quorumbook.storage.entrylog.format import entry_log_name
from quorumbook.storage.entrylog.scan import ScannedRun, scan_entry_log
from quorumbook.storage.entrylog.writer import find_entry_logs, newest_entry_log_id
from quorumbook.storage.index.files import remove_index
from quorumbook.storage.index.peer_parts import SORTED
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import Index
from quorumbook.storage.journal.marks import LastMarks, LogMark
from quorumbook.storage.journal.replay import replay
from quorumbook.storage.settling import settle
from quorumbook.storage.states.state_file import StoredLedger

_BATCH_ROWS = 500


@dataclass(frozen=True, slots=True)
class PeerPlaces:
    """The configured directories of a bookie; its files lie in ``current`` of each."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    #: Empty: the ledger directories.
    indexes: tuple[str, ...] = ()

    @property
    def journal_files(self) -> list[str]:
        """Where the journals lie."""
        return [current(directory) for directory in self.journals]

    @property
    def ledger_files(self) -> list[str]:
        """Where the entry logs lie."""
        return [current(directory) for directory in self.ledgers]

    @property
    def index_files(self) -> list[str]:
        """Where the peer's index lies."""
        return [current(directory) for directory in self.indexes or self.ledgers]

    @property
    def all(self) -> list[str]:
        """Every configured directory once."""
        return list(dict.fromkeys([*self.journals, *self.ledgers, *self.indexes]))


@dataclass(slots=True)
class SurveyDraft:
    """An index of ours that is ready but for what the metadata has to say."""

    places: PeerPlaces
    index: Index
    #: The peer's storage, None if its index is not used.
    kind: str | None
    #: Logs whose id another directory has as well: directory, present id, id to be.
    renames: list[tuple[str, int, int]]
    #: Where the replay of each journal directory begins.
    marks: list[LogMark]
    journal_files: int = 0
    journal_entries: int = 0
    has_damaged_journal_tail: bool = False
    entry_logs: int = 0
    #: How many entries of each ledger are in the logs and count.
    entries: Counter[LedgerId] = field(default_factory=Counter)
    known: int = 0
    fenced: int = 0
    explicit_lacs: int = 0
    unexplained: list[LedgerId] = field(default_factory=list)
    #: Ledgers of which only the journals tell.
    journaled: list[LedgerId] = field(default_factory=list)
    #: What is lost, a line each, and whose entries it hits (None: anybody's).
    damage: list[str] = field(default_factory=list)
    damaged_ledgers: set[LedgerId] | None = field(default_factory=set)
    doubt: str = ""

    def doubt_index(self, index: PeerIndex) -> None:
        """Note what an index says against itself."""
        assert self.damaged_ledgers is not None
        self.doubt = self.doubt or index.doubt
        self.damage += index.damaged.values()
        self.damaged_ledgers |= index.damaged.keys()

    def count_states(self, states: Collection[StoredLedger]) -> None:
        """Count the ledgers that the index knows."""
        self.known = len(states)
        self.fenced = sum(state.is_fenced for state in states)
        self.explicit_lacs = sum(state.explicit_lac is not None for state in states)

    def lose(self, what: str) -> None:
        """Note entries that are lost, of whichever ledger."""
        self.damage.append(what)
        self.damaged_ledgers = None

    def count_journals(self, files: int, *, has_damaged_tail: bool) -> None:
        """Count the files of a journal directory."""
        self.journal_files += files
        self.has_damaged_journal_tail |= has_damaged_tail

    def end_journals(self, entries: int, ledger_ids: Iterable[LedgerId]) -> None:
        """Note what all journals have, and of which ledgers only they tell."""
        self.journal_entries = entries
        self.journaled = sorted(ledger_ids)


@dataclass(slots=True)
class SurveySource:
    """Ledger directories (``.../current``) and the index that speaks of them, if there is one."""

    directories: list[str]
    index: PeerIndex | None = None


def open_sources(
    env: Env, ledgers: Sequence[str], indexes: Sequence[str], kind: str | None
) -> list[SurveySource]:
    """Open the indexes of a kind; None stands for no index.

    Raises:
        ForeignDirectoryError: The directories don't fit together, or a library is missing.
        CorruptIndexError: An index cannot be opened.
    """
    if kind is None:
        # Whether ids of entry logs count for one directory or for all, nobody can say.
        return [SurveySource([directory]) for directory in ledgers]
    if kind == SORTED:
        return [SurveySource(list(ledgers), IndexFiles(env, indexes))]
    if len(ledgers) != len(indexes):
        raise ForeignDirectoryError(
            f"{len(ledgers)} ledger directories and {len(indexes)} index directories: "
            "DbLedgerStorage has as many of the one as of the other"
        )
    return [
        SurveySource([ledger], RocksIndex(env, index))
        for ledger, index in zip(ledgers, indexes, strict=True)
    ]


def survey(
    env: Env, places: PeerPlaces, index_path: str, *, kind: str | None, entry_size_max: int
) -> SurveyDraft:
    """Read everything and build an index in a new file.  Blocks.

    Args:
        env: The outside world.
        places: The peer's directories.
        index_path: The new file; what is left of an earlier one is removed.
        kind: Whose index is read (``peer_index``), None to do without.
        entry_size_max: No entry is larger than the peer's frames were.

    Raises:
        ForeignDirectoryError: The directories don't fit together.
        CorruptJournalError: A journal is damaged; the message says where.
        CorruptEntryLogError, CorruptIndexError, CorruptStateError: As it says.
    """
    remove_index(index_path)
    sources = open_sources(env, places.ledger_files, places.index_files, kind)
    try:
        index = Index(index_path, create=True)
        try:
            return _Survey(env, places, sources, index, entry_size_max).run(kind)
        except BaseException:
            index.close()
            raise
    finally:
        for source in sources:
            if source.index is not None:
                source.index.close()


class _Survey:
    def __init__(
        self,
        env: Env,
        places: PeerPlaces,
        sources: list[SurveySource],
        index: Index,
        entry_size_max: int,
    ) -> None:
        self._env = env
        self._places = places
        self._sources = sources
        self._index = index
        self._entry_size_max = entry_size_max
        self._rows: list[StoredRun] = []
        self._known = {
            ledger_id
            for source in sources
            if source.index is not None
            for ledger_id in source.index.states
        }

    def run(self, kind: str | None) -> SurveyDraft:
        marks = self._marks()
        draft = SurveyDraft(self._places, self._index, kind, [], marks)
        self._take_states(draft)
        ids = self._numbers(draft)
        for source in self._sources:
            for directory, entry_log_id in _logs_of(self._env, source):
                self._scan(draft, source, directory, entry_log_id, ids[directory, entry_log_id])
        self._store()
        self._check(draft)
        self._read_journals(draft)
        return draft

    def _marks(self) -> list[LogMark]:
        count = len(self._places.journals)
        marks = LastMarks(self._env, self._places.ledger_files, count)
        return [marks.maximum(index) for index in range(count)]

    def _take_states(self, draft: SurveyDraft) -> None:
        states: dict[LedgerId, StoredLedger] = {}
        for source in self._sources:
            if source.index is not None:
                states |= source.index.states
                draft.doubt_index(source.index)
        self._index.commit(states=list(states.values()))
        draft.count_states(states.values())

    def _numbers(self, draft: SurveyDraft) -> dict[tuple[str, int], int]:
        """Give every entry log an id of its own, its present one where nobody else has it."""
        newest = newest_entry_log_id_of(self._env, self._places.ledger_files)
        ids: dict[tuple[str, int], int] = {}
        taken: set[int] = set()
        for source in self._sources:
            for directory, entry_log_id in _logs_of(self._env, source):
                number = entry_log_id
                if number in taken:
                    number = newest = newest + 1
                    draft.renames.append((directory, entry_log_id, number))
                taken.add(number)
                ids[directory, entry_log_id] = number
        draft.entry_logs = len(ids)
        self._index.commit(entry_logs=[(number, place) for (place, _), number in ids.items()])
        return ids

    # Entry logs

    def _scan(
        self,
        draft: SurveyDraft,
        source: SurveySource,
        directory: str,
        entry_log_id: int,
        number: int,
    ) -> None:
        is_newest = entry_log_id == newest_entry_log_id(self._env, [directory])
        settle(self._env.disk, f"{directory}/{entry_log_name(entry_log_id)}")
        for found in scan_entry_log(
            self._env, directory, entry_log_id, entry_size_max=self._entry_size_max
        ):
            if isinstance(found, ScannedRun):
                for run, position in self._named(source, found, entry_log_id):
                    self._take(draft, run, position, number)
            elif source.index is None and not (found.is_tail and is_newest):
                draft.lose(f"{found.path} at byte {found.position}: {found.reason}")

    def _named(
        self, source: SurveySource, found: ScannedRun, entry_log_id: int
    ) -> Iterator[tuple[EntryRun, int]]:
        """Yield the parts of a run that count."""
        run = found.run
        if run.ledger_id not in self._known:
            yield run, found.position
            return
        if source.index is None or run.ledger_id not in source.index.states:
            return  # left over: the index of another directory speaks for this ledger
        locations = source.index.locations(run.ledger_id, run.first_entry_id, run.last_entry_id)
        base = (entry_log_id << 32) + found.position
        good = [
            entry_id
            for entry_id in run.entry_ids()
            if locations[entry_id - run.first_entry_id] == base + run.bounds(entry_id)[0]
        ]
        if len(good) == run.count:
            yield run, found.position
            return
        for first, last in _stretches(run, good):
            yield run.slice(first, last), found.position + run.bounds(first)[0] - 4

    def _take(self, draft: SurveyDraft, run: EntryRun, position: int, entry_log_id: int) -> None:
        draft.entries[run.ledger_id] += run.count
        self._rows.append(
            StoredRun(
                run.ledger_id,
                run.first_entry_id,
                run.last_entry_id,
                entry_log_id,
                position,
                run.sizes,
                crc32c(run.data),
                run.last_add_confirmed(),
            )
        )
        if len(self._rows) >= _BATCH_ROWS:
            self._store()

    def _store(self) -> None:
        rows, self._rows = self._rows, []
        self._index.commit(runs=rows)

    def _check(self, draft: SurveyDraft) -> None:
        """See that every entry which the peer's index names was found."""
        for source in self._sources:
            if source.index is None:
                continue
            for ledger_id in source.index.states:
                lost = source.index.count(ledger_id) - draft.entries[ledger_id]
                if lost > 0:
                    draft.damage.append(
                        f"ledger {ledger_id}: {lost} entries that its index names are in no "
                        "entry log"
                    )
                    if draft.damaged_ledgers is not None:
                        draft.damaged_ledgers.add(ledger_id)

    # Journals

    def _read_journals(self, draft: SurveyDraft) -> None:
        strangers = set(self._index.ledger_ids_without_state())
        visitor = _Journaled(strangers)
        for directory, mark in zip(self._places.journal_files, draft.marks, strict=True):
            found = replay(self._env, directory, mark, visitor)
            draft.count_journals(len(found.files), has_damaged_tail=found.damaged_tail)
        journaled = []
        for ledger_id in sorted(strangers):
            entry_ids = visitor.entry_ids.get(ledger_id, set())
            rows = self._index.runs(ledger_id)
            if draft.kind is not None and all(
                entry_ids.issuperset(ids) for row in rows for ids in row.ranges()
            ):
                # The replay brings all of them again.
                journaled.append(ledger_id)
                del draft.entries[ledger_id]
            else:
                draft.unexplained.append(ledger_id)
        self._index.commit(deleted_ledgers=journaled)
        known = set(self._index.ledger_ids())
        draft.end_journals(visitor.entries, visitor.ledger_ids - known - set(draft.unexplained))


class _Journaled:
    """Counts what a replay will bring; remembers the entries of some ledgers."""

    def __init__(self, ledger_ids: set[LedgerId]) -> None:
        self._watched = ledger_ids
        self.entries = 0
        self.ledger_ids: set[LedgerId] = set()
        self.entry_ids: dict[LedgerId, set[EntryId]] = {}

    def on_run(self, run: EntryRun) -> None:
        """Entries."""
        self.entries += run.count
        self.ledger_ids.add(run.ledger_id)
        if run.ledger_id in self._watched:
            self.entry_ids.setdefault(run.ledger_id, set()).update(run.entry_ids())

    def on_key(self, ledger_id: LedgerId, _master_key: bytes) -> None:
        """A ledger's key."""
        self.ledger_ids.add(ledger_id)

    def on_fence(self, ledger_id: LedgerId) -> None:
        """A fence."""
        self.ledger_ids.add(ledger_id)

    def on_lac(self, ledger_id: LedgerId, _packet: bytes) -> None:
        """An explicit LAC."""
        self.ledger_ids.add(ledger_id)


def newest_entry_log_id_of(env: Env, directories: Sequence[str]) -> int:
    """Return the highest id in any of the directories, whoever else has it; -1 if none."""
    return max((newest_entry_log_id(env, [directory]) for directory in directories), default=-1)


def _logs_of(env: Env, source: SurveySource) -> list[tuple[str, int]]:
    logs = find_entry_logs(env, source.directories)
    return [(logs[entry_log_id], entry_log_id) for entry_log_id in sorted(logs)]


def _stretches(run: EntryRun, good: Sequence[EntryId]) -> Iterator[tuple[EntryId, EntryId]]:
    """Yield first and last of those ids with no other entry of the run between them."""
    wanted = set(good)
    first = last = None
    for entry_id in run.entry_ids():
        if entry_id in wanted:
            first = entry_id if first is None else first
            last = entry_id
        elif first is not None and last is not None:
            yield first, last
            first = None
    if first is not None and last is not None:
        yield first, last


def demand_whole(draft: SurveyDraft) -> None:
    """Refuse damage.

    Raises:
        CorruptEntryLogError: There is some.
    """
    if draft.damage:
        more = f" and {len(draft.damage) - 1} more" if len(draft.damage) > 1 else ""
        raise CorruptEntryLogError(
            f"{draft.damage[0]}{more}; --accept-damage takes over the rest, with the ledgers it "
            "may concern in limbo"
        )
