"""What auto-recovery can be told: the auditor, the replication worker, and both together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from quorumbook.options import MS, Options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditorOptions(Options):
    """What an auditor can be told."""

    SECTION: ClassVar[str] = "recovery"

    # fmt: off
    lost_bookie_delay_s: float = option(
        0.0,
        "How long a bookie may be away before its ledgers are copied, in whole seconds; "
        "proposed to a cluster that has none yet. `recovery delay` changes it.",
        minimum=0, maximum=2147483647, peer_key="lostBookieRecoveryDelay",
    )
    bookie_check_interval_s: float = option(
        86400.0,
        "Longest time between two searches of the metadata for lost bookies; 0: only when there"
        " is a reason.",
        minimum=0, peer_key="auditorPeriodicBookieCheckInterval",
    )
    replica_check_interval_s: float = option(
        86400.0,
        "Time between two counts of the copies of all entries, by the lists that bookies give "
        "of what they hold; 0: only on demand.",
        minimum=0, peer_key="auditorReplicasCheckInterval",
    )
    ledger_check_interval_s: float = option(
        604800.0,
        "Time between two readings of all copies of all entries, with their digests; 0: only on "
        "demand.",
        minimum=0, peer_key="auditorPeriodicCheckInterval",
    )
    placement_check_interval_s: float = option(
        0.0,
        "Time between two judgements of all ensembles by the placement policy; 0: only on "
        "demand.",
        minimum=0, peer_key="auditorPeriodicPlacementPolicyCheckInterval",
    )
    repair_placement: bool = option(
        False, "Put ledgers that break the placement policy into the queue when they are found.",
        peer_key="repairedPlacementPolicyNotAdheringBookieEnabled",
    )
    stream_retention_interval_s: float = option(
        600.0, "Time between two looks of the auditor for what streams need not keep; 0: never.",
        minimum=0,
    )
    stream_namespaces: tuple[str, ...] = option(
        ("/streams",), "The namespaces of those streams, as paths in the metadata tree.",
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(Options):
    """What a replication worker can be told."""

    SECTION: ClassVar[str] = "recovery"

    # fmt: off
    open_ledger_grace_s: float = option(
        30.0,
        "How long a writer has to replace a lost bookie, before its ledger is closed and "
        "copied.",
        minimum=0, peer_key="openLedgerRereplicationGracePeriod", peer_unit=MS,
    )
    max_retry_s: float = option(
        300.0,
        "Longest wait before a ledger that could not be repaired is tried again; twelve times "
        "as long after five attempts.",
        minimum=0.001, peer_key="lockReleaseOfFailedLedgerGracePeriod", peer_unit=MS,
    )
    ledgers_at_a_time: int = option(
        2, "How many ledgers a process repairs at once.",
        minimum=1, maximum=64,
    )
    idle_io_rate_bytes: int = option(
        400 << 20,
        "Bytes a second that repairs read and write at most beyond background.io_rate_bytes, "
        "while bookies answer as fast as without them; 0: none.",
        minimum=0,
    )
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions(Options):
    """What auto-recovery can be told."""

    SECTION: ClassVar[str] = "recovery"

    # fmt: off
    name: str = option(
        "",
        "A name by which people recognise this process when it repairs ledgers or is a candidate"
        " for auditor. Empty: in a bookie the bookie's id, else host name and process id.",
    )
    # fmt: on
    auditor: AuditorOptions = field(default_factory=AuditorOptions)
    worker: WorkerOptions = field(default_factory=WorkerOptions)
