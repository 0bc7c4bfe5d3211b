"""Which streams a table is made of, and how it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

from quorumbook.streams.reading.seek import Start
from quorumbook.streams.schemas.decoder import Decoder
from quorumbook.streams.stream_context import StreamContext

if TYPE_CHECKING:
    from quorumbook.streams.frames.decoding import OnBad


class FramePart(NamedTuple):
    """A stream that is in a table, by itself or as a partition."""

    context: StreamContext
    #: What it is called in rows: a partition as its stream.
    title: str
    #: Which one of a partitioned stream; below 0: it is none.
    partition: int = -1


class TableKeywords(TypedDict, total=False):
    """Which records a table has, and what it shows of them; see ``Tabular.arrow_batches``."""

    start: Start
    end: Start
    decode: Decoder | None
    on_bad: OnBad
