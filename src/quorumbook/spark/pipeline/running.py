"""Runs a pipeline on a session: a query for each step, looked at now and then.

What it knows of its steps it tells in the cluster's metadata, where the console finds it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from quorumbook.client.context import client_store
from quorumbook.env import logger
from quorumbook.errors import ConfigError, MetadataError, QuorumbookError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.queries import connected_to
from quorumbook.spark.pipeline.declaration import Pipeline, PipelineStep
from quorumbook.spark.pipeline.frames import rows_of
from quorumbook.spark.pipeline.numbers import StepNumbers, StreamSegments
from quorumbook.spark.pipeline.supervision import Restarts, reason_of
from quorumbook.spark.pipeline.telling import EVERY_S, told
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.metadata.pipeline_nodes import tell
from quorumbook.streams.partitions.partition_node import partition_count
from quorumbook.streams.partitions.partitioning import partition_name
from quorumbook.streams.segments import start_sequence_ids
from quorumbook.streams.stream_context import stream_context

_log = logger("spark")
_LOOK_S = 0.5
#: So often segments of the streams that are written are counted.
_COUNT_EVERY_S = 10.0


class RunningPipeline:
    """The queries of a pipeline.

    Args:
        spark: The session.
        connection: Where the cluster is.
        pipeline: What runs.
        is_once: Each step reads what there is and ends; one begins when those before it are done.
    """

    def __init__(
        self, spark: Any, connection: Connection, pipeline: Pipeline, *, is_once: bool
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._pipeline = pipeline
        self._is_once = is_once
        self._cluster: ClusterClient = connected(connection)
        self.numbers: Mapping[str, StepNumbers] = {
            step.name: StepNumbers(scans=2 if step.dead_letters else 1) for step in pipeline.steps
        }
        self._restarts = {s.name: Restarts(pipeline.whole.restarts) for s in pipeline.steps}
        self._queries: dict[str, Any] = {}
        self._due_s = dict.fromkeys(self.numbers, 0.0)
        self._counted_s = 0.0
        self._began_at_ms = int(time.time() * 1000)
        self._told_s = 0.0
        self._can_tell = True

    def prepare(self) -> None:
        """Make streams that are missing, and say how long what is written stays."""
        namespace = self._cluster.namespace()

        async def make(step: PipelineStep) -> None:
            for name in (*step.sources, *step.written):
                count = await partition_count(namespace, name)
                if count is None:
                    await namespace.create_stream(name, exist_ok=True)
                if name in step.written and step.retain_time_s:
                    await _retain(namespace, name, count, step.retain_time_s)

        for step in self._pipeline.steps:
            self._cluster.run(lambda step=step: make(step))  # type: ignore[misc]

    def run(self, on_look: Callable[[], None] = lambda: None) -> bool:
        """Run until every step is done or failed; return whether all are done.

        Args:
            on_look: Runs after each look at the steps.
        """
        try:
            while self._look():
                on_look()
                if time.monotonic() - self._told_s > EVERY_S:
                    self._tell()
                time.sleep(_LOOK_S)
            self._count_segments()
            on_look()
        finally:
            for query in self._queries.values():
                if query.isActive:
                    query.stop()
            self._tell(is_over=True)
        return all(found.state == "done" for found in self.numbers.values())

    def told(self, *, is_over: bool = False) -> dict[str, Any]:
        """Return what it tells of itself (``telling``).

        Args:
            is_over: No step goes on.
        """
        return told(
            self._pipeline, self.numbers, began_at_ms=self._began_at_ms,
            is_once=self._is_once, is_over=is_over,
        )  # fmt: skip

    def _tell(self, *, is_over: bool = False) -> None:
        """Tell it whoever looks; a pipeline goes on without."""
        self._told_s = time.monotonic()
        name, row = self._pipeline.whole.name, self.told(is_over=is_over)
        store = client_store(self._cluster.client)
        try:
            path = self._cluster.namespace().path
            self._cluster.run(lambda: tell(store, path, name, row))
            self._can_tell = True
        except MetadataError as error:
            if self._can_tell:  # said once, not every few seconds
                _log.warning("the pipeline %s cannot tell how it goes: %s", name, error)
            self._can_tell = False

    def _look(self) -> bool:
        """Look at every step; tell whether any is to go on."""
        for step in self._pipeline.steps:
            found = self.numbers[step.name]
            if found.state == "running":
                self._look_at(step, found)
            if found.state == "waiting" and self._may_begin(step):
                self._begin(step, found)
        if time.monotonic() - self._counted_s > _COUNT_EVERY_S:
            self._count_segments()
        return any(found.state in ("running", "waiting") for found in self.numbers.values())

    def _may_begin(self, step: PipelineStep) -> bool:
        before = [s for s in self._pipeline.steps if set(s.written) & set(step.sources)]
        is_behind = self._is_once and any(
            self.numbers[each.name].state in ("running", "waiting") for each in before
        )
        return not is_behind and time.monotonic() >= self._due_s[step.name]

    def _begin(self, step: PipelineStep, found: StepNumbers) -> None:
        try:
            self._queries[step.name] = self._started(step)
        except Exception as error:
            if isinstance(error, ConfigError) and not found.restarts:
                raise  # nobody can want it
            self._failed(step, found, error)
        else:
            found.state = "running"

    def _started(self, step: PipelineStep) -> Any:
        checkpoint = self._pipeline.checkpoint(step)
        rows = rows_of(self._spark, self._connection, step, self._pipeline.cursor(step))
        writer = rows.writeStream.option("checkpointLocation", checkpoint)
        writer = writer.queryName(self._pipeline.cursor(step))
        if self._is_once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{step.every_s:g} seconds")
        if step.directory:
            directory = step.directory
            if "://" not in directory:
                directory = os.path.abspath(directory)
            return writer.format("parquet").start(directory)
        return connected_to(writer.format("quorumbook"), self._connection).start()

    def _look_at(self, step: PipelineStep, found: StepNumbers) -> None:
        query = self._queries[step.name]
        is_active = query.isActive
        for progress in query.recentProgress:
            found.take(json.loads(progress.json))
        if is_active:
            return
        error = query.exception()
        if error is None:
            found.state = "done"
        else:
            self._failed(step, found, error)

    def _failed(self, step: PipelineStep, found: StepNumbers, error: Exception) -> None:
        found.error = reason_of(str(error))
        restarts = self._restarts[step.name]
        wait_s = restarts.failed(found.commits)
        found.restarts = restarts.count
        found.state = "failed" if wait_s is None else "waiting"
        self._due_s[step.name] = time.monotonic() + (wait_s or 0.0)

    def _count_segments(self) -> None:
        """Count segments of what is written; a pipeline goes on without."""
        self._counted_s = time.monotonic()
        try:
            namespace = self._cluster.namespace()
            for step in self._pipeline.steps:
                found = self._cluster.run(
                    lambda step=step: segments_of(namespace, step.written)  # type: ignore[misc]
                )
                self.numbers[step.name].take_segments(found)
        except QuorumbookError as error:
            _log.warning("segments cannot be counted now: %s", error)


async def _retain(
    namespace: Namespace, name: str, partitions: int | None, retain_time_s: float
) -> None:
    names = [name]
    if partitions is not None:
        names = [partition_name(name, number) for number in range(partitions)]
    for each in names:
        stream = namespace.stream(each)
        before = await stream.policy()
        given = {**before.given(), "retain_time_s": retain_time_s}
        await stream.set_policy(StreamPolicy.of(given), expected=before)


async def segments_of(namespace: Namespace, names: tuple[str, ...]) -> dict[str, StreamSegments]:
    """Return the segments of streams, by stream or partition."""
    found = {}
    for name in names:
        count = await partition_count(namespace, name)
        parts = [name] if count is None else [partition_name(name, n) for n in range(count)]
        for part in parts:
            segments = await stream_context(namespace.stream(part)).nodes.segments()
            first = segments[0].number if segments else 0
            found[part] = StreamSegments(first, tuple(start_sequence_ids(segments)))
    return found
