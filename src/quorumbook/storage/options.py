"""What a bookie's storage can be told, and what it reports after its start.

Beside the storage's own the options of garbage collection and of scrub, which work on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorumbook.errors import ConfigError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.options import MS, Options, option

MIB = 1 << 20
_KB, _MB, _GB = 1 << 10, MIB, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions(Options):
    """Sizes and times of the storage; the defaults suit two cores and one disk."""

    SECTION: ClassVar[str] = "storage"

    # fmt: off
    write_cache_size_bytes: int = option(
        64 * _MB, "One write cache; there are two, one that fills and one that a flush writes out.",
        minimum=64 * _KB,
    )
    read_cache_size_bytes: int = option(
        32 * _MB, "Entries read from entry logs and kept for the next reader.",
        minimum=0, peer_key="dbStorage_readAheadCacheMaxSizeMb", peer_unit=_MB,
    )
    read_ahead_size_bytes: int = option(
        4 * _MB, "Most that may be on its way from the disk ahead of the reader.",
        minimum=0, peer_key="dbStorage_readAheadCacheBatchBytesSize",
    )
    flush_interval_s: float = option(
        60.0, "Anything unflushed is flushed after this time.",
        minimum=0.01, peer_key="flushInterval", peer_unit=MS,
    )
    retry_interval_s: float = option(
        1.0, "Pause before a failed flush is tried again.",
        minimum=0.01,
    )
    reserve_size_bytes: int = option(
        8 * _MB, "Room beyond the limits for recovery adds and writes of the last add confirmed.",
        minimum=0,
    )
    max_idle_handles: int = option(
        20000, "Idle ledgers remembered in memory.",
        minimum=1,
    )
    journal_file_size_bytes: int = option(
        256 * _MB, "A new journal file begins at this size.",
        minimum=4 * _KB, maximum=2 * _GB, peer_key="journalMaxSizeMB", peer_unit=_MB,
    )
    journal_group_size_bytes: int = option(
        8 * _MB, "Most that one write and sync of the journal takes.",
        minimum=64 * _KB, maximum=_GB,
    )
    entry_log_size_bytes: int = option(
        _GB, "A new entry log begins at this size.",
        minimum=4 * _KB, maximum=2 * _GB, peer_key="logSizeLimit",
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions(Options):
    """When garbage is collected, and how carefully."""

    SECTION: ClassVar[str] = "gc"

    # fmt: off
    interval_s: float = option(
        900.0, "Time between two passes of garbage collection.",
        minimum=0.01, peer_key="gcWaitTime", peer_unit=MS,
    )
    confirm_interval_s: float = option(
        300.0,
        "A ledger is deleted when the metadata lacks it in two passes at least this far apart.",
        minimum=0,
    )
    max_ledgers_share: float = option(
        0.2, "Largest share of a bookie's ledgers that one pass deletes by itself; 1000 always.",
        minimum=0, maximum=1,
    )
    max_unapproved_share: float = option(
        0.5,
        "Deletions of more than this share of a bookie's ledgers at once wait for an operator; "
        "10 never do.",
        minimum=0, maximum=1,
    )
    deletions_remembered_s: float = option(
        604800.0,
        "How long a bookie remembers that a ledger was deleted, and refuses its old writers.",
        minimum=0,
    )
    minor_compaction_threshold: float = option(
        0.2, "Minor compaction moves what lives in entry logs with a smaller live share; 0: none.",
        minimum=0, maximum=1, peer_key="minorCompactionThreshold",
    )
    minor_compaction_interval_s: float = option(
        3600.0, "Time between two minor compactions.",
        minimum=0, peer_key="minorCompactionInterval",
    )
    major_compaction_threshold: float = option(
        0.8, "The same for major compaction.",
        minimum=0, maximum=1, peer_key="majorCompactionThreshold",
    )
    major_compaction_interval_s: float = option(
        86400.0, "Time between two major compactions.",
        minimum=0, peer_key="majorCompactionInterval",
    )
    surplus_interval_s: float = option(
        86400.0,
        "Time between two searches for copies of closed ledgers that no longer name this bookie; "
        "0: none.",
        minimum=0, peer_key="gcOverreplicatedLedgerWaitTime", peer_unit=MS,
    )
    surplus_grace_s: float = option(
        3600.0,
        "Such a copy is dropped when it is found again so much later, and nothing was added to "
        "it.",
        minimum=0,
    )
    reserve_size_bytes: int = option(
        16 * _MB, "Disk space kept so that compaction can give space back on a full disk.",
        minimum=0,
    )
    # fmt: on

    def check_together(self) -> None:
        """Refuse values that contradict each other."""
        if self.minor_compaction_threshold > self.major_compaction_threshold > 0:
            raise ConfigError(
                "gc.minor_compaction_threshold must not be above gc.major_compaction_threshold"
            )

    def compaction_threshold(self, *, minor: bool, major: bool) -> float:
        """Return below which live ratio a pass of these kinds compacts logs; 0: it compacts none.

        A major one is a minor one where that is all that is turned on.
        """
        if major and self.major_compaction_threshold:
            return self.major_compaction_threshold
        return self.minor_compaction_threshold if minor or major else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions(Options):
    """How often and how fast everything is read."""

    SECTION: ClassVar[str] = "scrub"

    # fmt: off
    interval_s: float = option(
        86400.0,
        "Time from the end of one scrub, which reads all entries here, to the next; 0: none.",
        minimum=0, peer_key="localScrubInterval",
    )
    rate_bytes: int = option(
        8 * _MB,
        "Bytes a second that scrub reads at most, within background.io_rate_bytes; 0: no limit.",
        minimum=0,
    )
    heal_interval_s: float = option(
        60.0, "Time between two looks at ledgers that are damaged here or in limbo.",
        minimum=0.01,
    )
    # fmt: on


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
