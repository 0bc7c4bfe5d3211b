"""What one seed is about: how large everything is, and which mishaps there are.

Each seed draws all of it at once, every mishap being there or not like a coin, so that most seeds
are about few things and some rare combination is in some seed.  A ``LifePlan`` does not say when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorumbook.bookie.options import BookieOptions
from quorumbook.client.options import ClientOptions
from quorumbook.protocol.digest import DigestType
from quorumbook.sim.kernel import Tape
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions

_DIGESTS = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC, DigestType.DUMMY)
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (3, 2, 1))
_KB = 1 << 10
#: A way that no seed draws: bookies have little room, and little patience with those who take it.
LOW_LIMITS = "low_limits"
_LOW_LIMITS: Mapping[str, Any] = {
    "high_connection_answer_bytes": 64 * _KB,
    "max_answer_bytes": 1024 * _KB,
    "answer_timeout_s": 0.5,
    "max_add_delay_s": 0.5,
}
#: Each is a method of ``DiskMishaps``.
DISK_MISHAPS = (
    "fail_read",
    "fail_sync",
    "fail_write",
    "fill_disk",
    "damage_log",
    "lose_disk",
    "swap_disks",
)
#: What can happen to machines and the network, each by a method of ``Nemesis``.
MISHAPS = (
    "kill_bookie",
    "cut_power",
    "cut_power_in_job",
    "cut_power_of_all",
    "pause_bookie",
    "pause_client",
    "kill_client",
    "cut_link",
    "isolate",
    "cut_metadata",
    "reset_connection",
    "kill_metadata_server",
    "pause_metadata_server",
    "part_metadata_server",
    "swizzle",
    "reset_within",
    *DISK_MISHAPS,
)
#: What people do, and how clients and bookies are set.
WAYS = (
    "deletes",
    "collects",
    "compacts",
    "scrubs",
    "deferred_sync",
    "chosen_ids",
    "striping",
    "delayed_changes",
    "single_reads",
    "sticky_reads",
    "small_frames",
    "late_lac",
    "early_turns",
    "wrong_clocks",
    "slow_threads",
    "third_version",
)
#: What they do with streams: each takes about as long as all else in a seed.
STREAM_WAYS: tuple[tuple[str, ...], ...] = ((), ("streams",), ("groups",), ("transactions",))


#: What seeds without a directed phase have otherwise: people who do not wait long, and an end as
#: soon as they were told enough.
PLAIN: Mapping[str, Any] = {"pace": 0.1, "operations_max": 200, "ledgers_max": 60}


@dataclass(frozen=True, slots=True)
class LifePlan:
    """One seed's draw."""

    bookies: int
    #: The servers of a ZooKeeper; 0 has a store without servers.
    zookeepers: int
    #: The metadata are in etcd, whatever else is said of them.
    has_etcd: bool
    writers: int
    recoverers: int
    tailers: int
    has_auto_recovery: bool
    quorums: tuple[int, int, int]
    digest_type: DigestType
    entries_max: int
    burst_max: int
    payload_size_max: int
    #: How long there are mishaps, and after how many answers to clients they end before that.
    rough_s: float
    operations_max: int
    #: How long writers wait before they go on, in parts of the usual.
    pace: float
    ledgers_max: int
    ways: tuple[str, ...]
    mishaps: tuple[str, ...]
    #: Mean time between two of them.
    mishap_interval_s: float
    #: The probability of a long latency, of a piece cut up, of a slow sync, of a lost request.
    tail: float
    rechunk: float
    slow_syncs: float
    metadata_drops: float
    kept_share: float
    timeout_s: float
    session_timeout_s: float
    journal_file_size_bytes: int
    flush_interval_s: float
    journals: int
    ledger_directories: int

    def has(self, way: str) -> bool:
        """Tell whether the seed has one of ``WAYS`` or ``STREAM_WAYS``, or ``LOW_LIMITS``."""
        return way in self.ways

    def bookie_options(self, name: str, root: str) -> BookieOptions:
        """Return the options of one bookie, whose files lie below a directory."""
        is_small = self.has("small_frames")
        limits = _LOW_LIMITS if self.has(LOW_LIMITS) else {}
        return BookieOptions(
            journal_directories=tuple(f"{root}/journal{i}" for i in range(self.journals)),
            ledger_directories=tuple(f"{root}/ledgers{i}" for i in range(self.ledger_directories)),
            host=name,
            bookie_id=name,
            storage=StorageOptions(
                write_cache_size_bytes=64 * _KB,
                read_cache_size_bytes=0 if is_small else 64 * _KB,
                journal_file_size_bytes=self.journal_file_size_bytes,
                entry_log_size_bytes=(4 if self.has("early_turns") else 64) * _KB,
                flush_interval_s=self.flush_interval_s,
                reserve_size_bytes=16 * _KB,
            ),
            gc=self._gc_options(),
            scrub=ScrubOptions(
                interval_s=2.0 if self.has("scrubs") else 0, rate_bytes=0, heal_interval_s=5.0
            ),
            max_batch_read_bytes=(4 if is_small else 1024) * _KB,
            min_high_priority_free_bytes=0,
            disk_check_interval_s=1.0,
            **limits,
        )

    def _gc_options(self) -> GcOptions:
        """Passes every second or two where there are any, and confirmations as close."""
        compaction_s = 1.5 if self.has("compacts") else 0.0
        return GcOptions(
            interval_s=1.0 if self.has("collects") or compaction_s else 3600.0,
            # A server of the metadata store may show the past for a while.
            confirm_interval_s=6.0,
            max_ledgers_share=1.0,
            max_unapproved_share=1.0,
            minor_compaction_interval_s=compaction_s,
            minor_compaction_threshold=0.5 if compaction_s else 0.0,
            major_compaction_interval_s=2 * compaction_s,
            major_compaction_threshold=0.9 if compaction_s else 0.0,
            surplus_interval_s=2.0 if self.has("collects") else 0.0,
            surplus_grace_s=2.0,
            reserve_size_bytes=16 * _KB,
        )

    def client_options(self) -> ClientOptions:
        """Return the options of a client."""
        return ClientOptions(
            connect_timeout_s=self.timeout_s,
            add_timeout_s=self.timeout_s,
            add_quorum_timeout_s=20.0,
            read_timeout_s=self.timeout_s,
            request_timeout_s=self.timeout_s,
            operation_timeout_s=30.0,
            long_poll_timeout_s=1.0,
            quarantine_s=5.0,
            session_timeout_s=self.session_timeout_s,
            recovery_batch_entries=4,
            read_batch_bytes=4 * _KB if self.has("small_frames") else 1024 * _KB,
            batch_reads=not self.has("single_reads"),
            sticky_reads=self.has("sticky_reads"),
            opportunistic_striping=self.has("striping"),
            delay_ensemble_change=self.has("delayed_changes"),
            # Else a third of what bookies are asked to write is what is confirmed.
            lac_delay_s=0.3 if self.has("late_lac") else 0.01,
        )


