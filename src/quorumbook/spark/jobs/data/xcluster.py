"""``xcluster``: streams of one cluster copied to another, each record once.

A unit is a split of a stream, whose entries the task that reads them writes into a ledger of the
other cluster; the driver makes a batch's ledgers segments there in one step for each stream
(``streams.transactions``).  How far a stream was copied is the head of an application there:

    application  xcluster <cluster> <namespace> <stream>, of what is copied
    query        which streams of their names these are, here and there
    batch        the sequence id behind the last record that is copied

Sequence and transaction ids, times, keys, headers and chunks are the same on both sides.  Segments
are cut otherwise; what each was copied from is in its ledger's custom metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.batches import Due, birth_of, check_dense, what_is_due
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen_streams
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.offsets import Reached
from quorumbook.streams import Namespace, Position, Split
from quorumbook.streams.compaction.entry_moves import moved_entry
from quorumbook.streams.errors import (
    DataLossError,
    StreamNotFoundError,
    TransactionLostError,
)
from quorumbook.streams.format.names import COPY_KEY
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.segment_reader import open_segment
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.transactions import (
    Application,
    AttemptResult,
    CommitOptions,
    Draft,
    DraftOptions,
    Identity,
    Place,
)
from quorumbook.streams.transactions.drafts import append_entry
from quorumbook.streams.transactions.state import AttemptName

_ENVELOPED = 5


class StreamCopyState(NamedTuple):
    """What the target says of a stream's copy."""

    #: What its application works for; empty: for nothing yet.
    query: str
    #: How far it is; None: there is no copy, or not any more.
    reached: Reached | None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A stream's part of the next batch."""

    due: Due
    application: str
    #: What its application works for.
    query: str
    #: Whether it worked for something else before.
    is_new: bool
    #: The number of its first segment at the target.
    number: int


