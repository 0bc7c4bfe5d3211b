"""What one seed is about: how large everything is, and which mishaps there are.

Each seed draws all of it at once, every mishap being there or not like a coin, so that most seeds
are about few things and some rare combination is in some seed.  A ``Plan`` says nothing about when.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.bookie.options import BookieOptions
from quorumbook.client.options import ClientOptions
from quorumbook.protocol.digest import DigestType
from quorumbook.sim.kernel import Tape
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions

_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (3, 2, 1))
_KB = 1 << 10
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
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's draw."""

    bookies: int
    writers: int
    recoverers: int
    tailers: int
    has_auto_recovery: bool
    quorums: tuple[int, int, int]
    digest_type: DigestType
    entries_max: int
    burst_max: int
    payload_size_max: int
    rough_s: float
    ledgers_max: int
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

    def bookie_options(self, name: str, root: str) -> BookieOptions:
        """Return the options of one bookie, whose files lie below a directory."""
        return BookieOptions(
            journal_directories=tuple(f"{root}/journal{i}" for i in range(self.journals)),
            ledger_directories=(f"{root}/ledgers",),
            host=name,
            bookie_id=name,
            storage=StorageOptions(
                write_cache_size_bytes=64 * _KB,
                read_cache_size_bytes=64 * _KB,
                journal_file_size_bytes=self.journal_file_size_bytes,
                entry_log_size_bytes=64 * _KB,
                flush_interval_s=self.flush_interval_s,
                reserve_size_bytes=16 * _KB,
            ),
            gc=GcOptions(interval_s=3600.0, reserve_size_bytes=16 * _KB),
            scrub=ScrubOptions(interval_s=0, heal_interval_s=5.0),
            min_high_priority_free_bytes=0,
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
        )


def draw(tape: Tape) -> Plan:
    """Draw a plan."""
    quorums = tape.pick(_QUORUMS)
    on = [tape.chance(0.5) for _ in MISHAPS]
    return Plan(
        bookies=max(quorums[0] + tape.below(3), 3),
        writers=1 + tape.below(2),
        recoverers=tape.below(3),
        tailers=tape.below(2),
        has_auto_recovery=tape.chance(0.4),
        quorums=quorums,
        digest_type=tape.pick((DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)),
        entries_max=tape.pick((4, 20, 60)),
        burst_max=tape.pick((1, 4, 16)),
        payload_size_max=tape.pick((16, 300, 3000)),
        rough_s=tape.between(8, 20),
        ledgers_max=tape.pick((3, 6, 12)),
        mishaps=tuple(each for each, is_on in zip(MISHAPS, on, strict=True) if is_on),
        mishap_interval_s=tape.pick((0.3, 1.0, 3.0)),
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
    )
