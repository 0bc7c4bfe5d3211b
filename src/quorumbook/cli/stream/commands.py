"""``quorumbook stream``: unbounded logs that can be written again and again."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from quorumbook.admin.facts.words import counted
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.errors import FAILED, FOUND
from quorumbook.cli.lines import refuse_unreadable
from quorumbook.cli.output import RAW
from quorumbook.cli.progress import progress
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.stream.consuming import consume
from quorumbook.cli.stream.groups import groups
from quorumbook.cli.stream.input import abort, append_lines, encoded_form, json_form, line_form
from quorumbook.cli.stream.keeping import cursors, retention
from quorumbook.cli.stream.listing import ls
from quorumbook.cli.stream.options import (
    WHERE,
    forget_files_option,
    name_argument,
    namespace_option,
    opened,
    parse_start,
    partition_option,
    takeover_option,
    tell_forgotten,
    wait_option,
    whole_or_part,
)
from quorumbook.cli.stream.output import (
    RecordPrinter,
    decode_option,
    gap_line,
    key_separator_option,
)
from quorumbook.cli.stream.policies import alter, orphans, policy_texts
from quorumbook.cli.stream.policies import policy as policy_command
from quorumbook.cli.stream.schemas import schema
from quorumbook.cli.stream.state import seal, segments, show, truncate

if TYPE_CHECKING:
    from quorumbook.streams import (
        Namespace,
        PartitionedReader,
        StreamReader,
    )
    from quorumbook.streams.reading.seek import Time


@click.group(cls=Commands)
def stream() -> None:
    """Create, write, read and truncate streams.

    A stream has no end: it can be written again and again, by one writer at a time, and read
    while it is written.  Its format is DistributedLog's.
    """


stream.add_command(ls)


@stream.command(cls=ClusterCommand, form=RAW)
@name_argument
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME=VALUE",
    help="A policy of the stream's own; may be given several times.",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), metavar="N",
              help="Make this many partitions: streams NAME/p0, NAME/p1, …")  # fmt: skip
@click.option("--exist-ok", is_flag=True, help="Do not fail if the stream exists.")
@namespace_option
@click.pass_obj
def create(
    call: Call, name: str, policies: Sequence[str], partitions: int | None, exist_ok: bool,
    path: str,
) -> None:  # fmt: skip
    """Create a stream, and its namespace if that is missing."""
    from quorumbook.streams import PartitionedStream, StreamPolicy

    policy = StreamPolicy.parse(policy_texts(policies, "--policy"), "--policy")

    async def run() -> None:
        async with opened(call, path, bind=True) as namespace:
            options: Any = {"policy": policy, "exist_ok": exist_ok}
            if partitions is None:
                call.output.record({"name": (await namespace.create_stream(name, **options)).name})
                return
            made = await PartitionedStream.create(namespace, name, partitions=partitions, **options)
            call.output.rows([{"name": part.name} for part in made.partitions], ["name"])

    call.run(run())


@stream.command(cls=ClusterCommand)
@name_argument
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--expect", type=click.IntRange(min=0), metavar="N",
              help="Write only if the first record gets this sequence id.")  # fmt: skip
@click.option("--input", "input_form", type=click.Choice(["lines", "jsonl"]), default="lines",
              show_default=True, help="Whether a line is a payload, or a whole record as"
                                      " JSON.")  # fmt: skip
@click.option(
    "--key-separator", metavar="TEXT", help="The part of a line before TEXT is the record's key."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="A header for every record; may be given several times.")  # fmt: skip
@click.option("--encode", is_flag=True,
              help="Records are JSON; encode each by the stream's schema.")  # fmt: skip
@partition_option
@takeover_option
@wait_option
@namespace_option
@click.pass_obj
def write(
    call: Call, name: str, files: Sequence[str], expect: int | None, input_form: str,
    key_separator: str | None, headers: Sequence[str], encode: bool, partition: int | None,
    takeover: str, wait_s: float, path: str,
) -> None:  # fmt: skip
    """Append the lines of files, or of standard input, as records.

    A line is appended as soon as it arrives; in a partitioned stream, to its key's partition, or
    to the next in turn.
    """
    refuse_unreadable(files)
    if input_form == "jsonl" and (key_separator is not None or headers):
        raise click.UsageError("with --input jsonl keys and headers are in the lines")
    form = json_form if input_form == "jsonl" else line_form(key_separator, headers)
    from quorumbook.streams import PartitionedStream

    async def run() -> dict[str, object]:
        async with opened(call, path) as namespace:
            is_typed = not files and sys.stdin.isatty()
            options: Any = {"takeover": takeover.replace("-", "_"), "wait_for_lock_s": wait_s}
            first: int | None = None
            written = unknown = 0
            is_open = False

            def give_up(records: int) -> None:
                nonlocal unknown
                unknown += records

            def count(records: int) -> None:
                nonlocal written
                written += records
                advance(records)

            found = await whole_or_part(namespace, name, partition)
            taken = encoded_form(form, await found.decoder()) if encode else form
            if expect is not None and isinstance(found, PartitionedStream):
                raise click.UsageError("--expect counts in one partition: add --partition")
            try:
                async with found.writer(**options) as writer:
                    is_open = True
                    first = getattr(writer, "next_sequence_id", None)
                    with progress("writing", None, is_wanted=not is_typed) as advance:
                        try:
                            await append_lines(writer, files, taken, expect, count, give_up)
                        except asyncio.CancelledError:
                            # Closing would wait for bookies that may not come back.
                            await abort(writer)
                            raise
            finally:
                if is_open:
                    call.note(f"{counted(written, 'record')} in stream {name}")
                if unknown:
                    call.note(
                        f"{counted(unknown, 'more record')} not acknowledged when this ended: look "
                        f"in the stream before you write them again (quorumbook stream read {name})"
                    )
            return {"name": name, "first_sequence": first, "records": written}

    row = call.run(run())
    call.output.record(row)


@stream.command(cls=ClusterCommand, form=RAW)
@name_argument
@click.option("--from", "start", default="earliest", metavar="WHERE", help=f"{WHERE} [earliest].")
@decode_option
@key_separator_option
@click.option("--end", metavar="POSITION", help="Stop before this position.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many records.")
@click.option(
    "--skip-truncated",
    is_flag=True,
    help="If the beginning was truncated, begin with what is left.",
)
@click.option("--skip-missing", is_flag=True,
              help="Go on after records that are missing, and say which they are.")  # fmt: skip
@partition_option
@namespace_option
@click.pass_obj
def read(
    call: Call, name: str, start: str, decode: str, key_separator: str | None, end: str | None,
    count: int | None, skip_truncated: bool, skip_missing: bool, partition: int | None,
    path: str,
) -> int:  # fmt: skip
    """Print a stream's records, one in a line, up to the last that is there now."""
    printer = RecordPrinter(call.output.form, decode, key_separator)
    options: dict[str, Any] = {
        "tail": False,
        "on_truncated": "skip" if skip_truncated else "raise",
    }
    if skip_missing:
        options["on_gap"] = "report"
    return call.run(_print(call, path, name, partition, start, end, count, printer, options))


