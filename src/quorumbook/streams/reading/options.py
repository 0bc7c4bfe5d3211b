"""How a stream's reader works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorumbook.errors import LocalProtocolError
from quorumbook.streams.format.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """How a reader works.

    Attributes:
        end: The position before which to stop; None: no such.
        tail: At the end, wait for more.
        on_truncated: What to do where records that are due were truncated away.
        on_gap: What to do where records are missing: raise DataLossError, or hand out a ``Gap``
            and go on behind it.
        include_control: Hand out control records, too.
        next_sequence_id: The sequence id that the first record must have, where the caller knows
            it.  A position right behind a segment that is gone is then not taken for a hole.
        idle_warn_s: After so long without a record look at metadata and bookies again.
        idle_error_s: After so long in which those could not be asked, raise ReaderIdleError.
        read_ahead_bytes: What completed segments behind the present one may take in memory; the
            present one has the client's option of the same name for itself.
    """

    end: Position | None = None
    tail: bool = True
    on_truncated: Literal["raise", "skip"] = "raise"
    on_gap: Literal["raise", "report"] = "raise"
    include_control: bool = False
    next_sequence_id: int | None = None
    idle_warn_s: float = 120.0
    idle_error_s: float = 600.0
    read_ahead_bytes: int = 16 * 1024 * 1024

    @property
    def has_notices(self) -> bool:
        """Whether a reader hands out something else than records."""
        return self.on_gap == "report" or self.include_control

    def check_plain(self, who: str) -> None:
        """Raise LocalProtocolError for options that only a stream's own reader has."""
        if self.has_notices:
            raise LocalProtocolError(
                f"{who} hands out records only: on_gap and include_control are for Stream.reader"
            )
