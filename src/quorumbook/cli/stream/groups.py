"""``quorumbook stream groups``: who consumes a partitioned stream, and how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.stream.keeping import cursor_row
from quorumbook.cli.stream.options import (
    WHERE,
    name_argument,
    namespace_option,
    opened,
    parse_start,
)

if TYPE_CHECKING:
    from quorumbook.streams import Cursor, GroupInfo
    from quorumbook.streams.errors import StreamError

_COLUMNS = ["group", "generation", "partition", "member", "position", "records", "bytes", "age_s",
            "acknowledged", "refused"]  # fmt: skip


@click.command(cls=ClusterCommand)
@name_argument
@click.option("--group", metavar="GROUP", help="Only this group.")
@click.option("--reset", nargs=2, metavar="GROUP WHERE",
              help=f"Move a group, in all partitions: {WHERE}.")  # fmt: skip
@click.option("--delete", "deleted", metavar="GROUP", help="Delete a group that has no members.")
@namespace_option
@click.pass_obj
def groups(
    call: Call, name: str, group: str | None, reset: tuple[str, str] | None, deleted: str | None,
    path: str,
) -> None:  # fmt: skip
    """List the groups that consume a partitioned stream, and what is still before them."""

    async def run() -> list[dict[str, object]]:
        from quorumbook.streams.partitions.stream import PartitionedStream, reset_group

        async with opened(call, path) as namespace:
            stream = await PartitionedStream.open(namespace, name)
            if reset is not None:
                await reset_group(stream, reset[0], parse_start(reset[1]))
            if deleted is not None:
                await stream.delete_group(deleted)
            found = await stream.groups() if group is None else [await stream.group(group)]
            for info in found:
                for damage in _damage(info):
                    call.warn(
                        "metadata-format", f"{damage}; `--delete {info.name}` removes the group"
                    )
            return [row for info in found for row in await _rows(info)]

    call.output.rows(
        call.run(run()), _COLUMNS, empty="no group; `PartitionedStream.consumer` makes them"
    )


def _damage(info: GroupInfo[Cursor]) -> Iterator[StreamError]:
    for damage in info.damage, *(cursor.damage for cursor in info.cursors.values() if cursor):
        if damage is not None:
            yield damage


async def _rows(info: GroupInfo[Cursor]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, cursor in info.cursors.items():
        row: dict[str, object] = dict.fromkeys(_COLUMNS)
        if cursor is not None:
            row.update(await cursor_row(cursor))
            row["refused"] = len(cursor.acks.refused) if cursor.acks else 0
        row |= {
            "group": info.name, "generation": info.generation, "partition": number,
            "member": info.claims.get(number),
        }  # fmt: skip
        rows.append({column: row[column] for column in _COLUMNS})
    return rows
