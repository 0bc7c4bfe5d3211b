"""The options of auto-recovery; a part of ``schema``."""

from __future__ import annotations

from quorumbook.config.options import Kind, Option

RECOVERY_OPTIONS = (
    Option(
        "recovery", "in_bookie", Kind.SWITCH, False,
        "Whether `bookie run` runs auto-recovery in its own process as well.",
        peer_key="autoRecoveryDaemonEnabled",
    ),
    Option(
        "recovery", "name", Kind.TEXT, "",
        "Who stands for auditor and works on ledgers, for people to read; empty is the bookie's id"
        " in a bookie, else the host's name and the process.",
    ),
    Option(
        "recovery", "lost_bookie_delay_s", Kind.DURATION, 0.0,
        "How long a bookie may be away before its ledgers are copied, in whole seconds; proposed to"
        " a cluster that has none yet. `recovery delay` changes it.",
        peer_key="lostBookieRecoveryDelay", minimum=0, maximum=2**31 - 1,
    ),
    Option(
        "recovery", "bookie_check_interval_s", Kind.DURATION, 86400.0,
        "Longest time between two searches of the metadata for lost bookies; 0: only on a reason.",
        peer_key="auditorPeriodicBookieCheckInterval", minimum=0,
    ),
    Option(
        "recovery", "replica_check_interval_s", Kind.DURATION, 86400.0,
        "Time between two counts of the copies of all entries, by the lists that bookies give of "
        "what they hold; 0: only on demand.",
        peer_key="auditorReplicasCheckInterval", minimum=0,
    ),
    Option(
        "recovery", "ledger_check_interval_s", Kind.DURATION, 604800.0,
        "Time between two readings of all copies of all entries, with their digests; 0: only on "
        "demand.",
        peer_key="auditorPeriodicCheckInterval", minimum=0,
    ),
    Option(
        "recovery", "placement_check_interval_s", Kind.DURATION, 0.0,
        "Time between two judgements of all ensembles by the placement policy; 0: only on demand.",
        peer_key="auditorPeriodicPlacementPolicyCheckInterval", minimum=0,
    ),
    Option(
        "recovery", "repair_placement", Kind.SWITCH, False,
        "Put ledgers that break the placement policy into the queue when they are found.",
        peer_key="repairedPlacementPolicyNotAdheringBookieEnabled",
    ),
    Option(
        "recovery", "stream_retention_interval_s", Kind.DURATION, 600.0,
        "Time between two looks of the auditor for what streams need not keep; 0: never.",
        minimum=0,
    ),
    Option(
        "recovery", "stream_namespaces", Kind.LIST, ("/streams",),
        "The namespaces of those streams, as paths in the metadata tree.",
    ),
    Option(
        "recovery", "open_ledger_grace_s", Kind.DURATION, 30.0,
        "How long a writer has to replace a lost bookie, before its ledger is closed and copied.",
        peer_key="openLedgerRereplicationGracePeriod", peer_unit=0.001, minimum=0,
    ),
    Option(
        "recovery", "max_retry_s", Kind.DURATION, 300.0,
        "Longest wait before a ledger that could not be repaired is tried again; twelve times as"
        " long after five attempts.",
        peer_key="lockReleaseOfFailedLedgerGracePeriod", peer_unit=0.001, minimum=0.001,
    ),
    Option(
        "recovery", "ledgers_at_a_time", Kind.INTEGER, 2,
        "How many ledgers a process repairs at once.",
        minimum=1, maximum=64,
    ),
)  # fmt: skip