class CrossCluster:
    """The job, on the driver; one of ``batches.Batches``."""

    job = "xcluster"

    def __init__(
        self,
        source: ClusterClient,
        target: ClusterClient,
        names: Sequence[str],
        *,
        job_id: str,
        max_bytes: int,
    ) -> None:
        """Take what is copied where.

        Args:
            source: Of the streams.
            target: Where they are copied to, under the same names.
            names: Which streams; none: all.
            job_id: What this run is known by.
            max_bytes: Of one batch.

        Raises:
            ConfigError: both are the same.
        """
        if source.instance_id == target.instance_id and (
            source.connection.namespace_path == target.connection.namespace_path
        ):
            raise ConfigError(
                "--to-metadata leads to the namespace that is copied: give another one"
            )
        self._source, self._target = source, target
        self._names = names
        self._run = job_id
        self._max_bytes = max_bytes
        #: By stream, as of the last look.
        self._copies: dict[str, StreamCopyState] = {}
        self._planned: list[_Planned] = []
        self.records = self.segments = self.batches = self.bytes = 0

    # Planning --------------------------------------------------------------------------------

    def plan(self) -> JobPlan | None:
        """Return the next batch; None: nothing is due.

        Raises:
            DataLossError: records were truncated before they were copied, or a stream made again.
            StreamNotFoundError: one that is named is not there.
        """
        target = self._target
        namespace = target.namespace()
        due = self.look()

        self._planned = target.run(
            lambda: gather_bounded(lambda each: self._prepare(namespace, each), due)
        )
        units = [
            Unit(self._key(planned, index), split.size_bytes, self._arguments(planned, index))
            for planned in self._planned
            for index, split in enumerate(planned.due.splits)
        ]
        return JobPlan(self.job, units, work) if units else None

    def look(self) -> list[Due]:
        """Return what is in the next batch; nothing is changed for it."""
        return self._source.run(self._look)

    async def _look(self) -> list[Due]:
        namespace = await self._source.opened_namespace()
        copies = await self._target.opened_namespace()
        names = await chosen_streams(namespace, self._names)
        states = await gather_bounded(lambda name: copy_state(self._source, copies, name), names)
        self._copies = dict(zip(names, states, strict=True))
        return await what_is_due(
            namespace,
            names,
            {name: copy.reached for name, copy in self._copies.items() if copy.reached},
            max_bytes=self._max_bytes,
            allows_loss=False,
            remedy="delete the copy, and it is made again",
        )

    async def _prepare(self, namespace: Namespace, due: Due) -> _Planned:
        copy = self._copies[due.stream]
        query = copy.query
        if copy.reached is None:
            await namespace.create_stream(due.stream, exist_ok=True)
            await _application(self._source, namespace, due.stream).prepare()
            query = f"{due.birth} {await birth_of(namespace, due.stream)}"
        number = await _next_number(namespace, due.stream)
        application = application_of(self._source, due.stream)
        return _Planned(due, application, query, query != copy.query, number)

    def _key(self, planned: _Planned, index: int) -> str:
        due = planned.due
        split = due.splits[index]
        place = f"{split.segment}:{split.first_entry}-{split.last_entry}"
        return f"{due.stream}@{max(due.sequence_id, 0)}+{planned.number}#{place}"

    def _arguments(self, planned: _Planned, index: int) -> dict[str, Any]:
        due = planned.due
        places = [
            [split.segment, split.first_entry, split.last_entry, planned.number + number]
            for number, split in enumerate(due.splits)
        ]
        return {
            "to": self._target.connection.as_json(),
            "stream": due.stream,
            "application": planned.application,
            "query": planned.query,
            "run": self._run,
            # Above the last batch, so that nobody takes what is being written for an orphan.
            "batch": max(due.sequence_id, 0) + 1,
            "partition": index,
            "split": due.splits[index].to_json(),
            "cluster": self._source.instance_id,
            "places": places,
        }

    # Committing ------------------------------------------------------------------------------

    def commit(self, results: Mapping[str, Values]) -> bool:
        """Have the copies appear; False: there are no records in the batch.

        Raises:
            TransactionLostError: another run was first, or what was written is cleaned up.
            DataLossError: records are missing.
        """
        is_any = False
        for planned in self._planned:
            count = len(planned.due.splits)
            parts = [results[self._key(planned, index)] for index in range(count)]
            if any(part.get("has_chunks") for part in parts):
                # They tell numbers of segments, which are as planned up to a part without records.
                parts = list(itertools.takewhile(lambda part: part["rows"], parts))
            behind = check_dense(planned.due, parts)
            if behind is not None:
                self._target.run(partial(self._commit, planned, parts, behind))
                is_any = True
        self.batches += is_any
        return is_any

    async def _commit(self, planned: _Planned, parts: Sequence[Values], behind: int) -> None:
        namespace = await self._target.opened_namespace()
        who = Identity(planned.query, self._run)
        app = Application(Place(namespace.client, namespace), planned.application, who)
        results = [_result(part) for part in parts if part["rows"]]
        done = await app.commit(behind, results, CommitOptions(may_reset=planned.is_new))
        if not done.was_there:
            self.records += done.record_count
            self.segments += sum(map(len, done.segments.values()))
            self.bytes += sum(part["draft"]["size_bytes"] for part in parts if part["rows"])

    def conclude(self, report: Report) -> None:
        """Sum up what was copied."""
        report.summary.update(
            batches=self.batches,
            records_copied=self.records,
            segments_made=self.segments,
            bytes_copied=self.bytes,
        )


def application_of(source: ClusterClient, stream: str) -> str:
    """Return what the application of a stream's copying is called."""
    return f"xcluster {source.instance_id} {source.connection.namespace_path} {stream}"


def _application(source: ClusterClient, target: Namespace, stream: str) -> Application:
    place = Place(target.client, target)
    return Application(place, application_of(source, stream), Identity("", ""))


async def copy_state(source: ClusterClient, target: Namespace, stream: str) -> StreamCopyState:
    """Return what the target says of a stream's copy."""
    query = ""
    with contextlib.suppress(TransactionLostError, StreamNotFoundError):  # there is none yet
        head = await _application(source, target, stream).head()
        query = head.query
        if head.batch >= 0:
            birth, _, copy_birth = query.partition(" ")
            if copy_birth == str(await birth_of(target, stream)):
                return StreamCopyState(query, Reached(int(birth), head.batch))
    return StreamCopyState(query, None)


async def _next_number(namespace: Namespace, stream: str) -> int:
    context = stream_context(namespace.stream(stream))
    highest = (await context.nodes.read_state()).max_segment
    segments = await context.nodes.segments(for_writer=True)
    known = max((segment.number for segment in segments), default=0)
    return max(known + 1, highest) if known or highest else context.first_segment


def _result(part: Values) -> AttemptResult:
    return AttemptResult(
        who=Identity(*part["who"]),
        batch=part["name"][0],
        partition=part["name"][1],
        attempt=part["name"][2],
        name=AttemptName(*part["name"]),
        drafts=(Draft(**part["draft"]),),
    )


