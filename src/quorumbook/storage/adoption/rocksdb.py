"""The RocksDB index of the peer's DbLedgerStorage, by the extra ``[rocksdb]``.

    current/ledgers      int64 ledger id >= 0 -> LedgerData (``protocol.messages``)
                         int64 -0xeefd -> int64 flags of the storage (1: the peer wanted an
                         integrity check)
    current/locations    int64 ledger id, int64 entry id -> int64 entry log id << 32 | position of
                         the entry's bytes

Integers are big-endian.  Reading opens the databases read-only: their write-ahead logs, which a
killed bookie leaves, are replayed in memory, and nothing in the directory changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from struct import Struct
from typing import Any

from quorumbook.env import Env
from quorumbook.errors import CorruptIndexError, ForeignDirectoryError, RemoteProtocolError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.messages import message_class, parse
from quorumbook.storage.index.peer_parts import DATABASES, DB
from quorumbook.storage.states.state_file import StoredLedger

_ID = Struct(">q")
_ENTRY = Struct(">qq")
_LEDGERS, _LOCATIONS = DATABASES
_FLAGS_KEY = -0xEEFD
_NEEDS_INTEGRITY_CHECK = 1
#: RocksDB holds the interpreter during a write; this many rows take about a millisecond.
_BATCH_ROWS = 1000
_HINT = (
    "the index is RocksDB, which needs `pip install 'quorumbook[rocksdb]'`; without it, "
    "--without-index takes the entries alone, and every open ledger starts fenced and in limbo"
)


def _library() -> Any:
    try:
        return import_module("rocksdict")
    except ImportError:
        raise ForeignDirectoryError(_HINT) from None


def _open(path: str, *, is_new: bool) -> Any:
    library = _library()
    options = library.Options(raw_mode=True)
    access = library.AccessType.read_write() if is_new else library.AccessType.read_only()
    options.create_if_missing(is_new)
    options.set_error_if_exists(is_new)
    try:
        return library.Rdict(path, options, access_type=access)
    except Exception as error:
        raise CorruptIndexError(f"RocksDB does not open: {error}", path=path) from error


class RocksIndex:
    """The two databases of one index directory (``.../current``)."""

    kind = DB

    def __init__(self, env: Env, directory: str) -> None:
        self._path = directory
        self.states: dict[LedgerId, StoredLedger] = {}
        self.damaged: dict[LedgerId, str] = {}
        self.doubt = ""
        if not env.disk.exists(f"{directory}/{_LEDGERS}/CURRENT"):
            raise CorruptIndexError("an index directory lacks its databases", path=directory)
        ledgers = _open(f"{directory}/{_LEDGERS}", is_new=False)
        try:
            for key, data in ledgers.items():
                self._take(key, data)
        finally:
            ledgers.close()
        self._locations = _open(f"{directory}/{_LOCATIONS}", is_new=False)
        self._counts: Counter[LedgerId] | None = None

    def _take(self, key: bytes, data: bytes) -> None:
        (ledger_id,) = _ID.unpack(key)
        if ledger_id < 0:
            if ledger_id == _FLAGS_KEY and _ID.unpack(data)[0] & _NEEDS_INTEGRITY_CHECK:
                self.doubt = "the Java bookie had not finished its integrity check"
            return
        try:
            known = parse("LedgerData", data)
        except RemoteProtocolError as error:
            self.damaged[ledger_id] = f"{self._path}/{_LEDGERS}: {error}"
            return
        self.states[ledger_id] = StoredLedger(
            ledger_id,
            known.masterKey,
            is_fenced=known.fenced,
            is_in_limbo=known.limbo,
            explicit_lac=known.explicitLac or None,
        )

    def locations(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Sequence[int]:
        """Return the location of each entry of a range, 0 for one that is not here."""
        found = [0] * (last - first + 1)
        entries = self._locations.iter()
        entries.seek(_ENTRY.pack(ledger_id, first))
        while entries.valid():
            owner, entry_id = _ENTRY.unpack(entries.key())
            if owner != ledger_id or entry_id > last:
                break
            found[entry_id - first] = _ID.unpack(entries.value())[0]
            entries.next()
        return found

    def count(self, ledger_id: LedgerId) -> int:
        """Return how many entries of a ledger it names."""
        if self._counts is None:
            self._counts = Counter(_ID.unpack_from(key)[0] for key in self._locations.keys())  # noqa: SIM118
        return self._counts[ledger_id]

    def close(self) -> None:
        """Close what is open."""
        self._locations.close()


def encode_ledger(state: StoredLedger) -> bytes:
    """Return a ledger's value in the database ``ledgers``."""
    message = message_class("LedgerData")(
        exists=True,
        fenced=state.is_fenced,
        masterKey=state.master_key,
        limbo=state.is_in_limbo,
    )
    if state.explicit_lac is not None:
        message.explicitLac = state.explicit_lac
    data: bytes = message.SerializeToString()
    return data


def write_databases(
    directory: str,
    states: Iterable[StoredLedger],
    locations: Iterable[tuple[LedgerId, EntryId, int]],
) -> None:
    """Write both databases into a directory that has none; durable when this returns."""
    _write(
        f"{directory}/{_LEDGERS}",
        ((_ID.pack(state.ledger_id), encode_ledger(state)) for state in states),
    )
    _write(
        f"{directory}/{_LOCATIONS}",
        (
            (_ENTRY.pack(ledger_id, entry_id), _ID.pack(location))
            for ledger_id, entry_id, location in locations
        ),
    )


def remove_databases(env: Env, directory: str) -> None:
    """Remove databases that an earlier attempt left in a directory."""
    for name in DATABASES:
        path = f"{directory}/{name}"
        if env.disk.exists(path):
            _library().Rdict.destroy(path)


def _write(path: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
    library = _library()
    database = _open(path, is_new=True)
    try:
        batch = library.WriteBatch(raw_mode=True)
        for key, data in rows:
            batch.put(key, data)
            if batch.len() >= _BATCH_ROWS:
                database.write(batch)
                batch = library.WriteBatch(raw_mode=True)
        database.write(batch)
        database.flush()
        database.flush_wal(True)
    finally:
        database.close()
