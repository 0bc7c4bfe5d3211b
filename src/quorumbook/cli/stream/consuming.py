"""``quorumbook stream consume``: a member of a group, from a terminal or a script.

A record counts as done when it was printed, or when the command that got it ended well; until then
it comes again, here or to another member.  Ctrl-C lets what is in hand be finished, and leaves the
group, so that the others have the partitions at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import RAW
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.serving.stopping import stop_wanted
from quorumbook.cli.stream.options import (
    name_argument,
    namespace_option,
    opened,
    parse_start,
)
from quorumbook.cli.stream.output import RecordPrinter, decode_option, key_separator_option
from quorumbook.cli.values import duration

if TYPE_CHECKING:
    from quorumbook.streams import Consumer, Delivery, Namespace, PartitionedStream

    #: Handles records, and returns how many.
    Work = Callable[[list[Delivery]], Awaitable[int]]

_ACK, _NACK, _LEAVE = "ack", "nack", "leave"
_AT_ONCE = 1000


@click.command(cls=ClusterCommand, form=RAW, has_log=True)
@name_argument
@click.option("--group", required=True, metavar="GROUP", help="The consumer group to join.")
@click.option("--from", "start", default="earliest", metavar="WHERE", show_default=True,
              help="Where a new group begins: earliest, latest, or a time.")  # fmt: skip
@click.option("--then", type=click.Choice([_ACK, _NACK, _LEAVE]), default=_ACK, show_default=True,
              help="Acknowledge a printed record, refuse it, or leave it as it was.")  # fmt: skip
@click.option("--exec", "command", metavar="COMMAND",
              help="Run this in a shell for each record, which it reads from standard input; if it "
                   "fails, the record is refused.")  # fmt: skip
@duration("--delay", "delay_s", "0", "Hand a refused record out again after so long at least.")
@click.option("--max-deliveries", type=click.IntRange(min=0), default=0, metavar="N",
              help="Give up a record after N refusals [default: never].")  # fmt: skip
@click.option("--dead-letter", metavar="STREAM", help="Where records that are given up go.")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="End after this many records."
)
@duration("--idle", "idle_s", None, "End when no record came for so long.", minimum=0.001)
@decode_option
@key_separator_option
@namespace_option
@click.pass_obj
def consume(
    call: Call, name: str, group: str, start: str, then: str, command: str | None, delay_s: float,
    max_deliveries: int, dead_letter: str | None, count: int | None, idle_s: float | None,
    decode: str, key_separator: str | None, path: str,
) -> None:  # fmt: skip
    """Print a group's records as they come, and count them as done.

    Several of these share the partitions of a stream out.  Each record is handed out at least once.
    """
    if command is not None and then != _ACK:
        raise click.UsageError("with --exec, the command's exit code says what becomes of a record")
    begin_log(call.settings, is_verbose=call.is_verbose, usual="warning")
    printer = RecordPrinter(call.output.form, decode, key_separator)
    options: dict[str, Any] = {
        "start": parse_start(start), "auto_commit_s": 0, "max_deliveries": max_deliveries,
        "dead_letter": dead_letter,
    }  # fmt: skip
    wanted = _Wanted(count if count is not None else sys.maxsize, idle_s)

    async def run() -> None:
        stop = await stop_wanted()
        async with opened(call, path) as namespace:
            stream = await _partitioned(namespace, name)
            if printer.needs_decoder:
                printer.decode_by(await stream.decoder())
            # Left as if it had failed: what is done was said, and nothing else is.
            async with contextlib.AsyncExitStack() as stack:
                consumer = await stream.consumer(group, **options)
                stack.push_async_callback(consumer.close)
                work = (
                    _printing(consumer, printer, then, delay_s)
                    if command is None
                    else _running(consumer, command, delay_s, call.warn, stop)
                )
                handled = await _consume(consumer, work, wanted, stop, call.warn)
        printer.finish()
        call.note(f"{handled} {'record' if handled == 1 else 'records'} for group {group}")

    call.run(run())


@dataclass(frozen=True, slots=True)
class _Wanted:
    count: int
    idle_s: float | None


async def _partitioned(namespace: Namespace, name: str) -> PartitionedStream:
    """Return a stream that has groups.

    Raises:
        UsageError: It is not partitioned.
    """
    from quorumbook.streams import PartitionedStream
    from quorumbook.streams.errors import StreamNotFoundError

    try:
        return await PartitionedStream.open(namespace, name)
    except StreamNotFoundError:
        await namespace.stream(name).info()  # says if there is none at all
    raise click.UsageError(
        f"stream {name} has no partitions, which is what members of a group share; "
        f"`quorumbook stream read {name}` reads it, and `stream create NAME --partitions 1` makes "
        "one that has groups"
    )


async def _consume(
    consumer: Consumer, work: Work, wanted: _Wanted, stop: asyncio.Event,
    warn: Callable[[str, str], None],
) -> int:  # fmt: skip
    """Hand records to the work until it is enough; return how many."""
    from quorumbook.streams.errors import PartitionLostError

    handled = 0
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while handled < wanted.count and not stop.is_set():
            limit = min(_AT_ONCE, wanted.count - handled)
            reading = asyncio.ensure_future(consumer.read(limit, wait_s=wanted.idle_s))
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
            if reading.cancelled():
                break
            found = reading.result()
            if not found:
                break
            try:
                handled += await work(found)
            except PartitionLostError as error:
                warn("partition-lost", f"{error}")  # another member has them, or soon will
    finally:
        stopping.cancel()
    return handled


def _printing(consumer: Consumer, printer: RecordPrinter, then: str, delay_s: float) -> Work:
    async def work(found: list[Delivery]) -> int:
        for each in found:
            printer.show_one(each.record, each.partition)
        sys.stdout.flush()  # whoever reads them has them, before they count as done
        if then == _ACK:
            await consumer.ack(*found)
        elif then == _NACK:
            await consumer.nack(*found, delay_s=delay_s)
        return len(found)

    return work


def _running(
    consumer: Consumer, command: str, delay_s: float, warn: Callable[[str, str], None],
    stop: asyncio.Event,
) -> Work:  # fmt: skip
    async def work(found: list[Delivery]) -> int:
        handled = 0
        for each in found:
            if stop.is_set():
                break
            # Of a session of its own: Ctrl-C is for us, and lets it finish.
            process = await asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            await process.communicate(each.record.payload)
            if process.returncode == 0:
                await consumer.ack(each)
            else:
                warn(
                    "records-refused",
                    f"record {each.record.sequence_id} of partition {each.partition} is refused: "
                    f"the command ended with {process.returncode}",
                )
                await consumer.nack(each, delay_s=delay_s)
            handled += 1
        return handled

    return work
