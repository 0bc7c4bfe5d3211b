"""The options of garbage collection and compaction; a part of ``schema``."""

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
        "gc", "ledgers_share_max", Kind.NUMBER, 0.2,
        "Largest share of a bookie's ledgers that one pass deletes by itself; 1000 always.",
        minimum=0, maximum=1,
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
        "gc", "compaction_rate_bytes", Kind.SIZE, 1_000_000,
        "Bytes a second that compaction moves; 0: as fast as it can.",
        peer_key="compactionRateByBytes", minimum=0,
    ),
    Option(
        "gc", "reserve_size_bytes", Kind.SIZE, 16 * 1024 * 1024,
        "Disk space kept so that compaction can give space back on a full disk.",
        minimum=0,
    ),
)  # fmt: skip
