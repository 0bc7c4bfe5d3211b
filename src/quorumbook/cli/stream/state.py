"""``quorumbook stream show``, ``segments``, ``truncate`` and ``seal``: streams as a whole.

Of a partitioned stream they are about all partitions, with a line for each.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quorumbook.admin.facts.words import of_policy
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import RAW, TABLE, Worded
from quorumbook.cli.stream.options import (
    name_argument,
    namespace_option,
    opened,
    parse_start,
    partition_option,
    takeover_option,
    wait_option,
    whole_or_part,
)
from quorumbook.errors import QuorumbookError

if TYPE_CHECKING:
    from quorumbook.streams import Stream, StreamInfo
    from quorumbook.streams.errors import StreamError

_PART_COLUMNS = ["name", "segments", "records_completed", "first_active", "max_txid", "sealed",
                 "writer"]  # fmt: skip
_SEGMENT_COLUMNS = ["segment", "ledger_id", "state", "truncated", "first_sequence", "records",
                    "first_txid", "last_txid", "first_active"]  # fmt: skip


@click.command(cls=ClusterCommand)
@name_argument
@partition_option
@namespace_option
@click.pass_obj
def show(call: Call, name: str, partition: int | None, path: str) -> None:
    """Show what the metadata say of a stream: its policy, its size, its writer.

    Of a partitioned stream, that of all partitions together and of each.
    """
    damaged = partial(_say_damaged, call)

    async def run() -> list[StreamInfo] | StreamInfo:
        from quorumbook.streams import PartitionedStream

        async with opened(call, path) as namespace:
            found = await whole_or_part(namespace, name, partition)
            if isinstance(found, PartitionedStream):
                return [await part.info(damaged) for part in found.partitions]
            return await found.info(damaged)

    found = call.run(run())
    if not isinstance(found, list):
        call.output.record({**_shown(found), "policy": _worded(found.policy.given())})
        return
    rows = [_shown(info) for info in found]
    totals: dict[str, object] = {
        "name": name.removeprefix("/"),
        "partitions": len(found),
        "segments": sum(len(info.segments) for info in found),
        "records_completed": sum(info.record_count for info in found),
        "sealed": all(info.is_sealed for info in found),
        "policy": _worded(
            {
                key: value
                for key, value in found[0].policy.given().items()
                if all(getattr(info.policy, key) == value for info in found)
            }
        ),
    }
    if call.output.form in (TABLE, RAW):
        call.output.record(totals)
        call.output.rows(rows, _PART_COLUMNS)
    else:
        call.output.record({**totals, "partitions": rows})


def _worded(policy: dict[str, object]) -> Worded:
    """Return a policy, of which people see what differs from the default."""
    from quorumbook.streams.metadata.policy import DEFAULTS

    usual = DEFAULTS.given()
    changed = {
        key: value for key, value in policy.items() if value not in (usual.get(key, ""), None)
    }
    text = " ".join(f"{key}={of_policy(value, key)}" for key, value in changed.items())
    return Worded(policy, f"{text or 'as usual'} (all: quorumbook stream policy NAME)")


def _shown(info: StreamInfo) -> dict[str, object]:
    first = next((s for s in info.segments if s.metadata.status & 3 < 2), None)
    return {
        "name": info.name,
        "segments": len(info.segments),
        "records_completed": info.record_count,
        "first_active": str(first.metadata.first_active) if first else None,
        "max_txid": None if info.is_sealed else info.max_txid,
        "sealed": info.is_sealed,
        "writer": info.writer or None,
    }


@click.command(cls=ClusterCommand)
@name_argument
@partition_option
@namespace_option
@click.pass_obj
def segments(call: Call, name: str, partition: int | None, path: str) -> None:
    """List a stream's segments, each of which is a ledger."""

    async def run() -> tuple[list[dict[str, object]], list[str]]:
        from quorumbook.streams import PartitionedStream

        async with opened(call, path) as namespace:
            found = await whole_or_part(namespace, name, partition)
            if not isinstance(found, PartitionedStream):
                return await _segment_rows(call, found), _SEGMENT_COLUMNS
            rows = [
                {"partition": number, **row}
                for number, part in enumerate(found.partitions)
                for row in await _segment_rows(call, part)
            ]
            return rows, ["partition", *_SEGMENT_COLUMNS]

    call.output.rows(*call.run(run()), empty="nothing was written yet")


