"""How a stream's writer works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """How a writer works.

    Attributes:
        linger_s: How long records may wait for others to share an entry; 0: for the end of the
            loop's turn.
        batch_bytes: An entry of so many bytes takes no further record.
        max_in_flight_entries: Entries on their way to the bookies.
        max_pending_records: Records that are not acknowledged …
        max_pending_bytes: … and their bytes, each record counting 300 more.
        producer: Who appends, for exactly-once across crashes: a record with a number that this
            producer has used is not stored again.
        retention_interval_s: How often it looks what of the stream need not be kept; 0: never.
        visibility_delay_s: When an idle writer tells readers that its last record is there.
        on_segment_error: What to do when a segment's ledger fails.  ``resume``: find out what it
            holds, and append the rest to the next segment.  ``fail``: end with that error; what
            was pending may or may not be stored, and the next writer finds out.
    """

    linger_s: float = 0.0
    batch_bytes: int = 64 * 1024
    max_in_flight_entries: int = 1000
    max_pending_records: int = 500_000
    max_pending_bytes: int = 256 * 1024 * 1024
    retention_interval_s: float = 600.0
    visibility_delay_s: float = 0.002
    producer: str | None = None
    on_segment_error: Literal["resume", "fail"] = "resume"
