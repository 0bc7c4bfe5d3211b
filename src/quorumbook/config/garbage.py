"""The options of garbage collection, compaction and background I/O; a part of ``schema``."""

from __future__ import annotations

from quorumbook.config.options import Kind, Option

GC_OPTIONS = (
    Option(
        "gc", "interval_s", Kind.DURATION, 900.0,
        "Time between two passes of garbage collection.",
        peer_key="gcWaitTime", peer_unit=0.001, minimum=0.05,
    ),
    Option(
        "gc", "confirm_interval_s", Kind.DURATION, 300.0,
        "A ledger is deleted when the metadata lacks it in two passes at least this far apart.",
        minimum=0,
    ),
    Option(
        "gc", "max_ledgers_share", Kind.NUMBER, 0.2,
        "Largest share of a bookie's ledgers that one pass deletes by itself; 1000 always.",
        minimum=0, maximum=1,
    ),
    Option(
        "gc", "max_unapproved_share", Kind.NUMBER, 0.5,
        "Deletions of more than this share of a bookie's ledgers at once wait for an operator; "
        "10 never do.",
        minimum=0, maximum=1,
    ),
    Option(
        "gc", "deletions_remembered_s", Kind.DURATION, 604800.0,
        "How long a bookie remembers that a ledger was deleted, and refuses its old writers.",
        minimum=0,
    ),
    Option(
        "gc", "minor_compaction_threshold", Kind.NUMBER, 0.2,
        "Minor compaction moves what lives in entry logs with a smaller live share; 0: none.",
        peer_key="minorCompactionThreshold", minimum=0, maximum=1,
    ),
    Option(
        "gc", "minor_compaction_interval_s", Kind.DURATION, 3600.0,
        "Time between two minor compactions.",
        peer_key="minorCompactionInterval", minimum=0,
    ),
    Option(
        "gc", "major_compaction_threshold", Kind.NUMBER, 0.8,
        "The same for major compaction.",
        peer_key="majorCompactionThreshold", minimum=0, maximum=1,
    ),
    Option(
        "gc", "major_compaction_interval_s", Kind.DURATION, 86400.0,
        "Time between two major compactions.",
        peer_key="majorCompactionInterval", minimum=0,
    ),
    Option(
        "gc", "surplus_interval_s", Kind.DURATION, 86400.0,
        "Time between two searches for copies of closed ledgers that name this bookie no more; "
        "0: none.",
        peer_key="gcOverreplicatedLedgerWaitTime", peer_unit=0.001, minimum=0,
    ),
    Option(
        "gc", "surplus_grace_s", Kind.DURATION, 3600.0,
        "Such a copy is dropped when it is found again so much later, and nothing was added to it.",
        minimum=0,
    ),
    Option(
        "gc", "reserve_size_bytes", Kind.SIZE, 16 * 1024 * 1024,
        "Disk space kept so that compaction can give space back on a full disk.",
        minimum=0,
    ),
)  # fmt: skip

BACKGROUND_OPTIONS = (
    Option(
        "background", "io_rate_bytes", Kind.SIZE, 20 * 1024 * 1024,
        "Bytes a second that compaction, scrubbing and replication may read and write together; "
        "0: no limit.",
        minimum=0,
    ),
)  # fmt: skip