@stream.command(cls=ClusterCommand, form=RAW, has_log=True)
@name_argument
@click.option("--from", "start", default="latest", metavar="WHERE", help=f"{WHERE} [latest].")
@decode_option
@key_separator_option
@click.option("--count", type=click.IntRange(min=1), help="End after this many records.")
@partition_option
@namespace_option
@click.pass_obj
def tail(
    call: Call, name: str, start: str, decode: str, key_separator: str | None, count: int | None,
    partition: int | None, path: str,
) -> None:  # fmt: skip
    """Print records as they are appended, until the stream is sealed."""
    begin_log(call.settings, is_verbose=call.is_verbose, usual="error")
    printer = RecordPrinter(call.output.form, decode, key_separator)
    call.run(_print(call, path, name, partition, start, None, count, printer, {"tail": True}))


async def _print(
    call: Call, path: str, name: str, partition: int | None, start: str, end: str | None,
    count: int | None, printer: RecordPrinter, options: dict[str, Any],
) -> int:  # fmt: skip
    """Print records, and return the exit code."""
    from quorumbook.streams import PartitionedStream, parse_position

    begin: Any = parse_start(start)
    gaps = 0
    async with opened(call, path) as namespace:
        found = await whole_or_part(namespace, name, partition)
        if printer.needs_decoder:
            printer.decode_by(await found.decoder())
        if isinstance(found, PartitionedStream):
            if end is not None or not isinstance(begin, str | datetime):
                raise click.UsageError("a position belongs to one partition: add --partition")
            if options.get("on_gap") == "report":
                raise click.UsageError("--skip-missing works on one partition: add --partition")
            start_time = cast("Time", begin)
            async with found.reader(start_time, **options) as together:
                await _print_partitions(together, count, printer)
        else:
            stop = None if end is None else parse_position(end)
            async with found.reader(begin, end=stop, **options) as reader:
                gaps = await _print_batches(call, reader, count, printer, flushes=options["tail"])
    printer.finish()
    return FOUND if gaps else 0


