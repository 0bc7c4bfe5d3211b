"""Reads streams or ledgers as a streaming query: from the offsets of the last batch to the next.

Spark calls this in a process on the driver, and ``read`` in tasks that see none of its state.  What
the offsets say is all that a batch is made of, so that it is the same when it is done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumbook.client.context import client_store
from quorumbook.env import logger
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import ConfigError, NoSuchLedgerInMetadataError
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.offsets import Offset, Offsets, is_same_stream
from quorumbook.spark.request.planning import Piece, cut, cuts_of, plan
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.request.selection import Selected
from quorumbook.spark.request.where import check_names
from quorumbook.spark.rows.ledger_views import LedgerViews
from quorumbook.spark.rows.schema import check_schema
from quorumbook.spark.rows.views import View, Views
from quorumbook.spark.short_errors import short_errors
from quorumbook.spark.source.batch import (
    lose,
    missing,
    pieces_between,
    read_task,
    without_gone,
)
from quorumbook.spark.source.cursors import QueryCursors
from quorumbook.spark.source.kinds import kind_of, views_of
from quorumbook.spark.source.lag import lag_behind
from quorumbook.spark.source.limits import Measure, Measures, between, limited
from quorumbook.spark.source.pressure import FIRST_BYTES, Pressure
from quorumbook.spark.source.relocation import relocated, stamped
from quorumbook.spark.source.starts import after_truncation, resolve
from quorumbook.spark.source.task import Task
from quorumbook.streams.errors import DataLossError, PositionTruncatedError

T = TypeVar("T")
_log = logger("spark")
#: A planner that is new may be told less than the one before it knew; for so long it asks again.
_PATIENCE_S = 30.0
_PAUSE_S = 0.1
_MANY_STREAMS = 5_000


@short_errors
class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on."""

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
        self._planner: _Planner | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        return self._run(lambda planner: planner.first()).encode()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends: at its start if there is nothing new."""
        is_limited = not isinstance(limit, ReadAllAvailable)

        async def following(planner: _Planner) -> Offsets | None:
            begin = Offsets.decode(start, planner.instance_id)
            end = await planner.following(begin, is_limited=is_limited)
            return None if end is None else await planner.planned(begin, end)

        found = self._run(following)
        return start if found is None else found.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the limits; ``latestOffset`` keeps to all."""
        options = self._options
        if options.max_entries or options.max_records:
            return ReadMaxRows(options.max_records or options.max_entries)
        if options.max_bytes or options.target_batch_s:
            return ReadMaxBytes(options.max_bytes or FIRST_BYTES)
        return ReadMinRows(options.min_entries) if options.min_entries else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take down what there is now: this run reads no further."""
        self._run(lambda planner: planner.take_target())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return what there is, and how far the last batch is behind it."""
        return self._run(lambda planner: planner.report())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one batch."""
        instance = self._opened().instance_id

        async def pieces(planner: _Planner) -> dict[str, list[Piece]]:
            return await planner.pieces(Offsets.decode(start, instance), reached)

        reached = Offsets.decode(end, instance)
        # One that an earlier release ended was not cut: all of it is one task.
        return [Task(instance, task) for task in cut(self._run(pieces), reached.cuts or {})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the cursor, if one is wanted; Spark says so a batch late, and never of the last."""
        if self._options.cursor:
            instance = self._opened().instance_id
            self._run(lambda planner: planner.cursors.move(Offsets.decode(end, instance).streams))

    def stop(self) -> None:
        """Do nothing: Spark does not call it, but ends the process."""

    def _opened(self) -> _Planner:
        if self._planner is None:
            cluster = connected(self._options.connection)
            views = cluster.run(lambda: views_of(cluster, self._options))
            self._planner = _Planner(cluster, views, self._options)
        return self._planner

    def _run(self, work: Callable[[_Planner], Coroutine[Any, Any, T]]) -> T:
        planner = self._opened()
        return planner.cluster.run(lambda: work(planner))


