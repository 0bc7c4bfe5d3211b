"""A driver's commit: all sealed ledgers of a batch appear in their streams in one step, or none.

The step sets the head by version, deletes the attempts whose ledgers it takes, and has every
stream go on where it ended when this driver looked.  Whatever changed meanwhile makes it fail as a
whole; then the head says whether the batch is there, and a stream that went on is looked at again.
The streams' locks keep writers from getting in each other's way, and what has to be written before
the step (``gathering``) from being in vain; they are taken together where nobody has one, else in
the order of names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quorumbook.env import logger
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    ConfigError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.nodes import change_once
from quorumbook.metadata.store import Delete, MetadataStore, Operation, Set
from quorumbook.streams.errors import (
    AccessDeniedError,
    TransactionLostError,
    TransactionTooLargeError,
    WriterBusyError,
)
from quorumbook.streams.format.names import in_progress_names
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.lock import StreamLock, acquire_together, release_together
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.metadata.stream_nodes import StreamState
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.transactions.attempt import AttemptResult
from quorumbook.streams.transactions.gathering import Gathering, Part
from quorumbook.streams.transactions.grafting import (
    Draft,
    as_copied,
    check_floor,
    graft,
    segments_of,
    size_bytes,
)
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.state import (
    AttemptName,
    AttemptRecord,
    Head,
    Identity,
    check_not_overtaken,
    check_plan,
    is_committed,
)
from quorumbook.streams.writing.takeover import StreamTail, fence_together, take_over

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
        self,
        nodes: TransactionNodes,
        who: Identity,
        batch: int,
        options: CommitOptions,
        plan: str,
    ) -> None:
        """Take whose batch it is, and a digest of what it is made of."""
        self._nodes = nodes
        self._who = who
        self._batch = batch
        self._options = options
        self._plan = plan
        self._policies: dict[str, StreamPolicy] = {}
        self._token = f"{nodes.store.env.random.getrandbits(64):016x}"

    async def already(self, results: Sequence[AttemptResult]) -> Committed | None:
        """Return what there is if the batch is committed; None: it is to be.

        Raises:
            TransactionLostError: another run committed it while this one wrote.
            CheckpointChangedError: another query works for the application, or the number of
                the batch means another one by now.
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
        check_plan(head, self._batch, self._plan)
        if head.run != self._who.run and any(result.name or result.handed for result in results):
            check_not_overtaken(head, self._who, self._batch, "", may_reset=options.may_reset)
        return Committed(head=head, was_there=True)

    async def run(
        self,
        streams: Sequence[tuple[StreamContext, Sequence[Part]]],
        winners: Mapping[AttemptName, frozenset[LedgerId]],
        manifest: int | None,
        gathering: Gathering,
    ) -> Committed:
        """Commit.

        Args:
            streams: What each stream gets, in order of partitions.
            winners: The attempts that have a part in it, with their ledgers for streams.
            manifest: The ledger that says which ledgers of rows there are; None: as before.
            gathering: What writes before the step.

        Raises:
            TransactionLostError: an attempt was cleaned up, or another run was first.
            TransactionTooLargeError: more than the metadata store changes in one step.
            WriterBusyError: somebody else writes one of the streams.
        """
        self._check_one_store([context for context, _ in streams])
        ledgers = sum(isinstance(part, Draft) for _, parts in streams for part in parts)
        count = 2 * len(streams) + ledgers + len(winners) + 2
        copies_small = count > self._nodes.store.multi_limit
        async with self._locked([context for context, _ in streams]):
            left = list(streams)
            for _ in range(_ATTEMPTS):
                done = await self._try(left, winners, manifest, gathering, copies_small)
                if done is not None:
                    return done
        raise WriterBusyError(
            f"the streams of batch {self._batch} change faster than it can be committed"
        )

    @contextlib.asynccontextmanager
    async def _locked(self, contexts: Sequence[StreamContext]) -> AsyncGenerator[None, None]:
        """Hold the locks of streams."""

        async def check(context: StreamContext) -> None:
            self._policies[context.name], access = await context.policy_and_access()
            if access.denies_acquire:
                raise AccessDeniedError(f"nobody may write stream {context.name}")

        await gather_bounded(check, contexts)
        locks = {context.name: context.lock() for context in contexts}
        try:
            if not await acquire_together(list(locks.values())):
                # By name, so that two commits never have what the other one waits for.
                for name, lock in sorted(locks.items()):
                    await self._take(name, lock)
            yield
        finally:
            await release_together(list(locks.values()))

    async def _take(self, name: str, lock: StreamLock) -> None:
        try:
            await lock.acquire(wait_s=self._options.lock_wait_s)
        except WriterBusyError as error:
            if not self._options.takes_over:
                raise WriterBusyError(
                    f"{error.owner or 'somebody'} writes stream {name}; wait for it, or "
                    "take the stream over with takeover=true",
                    owner=error.owner,
                ) from error
            await lock.acquire(by_force=True)

    def _settled(
        self, winners: Mapping[AttemptName, frozenset[LedgerId]], taken: set[LedgerId]
    ) -> list[Operation]:
        """Return what becomes of attempts: those whose ledgers were all copied are cleaned up."""
        found: list[Operation] = []
        for name, ledgers in winners.items():
            path = f"{self._nodes.attempts_path}/{name}"
            left = ledgers - taken
            if not left:
                found.append(Delete(path))
            elif left != ledgers:
                rest = AttemptRecord(
                    query=self._who.query, run=self._who.run, ledgers=tuple(sorted(left))
                )
                found.append(Set(path, rest.encode()))
        return found

    async def _try(
        self,
        streams: list[tuple[StreamContext, Sequence[Part]]],
        winners: Mapping[AttemptName, frozenset[LedgerId]],
        manifest: int | None,
        gathering: Gathering,
        copies_small: bool,
    ) -> Committed | None:
        """Commit; None: a stream has changed, look again, with what was gathered until then."""
        head, revision = await self._nodes.read_head()
        if self._is_overtaken(head):
            return Committed(head=head, was_there=True)

        fenced = await self._begun([context for context, _ in streams])

        async def prepare(index: int) -> tuple[list[SegmentMetadata], list[Operation]]:
            context, parts = streams[index]
            tail = await take_over(context, fenced[index])
            is_free = self._policies[context.name].txid == "free"
            floor = -1 if is_free else tail.last_txid
            drafts = await gathering.drafts(context, parts, floor=floor, copies_small=copies_small)
            streams[index] = context, drafts
            taken.update(draft.ledger_id for draft in drafts)
            check_floor(context.name, drafts, floor)
            return await self._graft(context, drafts, tail)

        taken: set[LedgerId] = set()
        prepared = await gather_bounded(prepare, range(len(streams)))
        segments = {
            context.name: made for (context, _), (made, _) in zip(streams, prepared, strict=True)
        }
        operations = [change for _, changes in prepared for change in changes]
        own = gathering.attempt
        if own.ledgers:
            winners = {**winners, own.name: frozenset(own.ledgers)}
        settled = self._settled(winners, taken)
        new = replace(
            head,
            query=self._who.query,
            run=self._who.run,
            batch=self._batch,
            epoch=head.epoch + 1,
            token=self._token,
            manifest=head.manifest if manifest is None else manifest,
            is_final=self._options.is_final,
            plan=self._plan,
        )
        operations = [Set(self._nodes.path, new.encode(), *revision), *settled, *operations]
        self._check_size(operations)
        if await self._change(operations, settled):
            return Committed(head=new, segments=segments)
        return None

    async def _change(self, operations: Sequence[Operation], settled: Sequence[Operation]) -> bool:
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
            for operation in settled:
                name = AttemptName.parse(operation.path.rpartition("/")[2])
                if name is not None and name not in left:
                    raise self._nodes.lost(name) from error
            _log.info("batch %d: %s; looking again", self._batch, error)
            return False
        return True

    def _is_overtaken(self, head: Head) -> bool:
        return check_not_overtaken(
            head, self._who, self._batch, self._token, may_reset=self._options.may_reset
        )

    async def _begun(self, contexts: Sequence[StreamContext]) -> Sequence[StreamState | None]:
        """Begin to take streams over, unless a writer's segment in one of them must be left."""

        async def look(context: StreamContext) -> StreamState:
            nodes = context.nodes
            if self._options.takes_over:
                return await nodes.read_state()
            names, state = await asyncio.gather(nodes.names(), nodes.read_state())
            for name in in_progress_names(names):
                raise WriterBusyError(
                    f"segment {name.lstrip('0')} of stream {context.name} is in progress: another "
                    "writer is at work, or crashed; set takeover=true to fence it out and "
                    "complete the segment"
                )
            return state

        if not contexts:
            return []
        return await fence_together(contexts, await gather_bounded(look, contexts))

    async def _graft(
        self, context: StreamContext, drafts: Sequence[Draft], tail: StreamTail
    ) -> tuple[list[SegmentMetadata], list[Operation]]:
        _check_room(context.name, tail.segment_count + len(drafts))
        tail = as_copied(context.name, drafts, tail)
        segments = segments_of(drafts, tail, context.store.env.clock.wall_ms())
        operations = graft(context.nodes.paths, segments, tail)
        if self._options.replaces:
            operations += await context.nodes.truncations()
        return segments, operations

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


async def check_segments(context: StreamContext, more: int) -> None:
    """Raise TransactionTooLargeError if a stream has no room for so many segments."""
    _check_room(context.name, await context.nodes.segment_count() + more)


def _check_room(stream: str, count: int) -> None:
    if count > MAX_SEGMENTS:
        raise TransactionTooLargeError(
            f"stream {stream} would have {count} segments, and {MAX_SEGMENTS} are as "
            "many as readers list at a bearable cost: merge small ones with `quorumbook spark "
            "compact-segments`, let go of old ones with `quorumbook stream truncate` and "
            "`quorumbook stream retention`, and write larger batches with fewer partitions"
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
