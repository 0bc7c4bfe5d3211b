"""What the commands about streams share: their options, the namespace, places in a stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.known.names import stream_names
from quorumbook.cli.values import duration

if TYPE_CHECKING:
    from quorumbook.streams import Namespace, PartitionedStream, Stream
    from quorumbook.streams.reading.seek import Start

WHERE = "earliest, latest, a position as 1:0:2, seq:N, txid:N, or a time: ISO, -1h, yesterday 14:00"

namespace_option = click.option(
    "--namespace", "path", metavar="PATH", default="/streams", show_default=True,
    help="The namespace the stream is in.",
)  # fmt: skip
name_argument = click.argument("name", metavar="NAME", shell_complete=stream_names)
partition_option = click.option(
    "--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition of the"
                " stream.",
)  # fmt: skip
takeover_option = click.option(
    "--takeover", type=click.Choice(["never", "if-expired", "force"]), default="if-expired",
    show_default=True, help="What to do about a segment that another writer left.",
)  # fmt: skip
wait_option = duration("--wait", "wait_s", "0", "Wait so long for another writer to end.")

forget_files_option = click.option(
    "--forget-files", is_flag=True,
    help="Go on where Parquet files of segments are out of reach; they may stay there.",
)  # fmt: skip


def tell_forgotten(call: Call, locations: Sequence[str]) -> None:
    """Say where there may be files that nothing names any more."""
    for location in locations:
        call.warn("files-left", f"files may be left in {location}; nothing names them any more")


@contextlib.asynccontextmanager
async def opened(call: Call, path: str, *, bind: bool = False) -> AsyncIterator[Namespace]:
    """Open the namespace that a command is about."""
    from quorumbook.streams import Namespace

    async with call.connect() as client:
        address = f"{call.metadata_uri}#{path}"
        async with Namespace.open(address, client=client, bind=bind) as namespace:
            yield namespace


async def whole_or_part(
    namespace: Namespace, name: str, partition: int | None
) -> Stream | PartitionedStream:
    """Return a stream by its name: the whole of a partitioned one, or one of its partitions."""
    from quorumbook.streams import PartitionedStream
    from quorumbook.streams.errors import StreamNotFoundError

    try:
        whole = await PartitionedStream.open(namespace, name)
    except StreamNotFoundError:
        if partition is not None:
            raise
        return namespace.stream(name)
    if partition is None:
        return whole
    if partition >= len(whole.partitions):
        raise click.UsageError(
            f"stream {name} has no partition {partition}; the last is {len(whole.partitions) - 1}"
        )
    return whole.partitions[partition]


def parse_start(text: str) -> Start:
    """Read where to begin.

    Raises:
        LocalProtocolError: It is no place; the message says which forms there are.
    """
    from quorumbook.admin.facts.places import parse_place

    return parse_place(text)
