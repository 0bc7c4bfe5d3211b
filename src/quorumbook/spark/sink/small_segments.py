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
#: Readers that are so far behind have a cursor, which holds merging up.
_OLDER_THAN_S = 3600.0
_KEEP_S = 3600.0

#: Those of this process by path, with their clients: they know what does not change of segments.
_known: dict[str, tuple[BookKeeper, Compaction]] = {}


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
    if await context.nodes.segment_count() <= MANY_SEGMENTS:
        return
    path = context.nodes.paths.stream
    client, work = _known.get(path, (None, None))
    if work is None or client is not place.client:
        work = Compaction(place, context, keep_s=_KEEP_S)
        _known[path] = place.client, work
    rules = await work.rules(
        target_bytes=_TARGET_BYTES, older_than_s=_OLDER_THAN_S, min_segments=_LEAST
    )
    steps = await work.run(rules, max_steps=1)
    count = await context.nodes.segment_count()
    if count > MANY_SEGMENTS:
        _log.warning(
            "stream %s has %d segments after %d were merged: write larger batches with fewer "
            "partitions, or set a retention",
            name, count, sum(step.segments for step in steps),
        )  # fmt: skip
