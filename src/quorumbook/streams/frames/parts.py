"""Which streams a table is made of."""

from __future__ import annotations

from typing import NamedTuple

from quorumbook.streams.stream_context import StreamContext


class FramePart(NamedTuple):
    """A stream that is in a table, by itself or as a partition."""

    context: StreamContext
    #: What it is called in rows: a partition as its stream.
    title: str
    #: Which one of a partitioned stream; below 0: it is none.
    partition: int = -1