async def _print_batches(
    call: Call,
    reader: StreamReader,
    count: int | None,
    printer: RecordPrinter,
    *,
    flushes: bool,
) -> int:
    """Print batches, and return how many gaps were among them."""
    from quorumbook.streams import Notice

    left, gaps = count, 0
    async with contextlib.aclosing(reader.read_batches()) as batches:
        async for batch in batches:
            if isinstance(batch, Notice):
                gaps += 1
                call.warn("records-missing", gap_line(batch))
                continue
            printer.show(batch if left is None else batch.part(0, left))
            if flushes:
                sys.stdout.flush()
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    break
    return gaps


async def _print_partitions(
    reader: PartitionedReader, count: int | None, printer: RecordPrinter
) -> None:
    left = sys.maxsize if count is None else count
    while left and (found := await reader.read(min(left, 1000), wait_s=None)):
        for partition, record in found:
            printer.show_one(record, partition)
        sys.stdout.flush()
        left -= len(found)


@stream.command(cls=ClusterCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--yes", is_flag=True, help="Don't ask.")
@forget_files_option
@namespace_option
@click.pass_obj
def delete(call: Call, names: Sequence[str], yes: bool, forget_files: bool, path: str) -> int:
    """Delete streams with their ledgers and files, for good."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("add --yes to delete without being asked")
        if not click.confirm(f"Delete stream {', '.join(names)} and all its records?", err=True):
            call.note("nothing was deleted")
            return FAILED
    deleted: list[dict[str, object]] = []

    async def run() -> None:
        async with opened(call, path) as namespace:
            for name in names:
                left = await _delete(namespace, name, forget_files=forget_files)
                tell_forgotten(call, left)
                deleted.append({"name": name, "state": "deleted"})

    try:
        call.run(run())
    finally:
        call.output.rows(deleted, ["name", "state"])
    return 0


async def _delete(namespace: Namespace, name: str, *, forget_files: bool) -> list[str]:
    from quorumbook.streams import PartitionedStream
    from quorumbook.streams.errors import StreamNotFoundError

    try:
        whole = await PartitionedStream.open(namespace, name)
    except StreamNotFoundError:
        return await namespace.delete_stream(name, forget_files=forget_files)
    return await whole.delete(forget_files=forget_files)


stream.add_command(show)
stream.add_command(segments)
stream.add_command(truncate)
stream.add_command(seal)
stream.add_command(cursors)
stream.add_command(consume)
stream.add_command(groups)
stream.add_command(retention)
stream.add_command(policy_command)
stream.add_command(schema)
stream.add_command(orphans)
stream.add_command(alter)