class _Planner:
    """What the process on the driver knows."""

    def __init__(self, cluster: ClusterClient, views: Views, options: ReadOptions) -> None:
        self.cluster = cluster
        self.instance_id = cluster.instance_id
        self._views = views
        self._options = options
        self._is_ledgers = options.selection.kind is Selected.LEDGER
        self.cursors = QueryCursors(cluster, options.cursor)
        self._clock = client_store(cluster.client).env.clock
        self._last_batch_ns = self._clock.now_ns()
        self._pressure = Pressure(options.target_batch_s) if options.target_batch_s else None
        #: Where a run that reads what there is ends.
        self._target: Mapping[str, Offset] | None = None
        #: What was looked at last, and where the batch ends that was made of it.
        self._seen: dict[str, View] = {}
        self._reached: Mapping[str, Offset] = {}

    # Looking -------------------------------------------------------------------------------

    async def _look(self, names: Sequence[str]) -> dict[str, View]:
        found = await gather_bounded(self._views.view, names)
        return {view.name: view for view in found if view is not None}

    async def first(self) -> Offsets:
        """Return where a new query begins: at its cursor, or as the options say."""
        names = await self._views.names()
        check_names(self._options.starting, {name: self._views.title(name) for name in names})
        if len(names) > _MANY_STREAMS:
            _log.warning("%d are read: each batch writes so many offsets", len(names))
        views = await self._look(names)
        found = {}
        for name in names:
            if name not in views:
                raise missing(self._options, name)
            found[name] = stamped(views[name], await self._start(views[name]))
        if not self._is_ledgers:
            return Offsets(self.instance_id, found)
        highest = max(map(int, names), default=0)
        late = self._missing(Offsets(self.instance_id), highest, put_off=set())
        return Offsets(self.instance_id, {}, found, highest, missing=late)

    async def _start(self, view: View) -> Offset:
        options = self._options
        if self.cursors.name:
            position = await self.cursors.position(view.name)
            if position is not None:
                return Offset(view.birth, *position)
        try:
            return await resolve(
                options.starting, view, self._views, is_strict_time=options.is_strict_time
            )
        except PositionTruncatedError as error:
            return after_truncation(error, view, fails=options.fails_on_data_loss)

    def _offsets(self, places: Mapping[str, Offset], names: Sequence[str]) -> Offsets:
        if not self._is_ledgers:
            return Offsets(self.instance_id, places)
        return Offsets(self.instance_id, {}, places, max(map(int, names), default=0))

    async def take_target(self) -> None:
        """Take down where everything ends now."""
        views = await self._look(await self._views.names())
        self._target = {name: view.end for name, view in views.items()}

    # One batch -----------------------------------------------------------------------------

    async def following(self, start: Offsets, *, is_limited: bool) -> Offsets | None:
        """Return where the batch after some offsets ends; None if there is nothing for it."""
        if self._pressure is not None:
            self._pressure.next_wanted(self._clock.now_ns())
        known = start.ledgers if self._is_ledgers else start.streams
        everything = await self._views.names()
        names = [name for name in everything if self._is_due(name, start)]
        views = await self._look(sorted({*names, *known}))
        known = {
            name: await self._relocated(views.get(name), begin)
            for name, begin in self._selected(known).items()
        }
        starts, new, gone = self._starts(known, names, views)
        ends = {name: self._end(views[name], begin) for name, begin in starts.items()}
        if is_limited:
            if self._waits(views, starts, ends):
                return None
            views, ends = await self._limited(views, starts, ends)
            for name in [name for name in starts if self._is_ledgers and not views[name].extents]:
                del starts[name], ends[name], views[name]
                gone.append(name)
        reached = {**new, **ends}
        self._seen, self._reached = views, reached
        if (
            not new
            and not gone
            and all(
                not views[name].entries_between(begin, ends[name])
                and begin == known[name]
                # Where numbers tell nothing, that all of a ledger was read is written down.
                and not (views[name].is_sparse and ends[name].segment != begin.segment)
                for name, begin in starts.items()
            )
        ):
            return None
        self._last_batch_ns = self._clock.now_ns()
        if self._pressure is not None and is_limited:
            size = await self._size(views, starts, ends)
            self._pressure.batch_began(self._last_batch_ns, size)
        if self._is_ledgers:
            # Finished ones are in the offsets once more, with their ends, and then no longer.
            reached = {
                name: offset
                for name, offset in reached.items()
                if not (known.get(name) == offset and views[name].extents[0].is_complete)
                or offset.place < views[name].end.place
            }
            highest = max(start.highest_ledger, *map(int, views)) if views else start.highest_ledger
            late = self._missing(start, highest, put_off={*everything} - {*names})
            return Offsets(self.instance_id, {}, reached, highest, missing=late)
        reached = {name: stamped(views.get(name), offset) for name, offset in reached.items()}
        return Offsets(self.instance_id, reached)

    def _selected(self, known: Mapping[str, Offset]) -> Mapping[str, Offset]:
        """Return the offsets of a checkpoint without those of what is not selected any more.

        Raises:
            ConfigError: there are some, and that is to fail.
        """
        selection = self._options.selection
        others = sorted(name for name in known if not selection.selects(name))
        if others and not self._options.drops_unselected:
            raise ConfigError(
                f"the checkpoint has read {', '.join(others[:5])}, which {selection} does not "
                "select; dropUnselected=true goes on without it, and another checkpointLocation "
                "starts again"
            )
        return {name: offset for name, offset in known.items() if name not in others}

    async def _limited(
        self, views: dict[str, View], starts: Mapping[str, Offset], ends: Mapping[str, Offset]
    ) -> tuple[dict[str, View], dict[str, Offset]]:
        """Return what there is without ledgers that are gone, and ends within the limits."""
        while True:
            try:
                return views, await limited(views, starts, ends, self._limits())
            except NoSuchLedgerInMetadataError as error:
                gone = error.ledger_id
                name = next(
                    (
                        name
                        for name, view in views.items()
                        if gone in [extent.ledger_id for extent in view.extents]
                    ),
                    None,
                )
                if gone is None or name is None:
                    raise
                views = {**views, name: without_gone(self._options, views[name], gone, error)}

    async def _relocated(self, view: View | None, offset: Offset) -> Offset:
        return await relocated(view, offset, self._views.metadata)

    def _is_due(self, name: str, start: Offsets) -> bool:
        if self._target is not None and name not in self._target:
            return False  # made since this run began
        return not self._is_ledgers or name in start.ledgers or start.is_new(int(name))

    def _missing(self, start: Offsets, highest: int, put_off: set[str]) -> frozenset[int]:
        """Return which ledgers up to the highest are still to come, or left to the next run."""
        assert isinstance(self._views, LedgerViews)
        # Those of another custom metadata are there: a filter that is changed reads none of old.
        there = {*self._views.seen} - {*map(int, put_off)}
        selects = self._options.selection.selects
        return frozenset(n for n in start.missing_up_to(highest, there) if selects(str(n)))

    def _starts(
        self, known: Mapping[str, Offset], names: Sequence[str], views: Mapping[str, View]
    ) -> tuple[dict[str, Offset], dict[str, Offset], list[str]]:
        """Return where what is known begins, where what is new does, and what is gone."""
        options = self._options
        starts, gone = {}, []
        for name, begin in known.items():
            view = views.get(name)
            if view is None:
                if options.fails_on_data_loss:
                    raise DataLossError(
                        f"{name} was deleted; failOnDataLoss=false goes on without it"
                    )
                _log.warning("%s was deleted; going on without it", name)
                gone.append(name)
                continue
            lost = view.lost_before(begin)
            starts[name] = lose(options, lost, view) if lost else begin._replace(birth=view.birth)
        # New ones are in the offsets before anything is read of them, so that a batch that is
        # done again begins where it did.
        new = {
            name: views[name].end if options.new_streams == "latest" else views[name].first
            for name in names
            if name in views and name not in known
        }
        return starts, new, gone

    def _end(self, view: View, begin: Offset) -> Offset:
        end = view.end
        if self._target is not None and view.name in self._target:
            end = min(end, self._target[view.name], key=lambda offset: offset.place)
            end = end._replace(birth=view.birth)
        return end if end.place > begin.place else begin

    def _waits(
        self, views: Mapping[str, View], starts: Mapping[str, Offset], ends: Mapping[str, Offset]
    ) -> bool:
        options = self._options
        if not options.min_entries or self._target is not None:
            return False
        available = sum(views[name].entries_between(starts[name], ends[name]) for name in starts)
        waited_s = (self._clock.now_ns() - self._last_batch_ns) / 1e9
        return available < options.min_entries and waited_s < options.max_trigger_delay_s

    def _limits(self) -> dict[Measure | None, int]:
        options, measures = self._options, Measures(self._views.open_ledgers)
        entries = options.max_entries
        records = options.max_records
        if self._is_ledgers and records:  # an entry by itself is a record
            entries, records = min(entries or records, records), 0
        limits: dict[Measure | None, int] = {}
        if entries:
            limits[None] = entries
        if records:
            limits[measures.records_before] = records
        wanted = 0 if self._pressure is None else self._pressure.limit_bytes
        if options.max_bytes or wanted:
            both = options.max_bytes, wanted
            limits[measures.bytes_before] = min(filter(None, both))
        return limits

    async def _size(
        self, views: Mapping[str, View], starts: Mapping[str, Offset], ends: Mapping[str, Offset]
    ) -> int:
        """Return the bytes of a batch."""
        measure = Measures(self._views.open_ledgers).bytes_before
        return sum(
            [await between(measure, views[name], starts[name], ends[name]) for name in starts]
        )

    async def report(self) -> dict[str, Any] | None:
        """Return what there is, for the progress of the query."""
        if not self._seen:
            return None
        ends = {name: stamped(view, view.end) for name, view in self._seen.items()}
        report = self._offsets(ends, list(ends)).encode()
        report["lag"] = await lag_behind(self._views, self._seen, self._reached, self._clock)
        return report

    # Tasks ---------------------------------------------------------------------------------

    async def planned(self, start: Offsets, end: Offsets) -> Offsets:
        """Return the end of a batch with the tasks that it is made of from now on."""
        options = self._options
        tasks = plan(
            list(chain.from_iterable((await self.pieces(start, end)).values())),
            target_bytes=(
                options.target_partition_bytes
                if self._target is None
                else options.ending_partition_bytes
            ),
            max_records=options.max_records_per_partition,
            min_tasks=options.min_partitions,
        )
        return replace(end, cuts=cuts_of(tasks))

    async def pieces(self, start: Offsets, end: Offsets) -> dict[str, list[Piece]]:
        """Return what lies between the offsets of a batch, in the order of the offsets."""
        begins = start.ledgers if self._is_ledgers else start.streams
        ends = end.ledgers if self._is_ledgers else end.streams
        self._selected(begins)
        names = [name for name in ends if name in begins and ends[name] != begins[name]]
        names.sort(key=int if self._is_ledgers else None)
        found = await gather_bounded(
            lambda name: self._pieces_of(name, begins[name], ends[name]), names
        )
        return dict(zip(names, found, strict=True))

    async def _pieces_of(self, name: str, begin: Offset, end: Offset) -> list[Piece]:
        options = self._options
        found = await self._views.view(name)
        begin, end = await self._relocated(found, begin), await self._relocated(found, end)
        view = await self._view_up_to(name, end)
        if view is None:
            return []
        if not is_same_stream(begin.birth, end.birth):
            begin = Offset(end.birth, 0, 0)  # the one that was read so far is gone
        lost = view.lost_before(begin)
        if lost:
            begin = max(lose(options, lost, view), begin)
        return await pieces_between(self._views, options, view, begin, end)

    async def _view_up_to(self, name: str, end: Offset) -> View | None:
        """Return what there is, as far as the batch goes at least."""
        waited_s = 0.0
        while True:
            view = await self._views.view(name)
            if view is not None and is_same_stream(view.birth, end.birth):
                view = view.confirmed_up_to(end)
                if view.end.place >= end.place:
                    return view
            if waited_s >= _PATIENCE_S or (
                view is not None and not is_same_stream(view.birth, end.birth)
            ):
                break
            await asyncio.sleep(_PAUSE_S)
            waited_s += _PAUSE_S
            self._views.look_again(name)
        what = f"{name} ends before {end.segment}:{end.entry}, where this batch ends, or is gone"
        if self._options.fails_on_data_loss:
            raise DataLossError(f"{what}; failOnDataLoss=false goes on with what is left")
        _log.warning("%s; it is left out", what)
        return None
