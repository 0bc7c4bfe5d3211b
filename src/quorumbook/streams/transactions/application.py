"""An application that appends in transactions: the door for processes, drivers and housekeeping."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.env import logger
from quorumbook.errors import MetadataVersionConflict, NodeNotEmptyError, QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.metadata.store import MetadataStore, Node
from quorumbook.streams.errors import TransactionLostError, WriterBusyError
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.stream_context import ManyContexts, namespace_store
from quorumbook.streams.transactions.appended_rows import AppendedRows
from quorumbook.streams.transactions.attempt import Attempt, AttemptResult, DraftOptions
from quorumbook.streams.transactions.commit import (
    Commit,
    CommitOptions,
    Committed,
    encode_manifest,
)
from quorumbook.streams.transactions.gathering import Gathering, Part
from quorumbook.streams.transactions.grafting import Draft
from quorumbook.streams.transactions.nodes import (
    TransactionNodes,
    list_applications,
    usual_root,
)
from quorumbook.streams.transactions.orphans import OrphanedDraft, Orphans
from quorumbook.streams.transactions.state import (
    DRIVER_PARTITION,
    AttemptName,
    Head,
    Identity,
    is_committed,
)

_log = logger("streams.transactions")
DEFAULT_ATTEMPT_TTL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where an application is, and with what it works."""

    client: BookKeeper
    #: Where its streams are; None: it writes ledgers only.
    namespace: Namespace | None = None
    #: Empty: the usual one.
    root: str = ""
    attempt_ttl_s: float = DEFAULT_ATTEMPT_TTL_S

    @property
    def store(self) -> MetadataStore:
        """The store that has the application's nodes: that of the streams."""
        if self.namespace is None:
            return client_store(self.client)
        return namespace_store(self.namespace)

    @property
    def path(self) -> str:
        """The node that has the applications."""
        namespace_path = None if self.namespace is None else self.namespace.path
        return self.root or usual_root(self.store, namespace_path)


class CommittedLedger(NamedTuple):
    """A ledger of rows."""

    batch: int
    ledger_id: LedgerId
    record_count: int
    size_bytes: int


class AppendedPart:
    """One attempt at a part of a batch that appends at once: its rows, and where that is noted."""

    def __init__(
        self, nodes: TransactionNodes, batch: int, partition: int, node: Node | None
    ) -> None:
        """Begin where earlier attempts stopped, if there were any."""
        self._nodes = nodes
        self._place = batch, partition
        self._node = node
        what = f"partition {partition} of batch {batch} of application {nodes.application}"
        self.rows = AppendedRows(None if node is None else node.data, what)

    async def take_down(self, marks: bytes) -> None:
        """Have those who run the part again know what it appends.

        Raises:
            WriterBusyError: another attempt is at work.
        """
        try:
            self._node = await self._nodes.write_appended(*self._place, marks, self._node)
        except MetadataVersionConflict as error:
            raise WriterBusyError(str(error)) from error


