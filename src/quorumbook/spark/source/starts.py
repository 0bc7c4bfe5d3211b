"""Finds where a query begins and a batch ends: offsets out of record numbers and times."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from quorumbook.errors import ConfigError
from quorumbook.spark.request.offsets import Offset
from quorumbook.spark.request.where import (
    EARLIEST,
    LATEST,
    MessagePlace,
    Place,
    TxidPlace,
    Where,
)
from quorumbook.spark.rows.stream_views import StreamViews
from quorumbook.spark.rows.topic_views import TopicViews
from quorumbook.spark.rows.views import View, Views
from quorumbook.streams.errors import PositionTruncatedError
from quorumbook.streams.reading.seek import find_sequence_id, find_time, find_txid


@dataclass(frozen=True, slots=True)
class _Moment:
    """A time as seeking takes it."""

    time_ms: int

    def timestamp(self) -> float:
        """Return the seconds since 1970."""
        return self.time_ms / 1000


async def resolve(where: Where, view: View, views: Views, *, is_strict_time: bool) -> Offset:
    """Return the offset that an end stands for.

    Args:
        where: Which end.
        view: What is there.
        views: By which streams are searched.
        is_strict_time: It is an error if nothing was appended at a time or later.

    Raises:
        PositionTruncatedError: that record was truncated away.
        ConfigError: see ``is_strict_time``; or a ledger is asked for a time or a transaction id;
            or a number is beyond the one that comes next.
    """
    time_ms = where.time_of(view.name, view.title)
    if time_ms is not None:
        return await _at_time(where, view, views, time_ms, is_strict=is_strict_time)
    place = where.place_of(view.name, view.title)
    if isinstance(place, Offset):
        return place
    if place == EARLIEST:
        return view.first
    if place == LATEST:
        return view.end
    if isinstance(views, TopicViews) or isinstance(place, MessagePlace):
        return _of_topic(where, place, view, views)
    if isinstance(place, TxidPlace):
        if not isinstance(views, StreamViews):
            raise ConfigError(f"{where.option}: entries of {view.name} have no transaction ids")
        found = Offset(view.birth, *await find_txid(views.context(view.name), place.txid))
        return min(found, view.end, key=lambda each: each.place)
    if not isinstance(views, StreamViews):
        if place > view.end.entry:
            raise _beyond(where, place, view)
        return Offset(0, 0, place)
    context = views.context(view.name)
    found = Offset(view.birth, *await find_sequence_id(context, place))
    if place and found.place >= view.end.place:
        with contextlib.suppress(PositionTruncatedError):  # then it was there
            before = Offset(view.birth, *await find_sequence_id(context, place - 1))
            if before.place >= view.end.place:
                raise _beyond(where, place, view)
    return found


def _of_topic(where: Where, place: Place, view: View, views: Views) -> Offset:
    if not isinstance(views, TopicViews) or not isinstance(place, MessagePlace):
        raise ConfigError(
            f"{where.option}: {place!r} is not a place in {view.name}: streams and ledgers take a "
            'number, topics of Pulsar LEDGER:ENTRY, as in "12:40"'
        )
    found = Offset(view.birth, *place)
    if found.place > view.end.place:
        raise ConfigError(
            f"{where.option}: {found.segment}:{found.entry} is beyond the end of {view.name}, "
            f"{view.end.segment}:{view.end.entry}; -1 stands for the latest"
        )
    return found


def _beyond(where: Where, place: int, view: View) -> ConfigError:
    return ConfigError(
        f"{where.option}: {place} is beyond the end of {view.name}, where {place - 1} is not yet "
        "either; -1 stands for the latest"
    )


async def _at_time(
    where: Where, view: View, views: Views, time_ms: int, *, is_strict: bool
) -> Offset:
    if isinstance(views, TopicViews):
        found = await views.find_time(view, time_ms)
    elif isinstance(views, StreamViews):
        position = await find_time(views.context(view.name), _Moment(time_ms))
        found = Offset(view.birth, *position)
    else:
        raise ConfigError("ledgers have no times; begin at an entry id, or read a stream")
    if found.place >= view.end.place:
        if is_strict:
            raise ConfigError(
                f"nothing was appended to {view.name} at {time_ms} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins with what comes next"
            )
        return view.end
    return found


def after_truncation(error: PositionTruncatedError, view: View, *, fails: bool) -> Offset:
    """Return where to begin although records are gone, unless that is to fail."""
    if fails:
        raise error
    return view.first
