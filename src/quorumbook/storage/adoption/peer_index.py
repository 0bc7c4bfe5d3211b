"""The index of a stopped bookie of the peer, read in place.

    sorted, interleaved    one ``.idx`` file for each ledger, spread over the index directories
    db                     two RocksDB databases in each index directory, which belongs to the
                           ledger directory of the same number and counts its entry logs alone

It tells which ledgers there are, and where their entries lie.  What is read here is the peer's own
word: an entry that the index does not name was never brought to its place
by a checkpoint, and is in the journal if it was ever acknowledged.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from quorumbook.env import Env, File
from quorumbook.errors import CorruptIndexError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.adoption.index_file import (
    HEADER_SIZE,
    LOCATION_SIZE,
    decode_header,
    decode_locations,
    find_index_files,
)
from quorumbook.storage.index.peer_parts import SORTED
from quorumbook.storage.states.state_file import StoredLedger

_OPEN_FILES = 500
_PIECE_BYTES = 1024 * 1024


class PeerIndex(Protocol):
    """What an index of the peer knows; ``kind`` is ``sorted`` or ``db``."""

    kind: str
    #: Every ledger it can tell of.
    states: dict[LedgerId, StoredLedger]
    #: Ledgers whose part cannot be read, each with the reason.
    damaged: dict[LedgerId, str]
    #: Why the peer itself did not trust it, "" if it did.
    doubt: str

    def locations(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Sequence[int]:
        """Return the location of each entry of a range, 0 for one that is not here."""
        ...

    def count(self, ledger_id: LedgerId) -> int:
        """Return how many entries of a ledger it names."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class IndexFiles:
    """The ``.idx`` files of all index directories."""

    kind = SORTED
    doubt = ""

    def __init__(self, env: Env, directories: Sequence[str]) -> None:
        self._env = env
        self._paths = find_index_files(env, directories)
        self._files: OrderedDict[LedgerId, File] = OrderedDict()
        self.states: dict[LedgerId, StoredLedger] = {}
        self.damaged: dict[LedgerId, str] = {}
        for ledger_id, path in self._paths.items():
            try:
                header = decode_header(self._file(ledger_id).read(0, HEADER_SIZE), path)
            except CorruptIndexError as error:
                self.damaged[ledger_id] = str(error)
                continue
            self.states[ledger_id] = StoredLedger(
                ledger_id,
                header.master_key,
                is_fenced=header.is_fenced,
                explicit_lac=header.explicit_lac,
            )

    def _file(self, ledger_id: LedgerId) -> File:
        file = self._files.pop(ledger_id, None)
        if file is None:
            file = self._env.disk.open(self._paths[ledger_id], read_only=True)
            if len(self._files) >= _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
        self._files[ledger_id] = file
        return file

    def locations(self, ledger_id: LedgerId, first: EntryId, last: EntryId) -> Sequence[int]:
        """Return the location of each entry of a range, 0 for one that is not here."""
        count = last - first + 1
        data = self._file(ledger_id).read(
            HEADER_SIZE + first * LOCATION_SIZE, count * LOCATION_SIZE
        )
        found = decode_locations(data)
        found.extend([0] * (count - len(found)))
        return found

    def count(self, ledger_id: LedgerId) -> int:
        """Return how many entries of a ledger it names."""
        file = self._file(ledger_id)
        found, size = 0, file.size_bytes()
        for position in range(HEADER_SIZE, size, _PIECE_BYTES):
            locations: array[int] = decode_locations(file.read(position, _PIECE_BYTES))
            found += len(locations) - locations.count(0)
        return found

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            self._files.popitem()[1].close()