class Application:
    """One application."""

    def __init__(self, place: Place, name: str, who: Identity) -> None:
        """Take who works for it; raises ConfigError if it cannot be there."""
        self._place = place
        self._who = who
        self._nodes = TransactionNodes(place.store, place.path, name)
        self._orphans = Orphans(place.client, self._nodes, place.attempt_ttl_s)

    @property
    def name(self) -> str:
        """Its name."""
        return self._nodes.application

    async def prepare(self) -> None:
        """Make the application unless it is there; the driver does, before any process begins."""
        await self._nodes.make()

    async def head(self) -> Head:
        """Return how far it is."""
        return (await self._nodes.read_head())[0]

    async def is_committed(self, batch: int, *, may_reset: bool = False) -> bool:
        """Tell whether a batch is there already.

        Raises:
            CheckpointChangedError: another query works for the application.
        """
        return is_committed(await self.head(), self._who, batch, may_reset=may_reset)

    # Processes -----------------------------------------------------------------------------

    def attempt(
        self, batch: int, partition: int, attempt: int, options: DraftOptions, planned_ms: int
    ) -> Attempt:
        """Return what writes one part of a batch, of which nothing is made yet."""
        token = f"{self._place.store.env.random.getrandbits(32):08x}"
        return Attempt(
            self._place.client,
            self._place.namespace,
            self._nodes,
            self._who,
            AttemptName(batch, partition, attempt, token),
            options,
            planned_ms,
        )

    def skipped(self, batch: int, partition: int, attempt: int) -> AttemptResult:
        """Return what a process tells that found its batch committed."""
        return AttemptResult(
            who=self._who, batch=batch, partition=partition, attempt=attempt, is_skipped=True
        )

    async def appended(self, batch: int, partition: int) -> AppendedPart:
        """Return what earlier attempts at a part of a batch have appended at once."""
        node = await self._nodes.read_appended(batch, partition)
        return AppendedPart(self._nodes, batch, partition, node)

    # The driver ----------------------------------------------------------------------------

    async def commit(
        self,
        batch: int,
        results: Sequence[AttemptResult],
        options: CommitOptions | None = None,
        drafts: DraftOptions | None = None,
        plan: str = "",
    ) -> Committed:
        """Have everything that was written for a batch appear, in one step.

        Args:
            batch: Which.
            results: What the processes told, one for each part.
            options: How to commit.
            drafts: How the processes wrote; of ledgers of rows, the manifest is written so.
            plan: A digest of what the batch is made of; a batch that is committed already has to
                have the same.  Empty: that is not known.

        Raises:
            CheckpointChangedError: the number of the batch means another one by now.
            TransactionLostError: something was cleaned up, or another run was first.
            TransactionTooLargeError: more than the metadata store changes in one step.
            WriterBusyError: somebody else writes one of the streams.
        """
        options = options or CommitOptions()
        results = sorted(results, key=lambda result: result.partition)
        commit = Commit(self._nodes, self._who, batch, options, plan)
        done = await commit.already(results)
        if done is None:
            done = await self._commit(commit, batch, results, drafts or DraftOptions())
        await self._clean_up(batch, is_final=options.is_final)
        return done

    async def _commit(
        self, commit: Commit, batch: int, results: Sequence[AttemptResult], options: DraftOptions
    ) -> Committed:
        winners = {
            result.name: frozenset(draft.ledger_id for draft in result.drafts if draft.stream)
            for result in results
            if result.name is not None
        }
        by_stream: dict[str, list[Part]] = {}
        rows: list[Draft] = []
        for result in results:
            rows += [draft for draft in result.drafts if not draft.stream]
            parts: tuple[Part, ...] = (*result.drafts, *result.handed)
            for part in parts:
                if part.stream:
                    by_stream.setdefault(part.stream, []).append(part)
        manifest = None
        if rows:
            written = await self._write_manifest(batch, rows, options)
            manifest = written.drafts[0].ledger_id
            assert written.name is not None
            winners[written.name] = frozenset()
        now_ms = self._place.store.env.clock.wall_ms()
        # The list of ledgers is the driver's attempt 0.
        attempt = self.attempt(batch, DRIVER_PARTITION, 1, options, now_ms)
        try:
            streams = self._contexts(by_stream)
            return await commit.run(streams, winners, manifest, Gathering(attempt))
        finally:
            await attempt.give_up()

    async def abort(self, batch: int, *, is_final: bool = False) -> None:
        """Clean up what this run wrote for a batch, unless the batch is committed.

        Args:
            batch: Which.
            is_final: No batch follows: the application's nodes go, unless somebody is at work.
        """
        with contextlib.suppress(TransactionLostError):  # finished, and there
            await self._orphans.drop_attempts(self._who, batch)
            if is_final:
                with contextlib.suppress(NodeNotEmptyError, MetadataVersionConflict):
                    await self._nodes.forget((await self._nodes.read_head())[1])

    def _contexts(self, by_stream: dict[str, list[Part]]) -> list[Any]:
        namespace = self._place.namespace
        if not by_stream:
            return []
        assert namespace is not None
        contexts = ManyContexts(namespace)
        return [(contexts.of(name), by_stream[name]) for name in sorted(by_stream)]

    async def _write_manifest(
        self, batch: int, rows: Sequence[Draft], options: DraftOptions
    ) -> AttemptResult:
        previous = (await self.head()).manifest
        writer = self.attempt(batch, DRIVER_PARTITION, 0, options, 0)
        try:
            await writer.append("", [encode_manifest(self.name, batch, previous, rows)])
            return await writer.finish()
        finally:
            await writer.give_up()

    async def _clean_up(self, batch: int, *, is_final: bool) -> None:
        # The batch is there, whatever becomes of this.
        try:
            await self._orphans.sweep(up_to_batch=batch)
            await self._nodes.forget_appended(batch)
            if is_final:
                await self._nodes.forget((await self._nodes.read_head())[1])
        except QuorumbookError as error:
            _log.warning("application %s: cleaning up: %s", self.name, error)

    # What there is -------------------------------------------------------------------------

    async def ledgers(self, *, password: bytes = b"") -> AsyncGenerator[CommittedLedger, None]:
        """Yield the ledgers of rows that were committed, the newest batch first."""
        manifest = (await self.head()).manifest
        while manifest is not None:
            opened = await self._place.client.open_ledger(manifest, password=password)
            async with opened as reader:
                found = json.loads((await reader.read_entry(0)).payload)
            for each in found["ledgers"]:
                yield CommittedLedger(
                    found["batch"], each["ledger"], each["records"], each["bytes"]
                )
            manifest = found["previous"]

    async def sweep(self, *, dry_run: bool = False) -> list[OrphanedDraft]:
        """Clean up what can never be committed, and what is too old; return what it was."""
        found = await self._orphans.sweep(dry_run=dry_run)
        head, revision = await self._nodes.read_head()
        if head.is_final and not dry_run:
            await self._nodes.forget(revision)
        return found


async def collect_orphans(place: Place, *, dry_run: bool = False) -> list[OrphanedDraft]:
    """Clean up what all applications left behind; return what it was."""
    found: list[OrphanedDraft] = []
    for name in await list_applications(place.store, place.path):
        with contextlib.suppress(TransactionLostError):  # finished meanwhile
            found += await Application(place, name, Identity("", "")).sweep(dry_run=dry_run)
    return found
