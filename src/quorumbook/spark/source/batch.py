"""Reads streams or ledgers as a batch: looks at them once, plans tasks, and yields their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quorumbook.env import logger
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import ConfigError, NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.offsets import Offset
from quorumbook.spark.request.planning import Piece, plan
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.request.selection import Selected
from quorumbook.spark.request.where import MessagePlace, Where, check_names
from quorumbook.spark.rows.replica_rows import check_replica
from quorumbook.spark.rows.schema import arrow_schema, check_schema
from quorumbook.spark.rows.views import View, Views, pieces_of
from quorumbook.spark.short_errors import short_errors
from quorumbook.spark.source.kinds import SourceKind, kind_of, views_of
from quorumbook.spark.source.starts import after_truncation, resolve
from quorumbook.spark.source.task import Task
from quorumbook.spark.task_spans import task_span
from quorumbook.streams.errors import (
    DataLossError,
    PositionTruncatedError,
    StreamNotFoundError,
)

_log = logger("spark")


@short_errors
class BatchReader(DataSourceReader):
    """Reads what there is at the moment of planning."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Take options and columns.

        Raises:
            ConfigError: there are no such columns.
        """
        kind = kind_of(options)
        check_schema(schema, kind.columns, kind.title)
        # Tasks decode as this version, whichever is the last one when they run.
        self._options = replace(options, schema_version=kind.version)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks.

        Raises:
            StreamNotFoundError: what is named is not there; NoSuchLedgerInMetadataError as well.
            PositionTruncatedError: where it should begin was truncated away.
            DataLossError: a segment's ledger is gone.
        """
        options = self._options
        cluster = connected(options.connection)
        pieces = cluster.run(lambda: _pieces(cluster, options))
        tasks = plan(
            pieces,
            target_bytes=options.target_partition_bytes,
            max_records=options.max_records_per_partition,
            min_tasks=options.min_partitions,
        )
        return [Task(cluster.instance_id, task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(self._options, self._schema, partition)


def read_task(
    options: ReadOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, of a batch or of a stream's batch."""
    if partition.value is None:
        return  # what Spark makes of no tasks
    assert isinstance(partition, Task)
    partition.check_release()
    cluster = connected(options.connection)
    pieces: list[Piece] = partition.work_for(cluster.instance_id)
    kind: SourceKind = kind_of(options)
    columns = arrow_schema(schema)
    with task_span("read_task"):
        for rows in cluster.iterate_ahead(lambda: kind.gather(cluster, options, pieces)):
            yield kind.record_batch(rows, columns)


async def _pieces(cluster: ClusterClient, options: ReadOptions) -> list[Piece]:
    await check_replica(cluster, options.replica)
    views = await views_of(cluster, options)
    names = await views.names()
    for where in (options.starting, options.ending):
        check_names(where, {name: views.title(name) for name in names})
    pieces = await gather_bounded(lambda name: _of_one(views, options, name), names)
    return list(chain.from_iterable(pieces))


async def _of_one(views: Views, options: ReadOptions, name: str) -> list[Piece]:
    view = await views.view(name)
    if view is None:
        raise missing(options, name)
    start = await _end(options.starting, view, views, options)
    end = await _end(options.ending, view, views, options)
    lost = view.lost_before(start)
    if lost:
        start = lose(options, lost, view)
    is_exact = isinstance(options.ending.place_of(name, view.title), Offset | MessagePlace)
    if is_exact and view.lost_before(end):
        raise ConfigError(f"endingOffsets: {view.lost_before(end)}")
    return await pieces_between(views, options, view, start, end)


async def _end(where: Where, view: View, views: Views, options: ReadOptions) -> Offset:
    is_start = where is options.starting
    try:
        return await resolve(where, view, views, is_strict_time=is_start and options.is_strict_time)
    except PositionTruncatedError as error:
        return after_truncation(error, view, fails=is_start and options.fails_on_data_loss)


async def pieces_between(
    views: Views, options: ReadOptions, view: View, start: Offset, end: Offset
) -> list[Piece]:
    """Return what lies between two offsets of one stream or ledger.

    Raises:
        DataLossError: a segment's ledger is gone, and that is to fail.
    """
    sizes = {}
    for extent, _, last, _, _ in view.between(start, end):
        try:
            sizes[extent.ledger_id] = await views.sizes(extent.ledger_id, last + 1)
        except NoSuchLedgerInMetadataError as error:
            view = without_gone(options, view, extent.ledger_id, error)
    name = "" if options.selection.kind is Selected.LEDGER else view.name
    return pieces_of(view, start, end, sizes, name)


def without_gone(options: ReadOptions, view: View, ledger_id: LedgerId, error: Exception) -> View:
    """Return what is left of a view when one of its ledgers is gone, unless that is to fail.

    Raises:
        DataLossError: it is.
    """
    why = next((each.gone for each in view.extents if each.ledger_id == ledger_id), "")
    what = f"the ledger {ledger_id} of {view.name} is gone{why and ': '}{why}"
    if options.fails_on_data_loss:
        raise DataLossError(
            f"{what}; failOnDataLoss=false goes on without it", ledger_id=ledger_id
        ) from error
    _log.warning("%s; it is left out", what)
    left = tuple(extent for extent in view.extents if extent.ledger_id != ledger_id)
    return view._replace(extents=left)


def missing(options: ReadOptions, name: str) -> Exception:
    """Return the error that says that something is not there."""
    if options.selection.kind is Selected.LEDGER:
        return NoSuchLedgerInMetadataError(f"there is no ledger {name}", ledger_id=int(name))
    if options.selection.kind is Selected.PULSAR:
        return StreamNotFoundError(
            f"there is no topic {name} in the tree of Pulsar beside this cluster's ledgers"
        )
    return StreamNotFoundError(
        f"there is no stream {name} in {options.connection.namespace_path}; "
        "`quorumbook stream create` makes one, and the option namespace names another place"
    )


def lose(options: ReadOptions, what: str, view: View) -> Offset:
    """Return where to go on although something is gone, unless that is to fail.

    Raises:
        DataLossError: it is.
    """
    if options.fails_on_data_loss:
        raise DataLossError(f"{what}; failOnDataLoss=false goes on with what is left")
    _log.warning("%s; going on with what is left", what)
    return view.first
