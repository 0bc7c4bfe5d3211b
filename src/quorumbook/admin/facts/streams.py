"""Streams as a list shows them: how large, how old, who writes; and which are wanted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import partial

from quorumbook.admin.facts.bounds import Bounds
from quorumbook.client.client import BookKeeper
from quorumbook.env import patience
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    ConfigError,
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import LedgerId
from quorumbook.streams import Namespace, StreamInfo, StreamPolicy
from quorumbook.streams.errors import StreamError, StreamNotFoundError
from quorumbook.streams.stream_context import stream_context

#: Streams whose nodes are read together.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream, as far as the metadata knows it."""

    info: StreamInfo
    #: What it says itself, and does not inherit.
    own_policy: StreamPolicy
    #: Stored bytes of completed segments.
    size_bytes: int
    created_ms: int | None
    #: When its last completed segment was completed.
    completed_ms: int | None
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFilter(Bounds):
    """Which streams are wanted; what is None or empty is not asked."""

    #: What a stream says itself: a name, and its value; None: whatever it is.
    policy: Mapping[str, object] = field(default_factory=dict)

    def takes(self, facts: StreamFacts) -> bool:
        """Tell whether a stream is wanted."""
        if not self.hold(facts.size_bytes, facts.created_ms):
            return False
        own = facts.own_policy.given()
        return all(
            name in own and (value is None or own[name] == value)
            for name, value in self.policy.items()
        )


async def stream_facts(
    namespace: Namespace, prefix: str, left_out: MutableSequence[str]
) -> AsyncGenerator[StreamFacts, None]:
    """Yield what the metadata says of a namespace's streams, sorted by name.

    Args:
        namespace: Theirs.
        prefix: Only names that begin so.
        left_out: Takes a sentence for each stream of which nothing can be said.

    Raises:
        NamespaceNotBoundError: There are no streams at this path.
    """
    batch: list[str] = []

    async def found() -> list[StreamFacts]:
        outcomes = await gather_bounded(partial(_look, namespace), batch)
        for name, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, QuorumbookError):
                left_out.append(f"stream {name} is left out: {outcome}")
        batch.clear()
        return [each for each in outcomes if isinstance(each, StreamFacts)]

    async for name in namespace.streams(prefix):
        batch.append(name)
        if len(batch) == _AT_ONCE:
            for facts in await found():
                yield facts
    for facts in await found():
        yield facts


async def stream_rows(
    namespace: Namespace, names: Sequence[str], within_s: float | None = None
) -> list[dict[str, object]]:
    """Return what a list shows of streams: those that were read in time, from the first on.

    Args:
        namespace: Theirs.
        names: Of the streams; one that is deleted meanwhile is left out.
        within_s: So long it reads; None: until it has all.
    """
    rows: list[dict[str, object]] = []
    with contextlib.suppress(TimeoutError):
        async with patience.timeout(within_s):
            for first in range(0, len(names), _AT_ONCE):
                some = names[first : first + _AT_ONCE]
                found = await gather_bounded(partial(_look, namespace), some)
                for name, each in zip(some, found, strict=True):
                    if isinstance(each, StreamFacts):
                        rows.append(_row(each))
                    elif each is not None:
                        rows.append({"name": name, "damaged": [str(each)]})
    return rows


async def _look(namespace: Namespace, name: str) -> StreamFacts | QuorumbookError | None:
    """Return what the metadata says of a stream, or why it says nothing; None: it is deleted."""
    try:
        return await _facts(namespace, name)
    except StreamNotFoundError:
        return None
    except (StreamError, MetadataFormatError, ConfigError) as error:
        return error


def _row(facts: StreamFacts) -> dict[str, object]:
    info = facts.info
    return {
        "name": info.name,
        "segments": len(info.segments),
        "records": info.record_count,
        "bytes": facts.size_bytes,
        "completed_at_ms": facts.completed_ms,
        "sealed": info.is_sealed,
        "writer": info.writer or None,
        "damaged": list(facts.damaged),
    }


async def _facts(namespace: Namespace, name: str) -> StreamFacts:
    stream = namespace.stream(name)
    nodes = stream_context(stream).nodes
    damaged: list[StreamError] = []
    info = await stream.info(damaged.append)
    # Its own node may be older: it may hold nested streams.
    node = await nodes.store.exists(nodes.paths.segments)
    completed = [each.metadata for each in info.segments if not each.metadata.is_in_progress]
    sizes = await gather_bounded(
        lambda ledger_id: _size(namespace.client, ledger_id),
        [each.ledger_id for each in completed],
    )
    return StreamFacts(
        info=info,
        own_policy=await stream.policy(),
        size_bytes=sum(sizes),
        created_ms=None if node is None else node.ctime_ms,
        completed_ms=max((each.completed_at_ms for each in completed), default=0) or None,
        damaged=tuple(map(str, damaged)),
    )


async def _size(client: BookKeeper, ledger_id: LedgerId) -> int:
    try:
        return (await client.ledger_metadata(ledger_id)).length
    except NoSuchLedgerInMetadataError:
        return 0  # in a file of the tier, or lost: the segment's readers say which
