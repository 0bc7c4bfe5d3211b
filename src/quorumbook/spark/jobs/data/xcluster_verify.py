"""``xcluster --verify``: both sides of a copy, compared record by record.

A unit is a split of the stream that is copied; its task reads the same sequence ids from the copy.
What comes behind the last committed batch is not copied yet: it is the lag.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from itertools import chain
from typing import Any

from quorumbook.env.tasks import gather_bounded
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data.xcluster import copy_state
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen_streams
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.streams import Namespace, Record, SequenceId, Split
from quorumbook.streams.errors import PositionTruncatedError, StreamNotFoundError
from quorumbook.streams.segments import start_sequence_ids
from quorumbook.streams.stream_context import stream_context

_SPLIT_BYTES = 64 * 1024 * 1024
#: So many findings of a unit are told one by one.
_SHOWN = 20
_FIELDS = ("txid", "payload", "key", "headers", "event_time_ms", "appended_at_ms")


async def plan_verify(
    source: ClusterClient, target: ClusterClient, names: Sequence[str]
) -> JobPlan:
    """Return what is compared: everything that both sides have.

    Args:
        source: Of the streams.
        target: Of the copies.
        names: Which streams; none: all.

    Raises:
        StreamNotFoundError: a stream that is named is not there.
    """
    namespace = await source.opened_namespace()
    copies = await target.opened_namespace()
    chosen = await chosen_streams(namespace, names)
    states = await gather_bounded(lambda name: copy_state(source, copies, name), chosen)
    units = []
    for name, state in zip(chosen, states, strict=True):
        behind = 0 if state.reached is None else state.reached.sequence_id
        arguments = {"stream": name, "behind": behind, "to": target.connection.as_json()}
        snapshot = await namespace.stream(name).snapshot()
        for split in snapshot.splits(_SPLIT_BYTES):
            key = f"{name}#{split.segment}:{split.first_entry}-{split.last_entry}"
            units.append(Unit(key, split.size_bytes, {**arguments, "split": split.to_json()}))
        units.append(Unit(f"{name}#end", 0, {**arguments, "split": None}))
    return JobPlan("xcluster", units, verify, lambda result: bool(result["findings"]))


async def verify(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Compare one split, or where a copy ends with where it was left."""
    target = await asyncio.to_thread(connected, Connection.from_json(arguments["to"]))
    copies = await target.opened_namespace()
    if arguments["split"] is None:
        return await _end_of(copies, arguments)
    source = await cluster.opened_namespace()
    stream, behind = arguments["stream"], arguments["behind"]
    found = _Differing(stream)
    compared = lag = 0
    copy: AsyncGenerator[Record, None] | None = None
    split = Split.from_json(arguments["split"])
    try:
        async with contextlib.aclosing(source.stream(stream).read_split(split)) as batches:
            async for batch in batches:
                await pace.take(2 * batch.size_bytes)
                for record in batch:
                    if record.sequence_id >= behind:
                        lag += 1
                        continue
                    if copy is None:
                        copy = _copied(copies, stream, record.sequence_id)
                    compared += 1
                    found.compare(record, await anext(copy, None))
    finally:
        if copy is not None:
            await copy.aclose()
    return {**found.as_values(), "compared": compared, "lag": lag}


async def _copied(copies: Namespace, stream: str, sequence_id: int) -> AsyncGenerator[Record, None]:
    try:
        reader = copies.stream(stream).reader(SequenceId(sequence_id), tail=False)
        async with reader as records:
            async for record in records:
                yield record
    except (StreamNotFoundError, PositionTruncatedError):
        return


async def _end_of(copies: Namespace, arguments: Values) -> Values:
    found = _Differing(arguments["stream"])
    try:
        nodes = stream_context(copies.stream(arguments["stream"])).nodes
        segments = await nodes.segments(for_writer=True)
        last = segments[-1:]
        end = sum(chain(start_sequence_ids(last), (each.record_count for each in last)))
    except StreamNotFoundError:
        end = 0
    if end != arguments["behind"]:
        found.add(end, f"the copy ends before record {end}, and {arguments['behind']} were copied")
    return {**found.as_values(), "compared": 0, "lag": 0}


class _Differing:
    """What differs."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._count = 0
        self._rows: list[dict[str, Any]] = []

    def compare(self, record: Record, copy: Record | None) -> None:
        if copy is None:
            self.add(record.sequence_id, "it is not in the copy")
        elif copy.sequence_id != record.sequence_id:
            self.add(record.sequence_id, f"record {copy.sequence_id} stands in its place")
        else:
            for name in _FIELDS:
                if getattr(record, name) != getattr(copy, name):
                    self.add(record.sequence_id, f"its {name} is another one")

    def add(self, sequence_id: int, what: str) -> None:
        self._count += 1
        if len(self._rows) < _SHOWN:
            self._rows.append({"stream": self._stream, "seq": sequence_id, "what": what})

    def as_values(self) -> dict[str, Any]:
        return {"findings": self._count, "rows": self._rows}


def conclude(report: Report) -> None:
    """Sum the results up."""
    results = report.results.values()
    report.findings = sum(result["findings"] for result in results)
    report.summary["records_compared"] = sum(result["compared"] for result in results)
    lag: dict[str, int] = {}
    for key, result in sorted(report.results.items()):
        stream = key.rpartition("#")[0]
        lag[stream] = lag.get(stream, 0) + result["lag"]
    report.summary["lag_records"] = lag
    report.summary["rows"] = [row for result in results for row in result["rows"]]
