"""What lies on the disk of a simulated bookie, for those who ask nobody."""

from __future__ import annotations

from quorumbook.ids import EntryId, LedgerId
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.disks.tables import Tables
from quorumbook.storage.directories.places import INDEX_NAME
from quorumbook.storage.index.stored_run import DAMAGED


def has_room(machine: BookieMachine) -> bool:
    """Tell whether a disk may be full enough no more for its bookie to refuse adds."""
    capacity = machine.disk.capacity_bytes
    return capacity is None or 100 * machine.disk.used_bytes() <= 95 * capacity


def moved_bytes(machine: BookieMachine, ledger_id: LedgerId) -> int:
    """Return how much of a ledger lies beside others' entries, in logs that are not written."""
    held = tables(machine)
    newest = max(held.entry_logs)
    others = {
        row.entry_log_id
        for row in held.all_runs()
        if row.ledger_id != ledger_id and row.entry_log_id != newest
    }
    rows = held.runs.get(ledger_id, [])
    return sum(row.size_bytes for row in rows if row.entry_log_id in others)


def sizes(machine: BookieMachine, ending: str) -> list[int]:
    """Return the sizes of all files of a kind."""
    disk = machine.disk
    return [len(disk.get(path)) for path in disk.files() if path.endswith(ending)]


def index_path(machine: BookieMachine) -> str:
    """Return where its index is."""
    return next(path for path in machine.disk.indexes if path.endswith(INDEX_NAME))


def tables(machine: BookieMachine) -> Tables:
    """Return what its index holds."""
    return machine.disk.indexes[index_path(machine)].visible


def is_believed(machine: BookieMachine, is_verifiable: bool) -> bool:
    """Tell whether its bookie gives out all its runs that checksums or digests can prove."""
    rows = tables(machine).all_runs()
    return not any(row.is_damaged and (is_verifiable or row.checksum != DAMAGED) for row in rows)


def place_of(
    machine: BookieMachine, ledger_id: LedgerId, entry_id: EntryId
) -> tuple[int, int] | None:
    """Return in which entry log, and where in it, an entry lies; None if it is known as damaged."""
    rows = tables(machine).between(ledger_id, entry_id, entry_id)
    if not rows or rows[0].is_damaged:
        return None
    return rows[0].entry_log_id, rows[0].position_of(entry_id)