def draw(tape: Tape) -> LifePlan:
    """Draw a plan."""
    quorums = tape.pick(_QUORUMS)
    return LifePlan(
        zookeepers=tape.pick((0, 1, 3, 3)),
        bookies=max(quorums[0] + tape.below(3), 3),
        writers=1 + tape.below(2),
        recoverers=tape.below(3),
        tailers=tape.below(2),
        has_auto_recovery=tape.chance(0.4),
        quorums=quorums,
        digest_type=tape.pick(_DIGESTS),
        entries_max=tape.pick((4, 20, 60)),
        burst_max=tape.pick((1, 4, 16)),
        payload_size_max=tape.pick((16, 300, 3000)),
        rough_s=tape.between(4, 10),
        operations_max=1 << 30,
        pace=1.0,
        ledgers_max=tape.pick((3, 6, 12)),
        ways=(*_half_of(tape, WAYS), *tape.pick(STREAM_WAYS)),
        mishaps=_half_of(tape, MISHAPS),
        mishap_interval_s=tape.pick((0.2, 0.7, 2.0)),
        tail=tape.pick((0.0, 0.005, 0.05)),
        rechunk=tape.pick((0.0, 0.1)),
        slow_syncs=tape.pick((0.0, 0.01, 0.1)),
        metadata_drops=tape.pick((0.0, 0.0, 0.02, 0.1)),
        kept_share=tape.between(0.1, 0.9),
        timeout_s=tape.between(0.5, 2.5),
        session_timeout_s=tape.between(2.0, 6.0),
        journal_file_size_bytes=tape.pick((8 * _KB, 64 * _KB)),
        flush_interval_s=tape.pick((0.2, 2.0, 3600.0)),
        journals=tape.pick((1, 1, 2)),
        ledger_directories=tape.pick((1, 1, 2)),
        has_etcd=tape.chance(0.2),
    )


def _half_of(tape: Tape, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in names if tape.chance(0.5))