def _say_damaged(call: Call, error: StreamError) -> None:
    call.warn(
        "metadata-format",
        f"a segment is left out, and readers of the stream stop at it: {error}",
    )


async def _segment_rows(call: Call, stream: Stream) -> list[dict[str, object]]:
    return [
        {
            "segment": segment.metadata.number,
            "ledger_id": segment.metadata.ledger_id,
            "state": "in progress" if segment.metadata.is_in_progress else "completed",
            "truncated": segment.metadata.truncation.name.lower().replace("_", " "),
            "first_sequence": max(segment.start_sequence_id, -1),
            "records": segment.metadata.record_count,
            "first_txid": segment.metadata.first_txid,
            "last_txid": segment.metadata.last_txid,
            "first_active": str(segment.metadata.first_active),
        }
        for segment in await stream.readable_segments(partial(_say_damaged, call))
    ]


@click.command(cls=ClusterCommand)
@name_argument
@click.option("--before", "where", required=True, metavar="WHERE",
              help="The first record that stays: a position, seq:N, txid:N, or a time in ISO "
                   "form.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@partition_option
@namespace_option
@click.pass_obj
def truncate(
    call: Call, name: str, where: str, dry_run: bool, partition: int | None, path: str
) -> None:
    """Cut off what lies before a record.

    In a partitioned stream that is a time; positions and numbers are those of one partition.
    """
    from quorumbook.streams.reading.seek import Time

    before: Any = parse_start(where)
    if isinstance(before, str):
        raise click.UsageError("--before must be a position, seq:N, txid:N, or a time")

    async def run() -> tuple[list[dict[str, object]], list[str]]:
        from quorumbook.streams import PartitionedStream

        columns = ["segment", "first_active"]
        async with opened(call, path) as namespace:
            found = await whole_or_part(namespace, name, partition)
            if not isinstance(found, PartitionedStream):
                done = {0: await found.truncate(before, dry_run=dry_run)}
            elif isinstance(before, Time):
                columns.insert(0, "partition")
                done = await found.truncate(before, dry_run=dry_run)
            else:
                raise click.UsageError(
                    f"{where} is a place in one partition: add --partition, or use a time"
                )
            rows = [
                {
                    "partition": number,
                    "segment": each.number,
                    "first_active": str(each.first_active or "none"),
                }
                for number, changed in done.items()
                for each in changed
            ]
            return [{column: row[column] for column in columns} for row in rows], columns

    call.output.rows(*call.run(run()), empty="nothing is before that")


@click.command(cls=ClusterCommand)
@name_argument
@partition_option
@takeover_option
@wait_option
@namespace_option
@click.pass_obj
def seal(
    call: Call, name: str, partition: int | None, takeover: str, wait_s: float, path: str
) -> None:
    """End a stream permanently: nobody appends to it again.

    Of a partitioned stream all partitions are sealed, and none while somebody writes one of them.
    What is printed is how they are then; where some could not be sealed, the command can be given
    again.
    """
    options: Any = {"takeover": takeover.replace("-", "_"), "wait_for_lock_s": wait_s}
    parts: list[dict[str, object]] = []

    async def run() -> dict[str, object] | None:
        from quorumbook.streams import PartitionedStream

        async with opened(call, path) as namespace:
            found = await whole_or_part(namespace, name, partition)
            if not isinstance(found, PartitionedStream):
                async with found.writer(**options) as writer:
                    records = writer.next_sequence_id
                    await writer.seal()
                return {"name": found.name, "state": "sealed", "records": records}
            try:
                await found.seal(**options)
            finally:
                with contextlib.suppress(QuorumbookError):
                    parts.extend([_end(await part.info()) for part in found.partitions])
            return None

    try:
        sealed = call.run(run())
    finally:
        if parts:
            call.output.rows(parts, ["name", "state", "records"])
    if sealed is not None:
        call.output.record(sealed)


def _end(info: StreamInfo) -> dict[str, object]:
    ends = [
        segment.start_sequence_id + segment.metadata.record_count
        for segment in info.segments
        if not segment.metadata.is_in_progress
    ]
    state = "sealed" if info.is_sealed else "not sealed"
    return {"name": info.name, "state": state, "records": max([0, *ends])}
