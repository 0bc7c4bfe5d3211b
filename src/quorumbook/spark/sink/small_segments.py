"""Keeps streams from having thousands of small segments, of which each batch adds some.

Where a stream has very many, the driver merges those that are no news to anybody any more, right
behind its commit.  The batch is there whatever becomes of that.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumbook.client.client import BookKeeper
from quorumbook.env import logger
from quorumbook.errors import QuorumbookError
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Place

_log = logger("spark")
#: Every reader and writer that begins lists the segments of a stream.
MANY_SEGMENTS = 1000
#: Fewer are left until there are more of them; so many small ones always fit into one.
_LEAST = 8
#: What a commit copies at most.
_TARGET_BYTES = 128 * 1024 * 1024
#: Readers that are so far behind have a cursor, which holds merging up while it moves.
_OLDER_THAN_S = 3600.0
_KEEP_S = 3600.0
_IDLE_CURSOR_S = 3600.0
#: Where nothing could be merged, so long nobody looks again: that reads the nodes of all segments.
PAUSE_S = 60.0
#: From so many on a query is about to stop for good, so their age and cursors that know the number
#: of their record hold nothing up: readers go on by it, too.
TOO_MANY_SEGMENTS = 5000


class _Merging:
    """What this process knows of one stream's merging: what does not change of segments."""

    def __init__(self, client: BookKeeper, work: Compaction) -> None:
        self.client = client
        self.work = work
        self.in_vain_ns: int | None = None


#: By the streams' paths.
_known: dict[str, _Merging] = {}


async def merge_where_many(place: Place, streams: Iterable[str]) -> None:
    """Merge small segments of streams that have very many; what goes wrong is only logged.

    Args:
        place: Where their namespace is.
        streams: Their names.
    """
    for name in streams:
        try:
            await _merge(place, name)
        except QuorumbookError as error:
            _log.warning("stream %s: its small segments are not merged: %s", name, error)


async def _merge(place: Place, name: str) -> None:
    assert place.namespace is not None
    context = stream_context(place.namespace.stream(name))
    before = await context.nodes.segment_count()
    if before <= MANY_SEGMENTS:
        return
    is_urgent = before > TOO_MANY_SEGMENTS
    path = context.nodes.paths.stream
    known = _known.get(path)
    if known is None or known.client is not place.client:
        work = Compaction(place, context, keep_s=_KEEP_S)
        known = _known[path] = _Merging(place.client, work)
    now_ns = place.store.env.clock.now_ns()
    if known.in_vain_ns is not None and now_ns - known.in_vain_ns < PAUSE_S * 1e9:
        return
    rules = await known.work.rules(
        target_bytes=_TARGET_BYTES,
        older_than_s=0 if is_urgent else _OLDER_THAN_S,
        min_segments=_LEAST,
        idle_cursor_s=0 if is_urgent else _IDLE_CURSOR_S,
    )
    steps = await known.work.run(rules, max_steps=1)
    known.in_vain_ns = None if steps else now_ns
    count = await context.nodes.segment_count()
    if count > MANY_SEGMENTS:
        _log.warning(
            "stream %s has %d segments after %d were merged: write larger batches with fewer "
            "partitions, or set a retention",
            name, count, sum(step.segments for step in steps),
        )  # fmt: skip
