"""What a bookie's storage can be told, and what it reports after its start.

Names and bounds for users stand in ``quorumbook.config``; the bookie translates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.errors import ConfigError
from quorumbook.ids import EntryId, LedgerId

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Sizes and times of the storage; the defaults suit two cores and one disk.

    Args:
        write_cache_size_bytes: One write cache; there are two, one that fills and one that a
            flush writes out.
        read_cache_size_bytes: Stretches read from entry logs.
        read_ahead_size_bytes: Most that may be on its way from the disk ahead of the reader.
        flush_interval_s: Anything unflushed is flushed after this time.
        retry_interval_s: Pause before a failed flush is tried again.
        reserve_size_bytes: Room beyond the limits for recovery adds and LAC writes.
        max_idle_handles: Idle ledgers remembered in memory.
        journal_file_size_bytes: A journal file is changed at this size.
        journal_group_size_bytes: Most that one write and sync of the journal takes.
        entry_log_size_bytes: An entry log is changed at this size.
    """

    write_cache_size_bytes: int = 64 * MIB
    read_cache_size_bytes: int = 32 * MIB
    read_ahead_size_bytes: int = 4 * MIB
    flush_interval_s: float = 60.0
    retry_interval_s: float = 1.0
    reserve_size_bytes: int = 8 * MIB
    max_idle_handles: int = 20_000
    journal_file_size_bytes: int = 256 * MIB
    journal_group_size_bytes: int = 8 * MIB
    entry_log_size_bytes: int = 1024 * MIB

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")


@dataclass(slots=True)
class StartReport:
    """What the start found; the bookie acts on it before it registers.

    ``needs_limbo_start`` stays true over restarts until ``finish_limbo_start()``: acknowledged
    entries or fences may be missing, so the bookie has to fence and put in limbo every ledger
    that is not closed and whose last ensemble names it (R22).
    """

    needs_limbo_start: bool = False
    #: Why, in a sentence for the log.
    limbo_reason: str = ""
    has_damaged_journal_tail: bool = False
    #: Whoever ran on the directories last was killed, or lost power.
    was_unclean: bool = False
    is_index_rebuilt: bool = False
    replayed_entries: int = 0
    replayed_bytes: int = 0
    #: The start could not flush because a disk is full; reads work (S55).
    is_full: bool = False
    #: How many known ledgers are in limbo.
    ledgers_in_limbo: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Entries that this bookie holds but cannot give back; somebody has to copy them anew."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId
    reason: str
