"""How a stream's writer is opened and works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypedDict

from quorumbook.errors import ConfigError
from quorumbook.options import Options, option


class RecordKeywords(TypedDict, total=False):
    """The keywords of ``StreamWriter.append``, beside the key that chooses a partition."""

    headers: Mapping[str, bytes] | None
    event_time_ms: int | None
    txid: int | None
    producer_seq: int | None
    expected_sequence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions(Options):
    """The options of ``Stream.writer``."""

    SECTION: ClassVar[str] = "writer"

    #: How long another writer may keep the lock; None: as long as it likes.
    wait_for_lock_s: float | None = 0
    #: Who appends, for exactly-once across crashes: a record with a number that this producer
    #: has used is not stored again.
    producer: str | None = None
    # fmt: off
    takeover: Literal["never", "if_expired", "force"] = option(
        "if_expired",
        "What to do about a segment that another writer left in progress. if_expired takes it "
        "over when its lock is free, force pushes a writer out that still has the lock (safe: "
        "its ledger is fenced), never leaves it alone.",
        choices=("never", "if_expired", "force"),
    )
    linger_s: float = option(
        0.0,
        "How long records may wait for others to share an entry; 0: for the end of the loop's "
        "turn.",
        minimum=0,
    )
    batch_bytes: int = option(
        64 * 1024, "An entry with this many bytes takes no further record.",
        minimum=1,
    )
    max_in_flight_entries: int = option(
        1000, "Entries on their way to the bookies.",
        minimum=1,
    )
    max_pending_records: int = option(
        500_000, "Records that are not acknowledged …",
        minimum=1,
    )
    max_pending_bytes: int = option(
        256 * 1024 * 1024, "… and their bytes, each record counting 300 more.",
        minimum=1,
    )
    retention_interval_s: float = option(
        600.0, "How often it looks what of the stream need not be kept; 0: never.",
        minimum=0,
    )
    visibility_delay_s: float = option(
        0.002, "When an idle writer tells readers that its last record is there.",
        minimum=0,
    )
    on_segment_error: Literal["resume", "fail"] = option(
        "resume",
        "What to do when a segment's ledger fails. resume: find out what it holds, and append "
        "the rest to the next segment. fail: end with that error; what was pending may or may "
        "not be stored, and the next writer finds out.",
        choices=("resume", "fail"),
    )
    # fmt: on

    def check_together(self) -> None:
        """Refuse a negative wait."""
        if self.wait_for_lock_s is not None and not self.wait_for_lock_s >= 0:
            raise ConfigError(f"wait_for_lock_s: {self.wait_for_lock_s!r} is not at least 0")
