"""A driver's commit: all sealed ledgers of a batch appear in their streams in one step, or none.

The step sets the head by version, deletes the attempts whose ledgers it takes, and has every
stream go on where it ended when this driver looked.  Whatever changed meanwhile makes it fail as a
whole; then the head says whether the batch is there, and a stream that went on is looked at again.
The streams' locks, taken in the order of names, only keep writers from getting in each other's way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from quorumbook.env import logger
from quorumbook.errors import (
    ConfigError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import change_once
from quorumbook.metadata.store import Delete, MetadataStore, Operation, Set
from quorumbook.streams.errors import (
    AccessDeniedError,
    TransactionLostError,
    TransactionTooLargeError,
    WriterBusyError,
)
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.transactions.attempt import AttemptResult
from quorumbook.streams.transactions.grafting import (
    Draft,
    as_copied,
    check_floor,
    graft,
    in_order,
    segments_of,
    size_bytes,
)
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.state import (
    AttemptName,
    Head,
    Identity,
    check_not_overtaken,
    is_committed,
)
from quorumbook.streams.writing.takeover import take_over

_log = logger("streams.transactions")
#: Others may append to the same streams at the same time; nobody is that unlucky so often.
_ATTEMPTS = 32
#: What a ZooKeeper takes in one request, less the rest of it.
_MAX_REQUEST_BYTES = 1_000_000
#: Every reader and writer that begins lists the segments of a stream.
MAX_SEGMENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """How a driver commits.

    Attributes:
        may_reset: Take an application over that another query has worked for.
        lock_wait_s: How long other writers may keep a stream's lock.
        takes_over: Complete a segment that another writer left in progress, by fencing that
            writer out, also one that keeps the lock for longer; otherwise it is an error.
        is_final: No batch follows: the application's nodes go afterwards.
        replaces: Truncate what the streams had before, in the same step.
    """

    may_reset: bool = False
    lock_wait_s: float = 60.0
    takes_over: bool = False
    is_final: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a commit did."""

    head: Head
    #: Of each stream, what it got.
    segments: dict[str, list[SegmentMetadata]] = field(default_factory=dict)
    #: Whether it was there before.
    was_there: bool = False

    @property
    def record_count(self) -> int:
        """How many records the streams got."""
        return sum(segment.record_count for each in self.segments.values() for segment in each)


