"""A small world around the machines: bookies, a metadata node, and messages that may get lost.

The bookies remember what they were sent and can be fenced; nothing is simulated of disks, frames
or time.  Answers reach the machines when a test lets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata


def length_of(entry_id: EntryId) -> int:
    """The length field of an entry: payloads have 10 bytes."""
    return (entry_id + 1) * 10


@dataclass
class ModelBookie:
    entries: dict[EntryId, int] = field(default_factory=dict)  # id -> LAC field
    is_fenced: bool = False
    is_up: bool = True


@dataclass
class Cluster:
    """Bookies and one ledger's metadata node."""

    metadata: LedgerMetadata
    version: int = 0
    bookies: dict[BookieId, ModelBookie] = field(default_factory=dict)
    created: int = 0

    @classmethod
    def of(cls, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> Cluster:
        names = tuple(f"b{i}" for i in range(ensemble_size))
        metadata = LedgerMetadata(
            ledger_id=1,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=ack_quorum_size,
            fragments=(Fragment(0, names),),
        )
        cluster = cls(metadata, created=ensemble_size)
        cluster.bookies = {name: ModelBookie() for name in names}
        return cluster

    def new_bookie(self) -> BookieId:
        name = f"b{self.created}"
        self.created += 1
        self.bookies[name] = ModelBookie()
        return name

    def write(self, metadata: LedgerMetadata, version: int) -> bool:
        if version != self.version:
            return False
        self.metadata = metadata
        self.version += 1
        return True

    def copies(self, metadata: LedgerMetadata, entry_id: EntryId) -> int:
        """How many bookies of the entry's recorded write set have it; dumb on purpose."""
        fragment = [f for f in metadata.fragments if f.first_entry_id <= entry_id][-1]
        count = 0
        for step in range(metadata.write_quorum_size):
            name = fragment.ensemble[(entry_id + step) % metadata.ensemble_size]
            count += entry_id in self.bookies[name].entries
        return count
