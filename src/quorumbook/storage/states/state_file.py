"""ledger-states: the copy of what cannot be rebuilt, in every ledger directory.

Runs can be found again in the entry logs; master keys, fences, explicit LACs and limbo cannot.
A checkpoint that changed them appends the changed ledgers here, before the marks advance:

    block       "QBST", int32 our version (1), int32 bytes of the records, records,
                CRC32C of the block before it (0 for the first) and of this block
    record      int64 ledger id, int32 flags (1 fenced, 2 limbo, 4 has explicit LAC, 8 deleted,
                16 has a floor, 32 has a birth), int32 length, master key, int32 length,
                explicit LAC packet, with flag 16 int64 floor of the last add confirmed, with
                flag 32 int64 place of the birth
    deletion    a record with flag 8 and no key; in place of the packet int64 wall time in
                milliseconds if the deletion is to be remembered

The newest record of a ledger counts.  A file that holds twice what it needs is written anew as a
whole; what new ledgers add is needed, so a file of nothing else grows without that.  The chain of
checksums makes a lost block in the middle visible; a torn last block is the end of a crashed
checkpoint and is cut off.  All calls block and come from one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend

from quorumbook.env import Disk, Env
from quorumbook.errors import CorruptStateError, StorageError
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.storage.settling import settle

NAME = "ledger-states"
MAGIC = b"QBST"
VERSION = 1

_FENCED, _LIMBO, _HAS_LAC, _DELETED, _HAS_FLOOR, _HAS_BIRTH = 1, 2, 4, 8, 16, 32
_BLOCK = Struct(">4sii")
_RECORD = Struct(">qii")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_UINT32 = Struct(">I")
#: Small files are never worth writing anew.
_REWRITE_FROM_BYTES = 64 * 1024
#: What is held at a time while a file of millions of ledgers is written.
_BLOCK_LIMIT_BYTES = 1024 * 1024


class Deletion(NamedTuple):
    """A ledger that was deleted here; ``at_ms`` is wall time, None if nobody has to remember."""

    ledger_id: LedgerId
    at_ms: int | None


class StoredLedger(NamedTuple):
    """What a bookie knows of a ledger besides its entries.

    ``last_add_confirmed`` is a floor of what readers may have heard, where the last stored entry
    and the explicit LAC alone would say less (a recovery writes entries with an older LAC).
    ``born_at`` is a place in the entry logs, log id << 32 | position: what lies before it is of a
    ledger of the same id that was deleted, and a rebuilt index leaves it out (S53).
    """

    ledger_id: LedgerId
    master_key: bytes
    is_fenced: bool = False
    is_in_limbo: bool = False
    explicit_lac: bytes | None = None
    last_add_confirmed: EntryId = INVALID_ENTRY_ID
    born_at: int = 0

    def __repr__(self) -> str:
        fenced = ", fenced" if self.is_fenced else ""
        limbo = ", in limbo" if self.is_in_limbo else ""
        return f"StoredLedger(ledger {self.ledger_id}{fenced}{limbo})"


def encode_record(state: StoredLedger) -> bytes:
    """Return one ledger's record."""
    flags = (_FENCED if state.is_fenced else 0) | (_LIMBO if state.is_in_limbo else 0)
    lac = b""
    if state.explicit_lac is not None:
        flags |= _HAS_LAC
        lac = state.explicit_lac
    floor = b""
    if state.last_add_confirmed != INVALID_ENTRY_ID:
        flags |= _HAS_FLOOR
        floor = _INT64.pack(state.last_add_confirmed)
    birth = b""
    if state.born_at:
        flags |= _HAS_BIRTH
        birth = _INT64.pack(state.born_at)
    key = state.master_key
    head = _RECORD.pack(state.ledger_id, flags, len(key))
    return head + key + _INT32.pack(len(lac)) + lac + floor + birth


def encode_deletion(deletion: Deletion) -> bytes:
    """Return the record of a ledger that is gone."""
    at = b"" if deletion.at_ms is None else _INT64.pack(deletion.at_ms)
    return _RECORD.pack(deletion.ledger_id, _DELETED, 0) + _INT32.pack(len(at)) + at