class Commit:
    """One batch's commit."""

    def __init__(
        self, nodes: TransactionNodes, who: Identity, batch: int, options: CommitOptions
    ) -> None:
        """Take whose batch it is."""
        self._nodes = nodes
        self._who = who
        self._batch = batch
        self._options = options
        self._token = f"{nodes.store.env.random.getrandbits(64):016x}"

    async def already(self, results: Sequence[AttemptResult]) -> Committed | None:
        """Return what there is if the batch is committed; None: it is to be.

        Raises:
            TransactionLostError: another run committed it while this one wrote.
            CheckpointChangedError: another query works for the application.
        """
        head, _ = await self._nodes.read_head()
        options = self._options
        if not is_committed(head, self._who, self._batch, may_reset=options.may_reset):
            if any(result.is_skipped for result in results):
                raise TransactionLostError(
                    f"parts of batch {self._batch} found it committed, and it is not: the head of "
                    f"application {self._nodes.application} was put back"
                )
            return None
        if head.run != self._who.run and any(result.name for result in results):
            check_not_overtaken(head, self._who, self._batch, "", may_reset=options.may_reset)
        return Committed(head=head, was_there=True)

    async def run(
        self,
        streams: Sequence[tuple[StreamContext, Sequence[Draft]]],
        winners: Sequence[AttemptName],
        manifest: int | None,
    ) -> Committed:
        """Commit.

        Args:
            streams: What each stream gets, in order of partitions.
            winners: The attempts whose ledgers these are.
            manifest: The ledger that says which ledgers of rows there are; None: as before.

        Raises:
            TransactionLostError: an attempt was cleaned up, or another run was first.
            TransactionTooLargeError: more than the metadata store changes in one step.
            WriterBusyError: somebody else writes one of the streams.
        """
        self._check_one_store([context for context, _ in streams])
        count = sum(len(drafts) + 2 for _, drafts in streams) + len(winners) + 1
        self._check_count(count)
        async with AsyncExitStack() as locks:
            for context, _ in sorted(streams, key=lambda each: each[0].name):
                if (await context.access()).denies_acquire:
                    raise AccessDeniedError(f"nobody may write stream {context.name}")
                lock = context.lock()
                try:
                    await lock.acquire(wait_s=self._options.lock_wait_s)
                except WriterBusyError as error:
                    if not self._options.takes_over:
                        what = f"{error}, with takeover=true"
                        raise WriterBusyError(what, owner=error.owner) from error
                    await lock.acquire(by_force=True)
                locks.push_async_callback(lock.release)
            for _ in range(_ATTEMPTS):
                done = await self._try(streams, winners, manifest)
                if done is not None:
                    return done
        raise WriterBusyError(
            f"the streams of batch {self._batch} change faster than it can be committed"
        )

    async def _try(
        self,
        streams: Sequence[tuple[StreamContext, Sequence[Draft]]],
        winners: Sequence[AttemptName],
        manifest: int | None,
    ) -> Committed | None:
        """Commit; None: a stream has changed, look again."""
        head, revision = await self._nodes.read_head()
        if self._is_overtaken(head):
            return Committed(head=head, was_there=True)
        segments: dict[str, list[SegmentMetadata]] = {}
        operations: list[Operation] = []
        for context, drafts in streams:
            made, changes = await self._graft(context, drafts)
            segments[context.name] = made
            operations += changes
        new = replace(
            head,
            query=self._who.query,
            run=self._who.run,
            batch=self._batch,
            epoch=head.epoch + 1,
            token=self._token,
            manifest=head.manifest if manifest is None else manifest,
            is_final=self._options.is_final,
        )
        path = self._nodes.attempts_path
        operations = [
            Set(self._nodes.path, new.encode(), *revision),
            *(Delete(f"{path}/{name}") for name in winners),
            *operations,
        ]
        self._check_size(operations)
        if await self._change(operations, winners):
            return Committed(head=new, segments=segments)
        return None

    async def _change(
        self, operations: Sequence[Operation], winners: Sequence[AttemptName]
    ) -> bool:
        """Make the step; False: something has changed, look again."""

        async def was_done() -> bool:
            return (await self._nodes.read_head())[0].token == self._token

        what = f"committing batch {self._batch} of {self._nodes.application}"
        try:
            await change_once(self._nodes.store, operations, was_done, what)
        except (MetadataVersionConflict, NodeExistsError, NoSuchNodeError) as error:
            head, _ = await self._nodes.read_head()
            if self._is_overtaken(head):
                return True
            left = set(await self._nodes.attempts())
            for name in winners:
                if name not in left:
                    raise self._nodes.lost(name) from error
            _log.info("batch %d: %s; looking again", self._batch, error)
            return False
        return True

    def _is_overtaken(self, head: Head) -> bool:
        return check_not_overtaken(
            head, self._who, self._batch, self._token, may_reset=self._options.may_reset
        )

    async def _graft(
        self, context: StreamContext, drafts: Sequence[Draft]
    ) -> tuple[list[SegmentMetadata], list[Operation]]:
        if not self._options.takes_over:
            for segment in await context.nodes.segments(for_writer=True):
                if segment.is_in_progress:
                    raise WriterBusyError(
                        f"segment {segment.number} of stream {context.name} is in progress: "
                        "another writer is at work, or crashed; set takeover=true to fence it "
                        "out and complete the segment"
                    )
        await self._check_segments(context, len(drafts))
        tail = await take_over(context)
        ordered = in_order(drafts)
        if (await context.policy()).txid != "free":
            check_floor(context.name, ordered, tail.last_txid)
        tail = as_copied(context.name, ordered, tail)
        segments = segments_of(ordered, tail, context.store.env.clock.wall_ms())
        operations = graft(context.nodes.paths, segments, tail)
        if self._options.replaces:
            operations += await context.nodes.truncations()
        return segments, operations

    async def _check_segments(self, context: StreamContext, more: int) -> None:
        count = await context.nodes.segment_count() + more
        if count > MAX_SEGMENTS:
            raise TransactionTooLargeError(
                f"stream {context.name} would have {count} segments, and {MAX_SEGMENTS} are as "
                "many as readers list at a bearable cost: merge small ones with `quorumbook spark "
                "compact-segments`, let go of old ones with `quorumbook stream truncate` and "
                "`quorumbook stream retention`, and write larger batches with fewer partitions"
            )

    # Checks --------------------------------------------------------------------------------

    def _check_one_store(self, contexts: Sequence[StreamContext]) -> None:
        check_one_store(self._nodes.store, contexts)

    def _check_count(self, count: int) -> None:
        limit = self._nodes.store.multi_limit
        if count > limit:
            raise TransactionTooLargeError(
                f"batch {self._batch} takes {count} changes, and the metadata store makes {limit} "
                "in one step: write it with fewer partitions (coalesce), to fewer streams, or with "
                "target=ledger"
            )

    def _check_size(self, operations: Sequence[Operation]) -> None:
        self._check_count(len(operations))
        size = size_bytes(operations)
        if size > _MAX_REQUEST_BYTES:
            raise TransactionTooLargeError(
                f"batch {self._batch} takes a request of {size} bytes to the metadata store, which "
                f"takes {_MAX_REQUEST_BYTES}: write it with fewer partitions (coalesce), or with "
                "target=ledger"
            )


def check_one_store(store: MetadataStore, contexts: Sequence[StreamContext]) -> None:
    """Raise ConfigError if not all streams are in the store that has the application."""
    others = {context.store.uri for context in contexts if context.store is not store}
    if others - {store.uri}:
        raise ConfigError(
            f"one step cannot change several metadata stores: the application is in {store.uri}, "
            f"streams are in {', '.join(sorted(others))}"
        )


def encode_manifest(
    application: str, batch: int, previous: int | None, drafts: Sequence[Draft]
) -> bytes:
    """Return the one entry of a manifest: which ledgers of rows a batch has."""
    ledgers = [
        {"ledger": d.ledger_id, "records": d.record_count, "bytes": d.size_bytes} for d in drafts
    ]
    manifest = {
        "version": 1,
        "application": application,
        "batch": batch,
        "previous": previous,
        "ledgers": ledgers,
    }
    return json.dumps(manifest, separators=(",", ":")).encode()
