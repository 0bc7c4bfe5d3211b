"""The options of scrub; a part of ``schema``."""

from __future__ import annotations

from quorumbook.config.options import Kind, Option

SCRUB_OPTIONS = (
    Option(
        "scrub", "interval_s", Kind.DURATION, 86400.0,
        "Time from the end of one scrub, which reads all entries here, to the next; 0: none.",
        peer_key="localScrubInterval", minimum=0,
    ),
    Option(
        "scrub", "rate_bytes", Kind.SIZE, 8 * 1024 * 1024,
        "Bytes a second that scrub reads at most, within background.io_rate_bytes; 0: no limit.",
        minimum=0,
    ),
    Option(
        "scrub", "heal_interval_s", Kind.DURATION, 60.0,
        "Time between two looks at ledgers that are damaged here or in limbo.",
        minimum=0.01,
    ),
)  # fmt: skip