def encode_blocks(records: Iterable[bytes], chain: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of these records, each with the checksum that the next one starts from."""
    for batch in _block_loads(records):
        data = b"".join(batch)
        block = _BLOCK.pack(MAGIC, VERSION, len(data)) + data
        chain = extend(chain, block)
        yield block + _UINT32.pack(chain), chain


def _block_loads(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for record in records:
        if batch and size + len(record) > _BLOCK_LIMIT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record)
    if batch:
        yield batch


class StateFileContent(NamedTuple):
    """What a copy holds; ``end`` is where its good blocks end, ``chain`` their checksum.

    ``deletions`` has the wall times of those that are to be remembered.
    """

    states: dict[LedgerId, StoredLedger]
    deletions: dict[LedgerId, int]
    end: int
    chain: int
    is_torn: bool


def decode_states(data: bytes, path: str = "") -> StateFileContent:
    """Parse a copy.

    Raises:
        CorruptStateError: A block is damaged and others follow it, or a newer release wrote it.
    """
    states: dict[LedgerId, StoredLedger] = {}
    deletions: dict[LedgerId, int] = {}
    position, chain = 0, 0
    while position < len(data):
        problem = _block_problem(data, position, chain, path)
        if problem is not None:
            if data.find(MAGIC, position + 1) >= 0:
                raise CorruptStateError(problem, path=path, offset=position)
            return StateFileContent(states, deletions, position, chain, is_torn=True)
        size = _BLOCK.unpack_from(data, position)[2]
        start = position + _BLOCK.size
        _decode_records(data[start : start + size], states, deletions, path, start)
        position = start + size + 4
        chain = _UINT32.unpack_from(data, position - 4)[0]
    return StateFileContent(states, deletions, position, chain, is_torn=False)


def _block_problem(data: bytes, position: int, chain: int, path: str) -> str | None:
    """Say what is wrong with a block, or None."""
    if len(data) - position < _BLOCK.size + 4:
        return "a block is cut"
    magic, version, size = _BLOCK.unpack_from(data, position)
    end = position + _BLOCK.size + size
    if magic != MAGIC or size < 0:
        return "a block is damaged"
    if end + 4 > len(data):
        return "a block is cut"
    if extend(chain, data[position:end]) != _UINT32.unpack_from(data, end)[0]:
        return "a block is damaged"
    if version > VERSION:
        raise CorruptStateError(
            f"the file was written by a newer release (version {version}, ours {VERSION})",
            path=path,
            offset=position,
        )
    return None


def _decode_records(
    data: bytes,
    states: dict[LedgerId, StoredLedger],
    deletions: dict[LedgerId, int],
    path: str,
    offset: int,
) -> None:
    position = 0
    while position < len(data):
        if len(data) - position < _RECORD.size + 4:
            raise CorruptStateError("a record is cut", path=path, offset=offset + position)
        ledger_id, flags, key_size = _RECORD.unpack_from(data, position)
        key_end = position + _RECORD.size + key_size
        if key_size < 0 or key_end + 4 > len(data):
            raise CorruptStateError("a record is cut", path=path, offset=offset + position)
        lac_size = _INT32.unpack_from(data, key_end)[0]
        lac_end = key_end + 4 + lac_size
        floor_end = lac_end + (_INT64.size if flags & _HAS_FLOOR else 0)
        end = floor_end + (_INT64.size if flags & _HAS_BIRTH else 0)
        if lac_size < 0 or end > len(data):
            raise CorruptStateError("a record is cut", path=path, offset=offset + position)
        if flags & _DELETED:
            states.pop(ledger_id, None)
            if lac_size == _INT64.size:
                deletions[ledger_id] = _INT64.unpack_from(data, key_end + 4)[0]
        else:
            states[ledger_id] = StoredLedger(
                ledger_id,
                data[position + _RECORD.size : key_end],
                bool(flags & _FENCED),
                bool(flags & _LIMBO),
                data[key_end + 4 : lac_end] if flags & _HAS_LAC else None,
                _INT64.unpack_from(data, lac_end)[0] if flags & _HAS_FLOOR else INVALID_ENTRY_ID,
                _INT64.unpack_from(data, floor_end)[0] if flags & _HAS_BIRTH else 0,
            )
        position = end


def read_states(disk: Disk, directory: str) -> StateFileContent | None:
    """Read a directory's copy; None if it has none."""
    path = f"{directory}/{NAME}"
    return decode_states(disk.read_file(path), path) if disk.exists(path) else None


@dataclass(slots=True)
class _Copy:
    """One directory's file; ``end`` of -1 means it must be written as a whole."""

    directory: str
    end: int = -1
    chain: int = 0
    #: About what a file with nothing but the newest records would hold, and of how many ledgers.
    least_bytes: int = 0
    ledgers: int = 0

    def begin(self) -> int:
        """The file is about to change, and of no use if that fails; return where it ended."""
        end, self.end = self.end, -1
        return end

    def append(self, end: int, chain: int) -> None:
        """The file has another end."""
        self.end, self.chain = end, chain

    def replace(self, end: int, chain: int, ledgers: int) -> None:
        """The file is another one, with no more in it than is needed."""
        self.end, self.chain, self.least_bytes, self.ledgers = end, chain, end, ledgers

    def need(self, new_ledgers: int, new_bytes: int, gone_ledgers: int) -> None:
        """Some ledgers are new, and others, taken to be of average size, are gone."""
        self.ledgers += new_ledgers
        self.least_bytes += new_bytes
        gone_ledgers = min(gone_ledgers, self.ledgers)
        if gone_ledgers:
            self.least_bytes -= self.least_bytes * gone_ledgers // self.ledgers
            self.ledgers -= gone_ledgers


class StateCopies:
    """The copies in all ledger directories."""

    def __init__(self, env: Env, directories: Sequence[str]) -> None:
        self._disk = env.disk
        self._copies = [_Copy(directory) for directory in directories]

    def load(self) -> list[StateFileContent | StorageError | None]:
        """Read all copies, in the order of the directories; a damaged one gives its error.

        What is read is durable, names aside: a bookie may have been killed before the sync.
        """
        found: list[StateFileContent | StorageError | None] = []
        for copy in self._copies:
            try:
                content = read_states(self._disk, copy.directory)
            except StorageError as error:
                found.append(error)
                continue
            found.append(content)
            if content is not None:
                settle(self._disk, f"{copy.directory}/{NAME}")
                copy.replace(content.end, content.chain, len(content.states))
        return found

    def write(
        self,
        changed: Sequence[StoredLedger],
        deleted: Sequence[Deletion],
        everything: Callable[[], Iterable[StoredLedger | Deletion]],
        new: Collection[LedgerId] = (),
        written: set[str] | None = None,
    ) -> None:
        """Bring every copy up to date, durably.

        Args:
            changed: Ledgers that are new or differ since the last call.
            deleted: Ledgers that went since then; one that is in both came back after it.
            new: Which of the changed ones no copy has.
            everything: Gives all ledgers and the deletions that are remembered, changes
                included; called only for a copy that is missing, damaged or has grown to twice
                its need.
            written: Takes the directories that have it.  After an error, those in it are left out
                when the same is tried again: each try would add to them, and count as need.
        """
        written = set() if written is None else written
        states = [*map(encode_record, changed)]
        records = [*map(encode_deletion, deleted), *states]
        size = sum(map(len, records))
        is_new = [one.ledger_id in new for one in changed]
        sizes = [*map(len, compress(states, is_new))]
        for copy in self._copies:
            if copy.directory in written and copy.end >= 0:
                continue
            copy.need(len(sizes), sum(sizes), len(deleted))
            grown = copy.end + size > max(2 * copy.least_bytes, _REWRITE_FROM_BYTES)
            if copy.end < 0 or grown:
                self._rewrite(copy, everything())
            elif records:
                self._append(copy, records)
            written.add(copy.directory)

    def _rewrite(self, copy: _Copy, everything: Iterable[StoredLedger | Deletion]) -> None:
        end = chain = ledgers = 0

        def records() -> Iterator[bytes]:
            nonlocal ledgers
            for each in everything:
                if isinstance(each, Deletion):
                    yield encode_deletion(each)
                else:
                    ledgers += 1
                    yield encode_record(each)

        def noted() -> Iterator[bytes]:
            nonlocal end, chain
            for block, chain in encode_blocks(records()):  # noqa: B007 - the last one's stays
                end += len(block)
                yield block

        copy.begin()
        self._disk.write_file(f"{copy.directory}/{NAME}", noted())
        copy.replace(end, chain, ledgers)

    def _append(self, copy: _Copy, records: list[bytes]) -> None:
        blocks = list(encode_blocks(records, copy.chain))
        end = copy.begin()
        file = self._disk.open(f"{copy.directory}/{NAME}")
        try:
            if file.size_bytes() != end:
                file.truncate(end)
            file.write([block for block, _ in blocks], end)
            file.sync()
        finally:
            file.close()
        copy.append(end + sum(len(block) for block, _ in blocks), blocks[-1][1])
