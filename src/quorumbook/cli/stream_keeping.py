"""``quorumbook stream cursors`` and ``retention``: who is how far, and what need not be kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.common import Call, Command
from quorumbook.cli.stream_options import (
    WHERE,
    name_argument,
    namespace_option,
    opened,
    parse_start,
)

if TYPE_CHECKING:
    from quorumbook.streams import Cursor, Stream

_CURSOR_COLUMNS = ["cursor", "position", "records", "bytes", "age_s", "acknowledged",
                   "holds_retention", "overrun"]  # fmt: skip


@click.command(cls=Command)
@name_argument
@click.option("--reset", nargs=2, metavar="CURSOR WHERE",
              help=f"Make a cursor, or take it elsewhere: {WHERE}.")  # fmt: skip
@click.option("--hold", metavar="CURSOR", help="Have retention keep what it has not passed.")
@click.option("--release", metavar="CURSOR", help="Have retention heed it no more.")
@click.option("--delete", "deleted", metavar="CURSOR", help="Forget a cursor.")
@namespace_option
@click.pass_obj
def cursors(
    call: Call, name: str, reset: tuple[str, str] | None, hold: str | None, release: str | None,
    deleted: str | None, path: str,
) -> None:  # fmt: skip
    """List a stream's cursors, and what is still before them."""

    async def run() -> list[dict[str, object]]:
        async with opened(call, path) as namespace:
            stream = namespace.stream(name)
            if reset is not None:
                await _reset(stream, *reset)
            for cursor, holds in (hold, True), (release, False):
                if cursor is not None:
                    await (await _existing(stream, cursor)).hold_retention(holds=holds)
            if deleted is not None:
                await (await _existing(stream, deleted)).delete()
            return [await cursor_row(cursor) for cursor in await stream.cursors()]

    rows = call.run(run())
    call.output.rows(rows, _CURSOR_COLUMNS, empty="no cursor; readers make them, and --reset")


async def _reset(stream: Stream, cursor_name: str, where: str) -> None:
    from quorumbook.streams.cursors.cursor import place

    start = parse_start(where)
    cursor = await stream.cursor(cursor_name, start=start)
    await cursor.reset(await place(stream.context, start))


async def _existing(stream: Stream, name: str) -> Cursor:
    for cursor in await stream.cursors():
        if cursor.name == name:
            return cursor
    raise click.UsageError(f"stream {stream.name} has no cursor {name}")


async def cursor_row(cursor: Cursor) -> dict[str, object]:
    """Return what is shown of a cursor."""
    lag = await cursor.lag()
    return {
        "cursor": cursor.name,
        "position": str(cursor.position),
        "records": lag.records,
        "bytes": lag.size_bytes,
        "age_s": lag.age_s,
        "acknowledged": 0 if cursor.acks is None else cursor.acks.count,
        "holds_retention": cursor.holds_retention,
        "overrun": cursor.is_overrun,
    }


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--dry-run", is_flag=True, help="Say what would go, and delete nothing.")
@click.option("--every", "interval_s", type=click.FloatRange(min=0, min_open=True),
              metavar="SECONDS", help="Do so again and again.")  # fmt: skip
@namespace_option
@click.pass_obj
def retention(
    call: Call, names: Sequence[str], dry_run: bool, interval_s: float | None, path: str
) -> None:
    """Delete what streams need not keep, by their policies and cursors.

    All streams of the namespace if none is named.  A stream's writer does it by itself; this is
    for streams that nobody writes.
    """

    async def once() -> None:
        rows: list[dict[str, object]] = []
        async with opened(call, path) as namespace:
            chosen = list(names) or [each async for each in namespace.streams()]
            for name in chosen:
                report = await namespace.stream(name).enforce_retention(dry_run=dry_run)
                rows += [
                    {"name": name, "segment": each.number, "ledger_id": each.ledger_id,
                     "records": each.record_count, "reason": str(each.reason)}
                    for each in report.segments
                ]  # fmt: skip
                for cursor in report.overrun:
                    call.note(f"cursor {cursor} of stream {name} had not passed what goes")
        columns = ["name", "segment", "ledger_id", "records", "reason"]
        call.output.rows(rows, columns, empty="nothing goes")

    async def run() -> None:
        await once()
        while interval_s is not None:
            await asyncio.sleep(interval_s)
            await once()

    call.run(run())
