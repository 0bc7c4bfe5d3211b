"""How readers work: those of a stream, of partitions, and of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, TypedDict

from quorumbook.errors import LocalProtocolError
from quorumbook.options import Options, option
from quorumbook.streams.format.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions(Options):
    """What every reader can be told, whatever it reads."""

    SECTION: ClassVar[str] = "reader"

    # fmt: off
    on_truncated: Literal["raise", "skip"] = option(
        "raise", "What to do where records that are due were truncated away.",
        choices=("raise", "skip"),
    )
    idle_warn_s: float = option(
        120.0, "After so long without a record look at metadata and bookies again.",
        minimum=0.001,
    )
    idle_error_s: float = option(
        600.0, "After so long in which those could not be asked, raise ReaderIdleError.",
        minimum=0.001,
    )
    read_ahead_bytes: int = option(
        16 * 1024 * 1024,
        "What completed segments behind the present one may take in memory; the present one "
        "has the client's option of the same name for itself.",
        minimum=0,
    )
    # fmt: on

    def of_stream(self) -> ReaderOptions:
        """Return the same for a reader of one stream."""
        own = {each.name: getattr(self, each.name) for each in fields(ReadingOptions)}
        return ReaderOptions(**own)


class ReadingKeywords(TypedDict, total=False):
    """The keywords of ``Stream.reader`` that no overload of it depends on."""

    on_truncated: Literal["raise", "skip"]
    idle_warn_s: float
    idle_error_s: float
    read_ahead_bytes: int
    next_sequence_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions(ReadingOptions):
    """How the reader of one stream works.

    Attributes:
        end: The position before which to stop; None: no such.
        tail: At the end, wait for more.
        include_control: Hand out control records, too.
        next_sequence_id: The sequence id that the first record must have, where the caller knows
            it.  A position right behind a segment that is gone is then not taken for a hole.
    """

    end: Position | None = None
    tail: bool = True
    on_gap: Literal["raise", "report"] = option(
        "raise",
        "What to do where records are missing: raise DataLossError, or hand out a Gap and go on "
        "behind it.",
        choices=("raise", "report"),
    )
    include_control: bool = False
    next_sequence_id: int | None = None

    @property
    def has_notices(self) -> bool:
        """Whether a reader hands out something else than records."""
        return self.on_gap == "report" or self.include_control


def check_plain(who: str, keywords: Mapping[str, object]) -> None:
    """Raise LocalProtocolError for keywords that only a stream's own reader has."""
    if keywords.get("on_gap", "raise") != "raise" or keywords.get("include_control"):
        raise LocalProtocolError(
            f"{who} hands out records only: on_gap and include_control are for Stream.reader"
        )