# On executors ------------------------------------------------------------------------------------


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Copy the entries of one split into a ledger of the other cluster.

    Raises:
        DataLossError: something of the split is gone.
        FixedEntryError: records of old writers, which do not tell their place.
    """
    stream = arguments["stream"]
    split = Split.from_json(arguments["split"])
    target = await asyncio.to_thread(connected, Connection.from_json(arguments["to"]))
    namespace = await target.opened_namespace()
    who = Identity(arguments["query"], arguments["run"])
    app = Application(Place(namespace.client, namespace), arguments["application"], who)
    attempt = app.attempt(arguments["batch"], arguments["partition"], 0, DraftOptions(), 0)
    source = await cluster.opened_namespace()
    note = {
        "cluster": arguments["cluster"], "namespace": source.path, "stream": stream,
        "segment": split.segment, "first": split.first_entry, "last": split.last_entry,
    }  # fmt: skip
    ledger = await attempt.make_segment_ledger(
        stream_context(namespace.stream(stream)),
        {COPY_KEY: json.dumps(note, separators=(",", ":")).encode()},
    )
    copier = _Copier(split, arguments["places"])
    try:
        await _copy(stream_context(source.stream(stream)), pace, copier, ledger)
        await ledger.close()
    except BaseException:
        with contextlib.suppress(Exception):
            await ledger.abort()
        raise
    draft = copier.draft(stream, ledger.id, ledger.length)
    return {
        "rows": copier.count,
        "first": draft.first_sequence_id,
        "behind": (draft.first_sequence_id or 0) + copier.count,
        "who": list(who),
        "name": list(attempt.name),
        "has_chunks": copier.has_chunks,
        "draft": asdict(draft),
    }


async def _copy(context: StreamContext, pace: Pace, copier: _Copier, ledger: LedgerWriter) -> None:
    split = copier.split
    metadata = SegmentMetadata(
        number=split.segment, ledger_id=split.ledger_id, first_txid=0, version=_ENVELOPED
    )
    opened = await open_segment(context, metadata, -1)
    if opened is None or not split.is_enveloped:
        raise DataLossError(
            f"segment {split.segment} of stream {context.name} is gone since the snapshot was "
            "taken, or older than this can copy",
            ledger_id=split.ledger_id,
        )
    try:
        if opened.ledger.last_add_confirmed < split.last_entry:
            await opened.ledger.read_last_add_confirmed()
        entries = opened.ledger.read_batches(split.first_entry, split.last_entry)
        async with contextlib.aclosing(entries) as batches:
            async for batch in batches:
                await pace.take(batch.size_bytes)
                for payload in batch.payloads:
                    await append_entry(ledger, copier.copied(payload))
    finally:
        await opened.close()


class _Copier:
    """Entries as they are in the other cluster."""

    def __init__(self, split: Split, places: Sequence[Sequence[int]]) -> None:
        """Take what is copied, and which entries of the batch go into which segments."""
        self.split = split
        self._places = places
        self.has_chunks = False
        self._before: int | None = None
        #: How many records were copied.
        self.count = 0
        self._entries = 0
        self._first_txid: int | None = None
        self._last_txid = -1
        self._last_entry = self._last_slot = -1

    def copied(self, payload: bytes) -> bytes:
        """Return the next entry."""
        moved = moved_entry(payload, -(self._before or 0) if self._entries else None, self._moved)
        if self._before is None:
            self._before = moved.count_before
        if self._first_txid is None:
            self._first_txid = moved.first_txid
        if moved.last_slot >= 0:
            self.count = moved.count_after - self._before
            self._last_txid = moved.last_txid
            self._last_entry, self._last_slot = self._entries, moved.last_slot
        self._entries += 1
        return moved.entry

    def _moved(self, position: Position) -> Position:
        self.has_chunks = True
        for segment, first, last, number in self._places:
            if position.segment == segment and first <= position.entry <= last:
                return Position(number, position.entry - first, position.slot)
        return position  # of a record that was given up before the batch began

    def draft(self, stream: str, ledger_id: int, size_bytes: int) -> Draft:
        """Return what becomes a segment."""
        number = next(
            number
            for segment, first, _, number in self._places
            if (segment, first) == (self.split.segment, self.split.first_entry)
        )
        return Draft(
            stream=stream,
            ledger_id=ledger_id,
            record_count=self.count,
            size_bytes=size_bytes,
            last_entry=self._last_entry,
            last_slot=self._last_slot,
            first_txid=-1 if self._first_txid is None else self._first_txid,
            last_txid=self._last_txid,
            number=number if self.has_chunks else None,
            first_sequence_id=self.split.segment_sequence_id + (self._before or 0),
        )
