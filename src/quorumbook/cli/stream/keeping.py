"""``quorumbook stream cursors`` and ``retention``: who is how far, and what need not be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.errors import UnknownNameError
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.stream.options import (
    WHERE,
    forget_files_option,
    name_argument,
    namespace_option,
    opened,
    parse_start,
    partition_option,
    tell_forgotten,
    whole_or_part,
)
from quorumbook.cli.values import duration
from quorumbook.streams.stream_context import stream_context

if TYPE_CHECKING:
    from quorumbook.streams import Cursor, Namespace, Stream

_CURSOR_COLUMNS = ["cursor", "position", "records", "bytes", "age_s", "acknowledged",
                   "holds_retention", "overrun"]  # fmt: skip


@click.command(cls=ClusterCommand)
@name_argument
@click.option("--reset", nargs=2, metavar="CURSOR WHERE",
              help=f"Make a cursor, or move it: {WHERE}.")  # fmt: skip
@click.option(
    "--hold", metavar="CURSOR", help="Have retention keep what this cursor has not passed."
)
@click.option("--release", metavar="CURSOR", help="Let retention ignore this cursor from now on.")
@click.option("--delete", "deleted", metavar="CURSOR", help="Delete a cursor.")
@partition_option
@namespace_option
@click.pass_obj
def cursors(
    call: Call, name: str, reset: tuple[str, str] | None, hold: str | None, release: str | None,
    deleted: str | None, partition: int | None, path: str,
) -> None:  # fmt: skip
    """List a stream's cursors, and what is still before them.

    Of a partitioned stream, those of all partitions; each has its own.  What is changed is changed
    in every partition that has the cursor, and made in all.
    """

    async def run() -> tuple[list[dict[str, object]], list[str]]:
        from quorumbook.streams import PartitionedStream

        async with opened(call, path) as namespace:
            found = await whole_or_part(namespace, name, partition)
            is_whole = isinstance(found, PartitionedStream)
            streams = found.partitions if isinstance(found, PartitionedStream) else (found,)
            if reset is not None:
                await _reset(streams, *reset, is_whole=is_whole)
            for cursor_name, holds in (hold, True), (release, False):
                if cursor_name is not None:
                    for cursor in await _existing(streams, name, cursor_name):
                        await cursor.hold_retention(holds=holds)
            if deleted is not None:
                for cursor in await _existing(streams, name, deleted):
                    await cursor.delete()
            found_cursors = [
                (number, cursor)
                for number, stream in enumerate(streams)
                for cursor in await stream.cursors()
            ]
            for damage in filter(None, [cursor.damage for _, cursor in found_cursors]):
                call.warn(
                    "metadata-format",
                    f"{damage}; --delete removes it, and retention keeps to it",
                )
            rows = [
                {"partition": number, **await cursor_row(cursor)}
                for number, cursor in found_cursors
            ]
            columns = ["partition", *_CURSOR_COLUMNS] if is_whole else _CURSOR_COLUMNS
            return [{column: row[column] for column in columns} for row in rows], columns

    call.output.rows(*call.run(run()), empty="no cursor; readers make them, and --reset")


async def _reset(
    streams: Sequence[Stream], cursor_name: str, where: str, *, is_whole: bool
) -> None:
    from quorumbook.streams.reading.seek import Time, place

    start = parse_start(where)
    if is_whole and not isinstance(start, str | Time):
        raise click.UsageError(
            f"{where} is a place in one partition: add --partition, or use earliest, latest or a "
            "time"
        )
    for stream in streams:
        cursor = await stream.cursor(cursor_name, start=start)
        await cursor.reset(await place(stream_context(stream), start))


async def _existing(streams: Sequence[Stream], name: str, cursor_name: str) -> list[Cursor]:
    found = [
        cursor
        for stream in streams
        for cursor in await stream.cursors()
        if cursor.name == cursor_name
    ]
    if not found:
        raise UnknownNameError(f"stream {name} has no cursor {cursor_name}")
    return found


async def cursor_row(cursor: Cursor) -> dict[str, object]:
    """Return what is shown of a cursor; no lag where a segment before it is damaged."""
    from quorumbook.streams.cursors.shown import row_to_show

    return (await row_to_show(cursor))[0]


@click.command(cls=ClusterCommand, has_log=True)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
@duration("--every", "interval_s", None, "Do so again and again.", minimum=0.001)
@forget_files_option
@namespace_option
@click.pass_obj
def retention(
    call: Call,
    names: Sequence[str],
    dry_run: bool,
    interval_s: float | None,
    forget_files: bool,
    path: str,
) -> None:
    """Delete what streams need not keep, by their policies and cursors.

    All streams of the namespace if none is named; of a partitioned one, all its partitions.  A
    stream's writer does it by itself; this is for streams that nobody writes.
    """
    begin_log(call.settings, is_verbose=call.is_verbose, usual="warning")

    async def once() -> None:
        rows: list[dict[str, object]] = []
        async with opened(call, path) as namespace:
            for stream in await _chosen(namespace, names):
                report = await stream.enforce_retention(dry_run=dry_run, forget_files=forget_files)
                tell_forgotten(call, report.forgotten)
                rows += [
                    {"name": stream.name, "segment": each.number, "ledger_id": each.ledger_id,
                     "records": each.record_count, "reason": str(each.reason)}
                    for each in report.segments
                ]  # fmt: skip
                for cursor in report.overrun:
                    call.warn(
                        "cursor-overrun",
                        f"cursor {cursor} of stream {stream.name} had not passed what goes",
                    )
        columns = ["name", "segment", "ledger_id", "records", "reason"]
        call.output.rows(rows, columns, empty="nothing goes")

    async def run() -> None:
        await once()
        while interval_s is not None:
            await asyncio.sleep(interval_s)
            await once()

    call.run(run())


async def _chosen(namespace: Namespace, names: Sequence[str]) -> list[Stream]:
    """Return the streams of these names, with all partitions; without a name, all there are."""
    from quorumbook.streams import PartitionedStream

    if not names:
        return [namespace.stream(name) async for name in namespace.streams()]
    chosen: list[Stream] = []
    for name in names:
        found = await whole_or_part(namespace, name, None)
        chosen += found.partitions if isinstance(found, PartitionedStream) else [found]
    return chosen
