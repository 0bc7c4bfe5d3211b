"""A span for each task of Spark, where the environment of the executors names a collector.

The parent is what ``TRACEPARENT`` says there; everything that the task does at ledgers and streams
is below it.  Without a collector nothing is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark import TaskContext

from quorumbook.env import logger
from quorumbook.env.log import is_telemetry_wanted

_log = logger("spark")
#: An executor may end its processes as soon as a task is over.
_FLUSH_MS = 1000


@contextlib.contextmanager
def task_span(name: str) -> Iterator[None]:
    """Trace what is done inside, as what this task of Spark does."""
    if not is_telemetry_wanted():
        yield
        return
    try:
        from quorumbook.otel.process import flush, span_of, start
    except ImportError:
        _log.warning("tasks are not traced: pip install 'quorumbook[otel]' for executors")
        yield
        return
    start("quorumbook-spark")
    context = TaskContext.get()
    attributes = {} if context is None else {
        "spark.stage.id": context.stageId(),
        "spark.partition.id": context.partitionId(),
        "spark.attempt": context.attemptNumber(),
    }  # fmt: skip
    try:
        with span_of(name, attributes):
            yield
    finally:
        flush(_FLUSH_MS)
