"""``quorumbook ledger``: write, read, follow, recover and delete ledgers."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.errors import FAILED
from quorumbook.cli.ledger.appending import EntryAppender
from quorumbook.cli.ledger.files import get, put
from quorumbook.cli.ledger.metadata import ls, show
from quorumbook.cli.ledger.options import (
    custom_metadata,
    deferred_sync_option,
    ledger_id_option,
    new_ledger,
    password_option,
    wanted_labels,
)
from quorumbook.cli.lines import groups_of_lines, refuse_unreadable
from quorumbook.cli.output import JSON, RAW, TABLE
from quorumbook.cli.progress import progress
from quorumbook.errors import LedgerRecoveryError, LocalProtocolError, NoSuchEntryError

if TYPE_CHECKING:
    from quorumbook import Entry, EntryBatch, LedgerReader, LedgerWriter

_PIECE_LINES = 1000


@click.group(cls=Commands)
def ledger() -> None:
    """Create, write, read, list and delete ledgers.

    A ledger is written once, by one writer, and closed; it never changes after that.
    """


for _command in (ls, show, put, get):
    ledger.add_command(_command)


@ledger.command(cls=ClusterCommand, form=RAW)
@ledger_id_option
@new_ledger
@click.pass_obj
def create(call: Call, /, ledger_id: int | None, password: bytes, **shape: Any) -> None:
    """Create an empty ledger for `ledger write ID`, and print its id."""
    options = {**_new(call, shape), "ledger_id": ledger_id}

    async def run() -> int:
        async with call.connect() as bk:
            return await bk.create_unwritten_ledger(password=password, **options)

    call.output.record({"ledger_id": call.run(run())})


@ledger.command(cls=ClusterCommand, form=RAW)
@click.argument("words", nargs=-1, metavar="[ID] [FILE]...")
@ledger_id_option
@deferred_sync_option
@new_ledger
@click.pass_obj
def write(
    call: Call,
    /,
    words: Sequence[str],
    ledger_id: int | None,
    deferred_sync: bool,
    password: bytes,
    **shape: Any,
) -> None:
    """Append lines as entries, and print the ledger's id.

    Lines are read from files, or from standard input.
    Without ID a new ledger is made; with ID the one that `ledger create` made is written.
    The ledger is closed at the end.
    """
    waiting_id, files = _id_and_files(words)
    if waiting_id is not None and ledger_id is not None:
        raise click.UsageError(
            "--ledger-id is for a new ledger; ID alone names one that waits for its writer"
        )
    refuse_unreadable(files)  # before there is a ledger for them
    options = {**_new(call, shape), "ledger_id": ledger_id}
    row = call.run(_write(call, waiting_id, files, password, options, deferred_sync))
    call.output.record({"ledger_id": row["ledger_id"]} if call.output.form == RAW else row)


@ledger.command(cls=ClusterCommand, form=RAW)
@click.argument("ledger_id", type=int, metavar="ID")
@click.option("--first", type=click.IntRange(min=0), default=0, help="First entry [default: 0].")
@click.option("--last", type=click.IntRange(min=0), help="Last entry [default: the last one].")
@click.option("--last-entry", is_flag=True, help="Print the last entry alone.")
@click.option(
    "--recover",
    is_flag=True,
    help="Shut a writer out and close the ledger first, so that its end is certain.",
)
@password_option
@click.pass_obj
def read(
    call: Call,
    ledger_id: int,
    first: int,
    last: int | None,
    last_entry: bool,
    recover: bool,
    password: bytes,
) -> None:
    """Print a ledger's entries, one in a line.

    Of a ledger that is being written, entries up to the last add confirmed are printed.
    """
    if last_entry and (first or last is not None):
        raise click.UsageError("give --last-entry, or --first and --last")

    async def run() -> None:
        async with (
            call.connect() as bk,
            bk.open_ledger(ledger_id, password=password, recover=recover) as reader,
        ):
            if last_entry:
                printer = _Printer(call.output.form)
                printer.show_one(await reader.read_last_entry())
                printer.finish()
                return
            end = _end(call, reader, first, last)
            await _print_entries(call, reader, first, end)

    call.run(run())


@ledger.command(cls=ClusterCommand, form=RAW)
@click.argument("ledger_id", type=int, metavar="ID")
@click.option("--first", type=click.IntRange(min=0), help="First entry [default: the next one].")
@click.option("--count", type=click.IntRange(min=1), help="End after this many entries.")
@password_option
@click.pass_obj
def tail(call: Call, ledger_id: int, first: int | None, count: int | None, password: bytes) -> None:
    """Print entries as they are written, until the ledger is closed."""

    async def run() -> None:
        printer = _Printer(call.output.form)
        left = count
        async with (
            call.connect() as bk,
            bk.open_ledger(ledger_id, password=password, recover=False) as reader,
        ):
            start = reader.last_add_confirmed + 1 if first is None else first
            async for entry in reader.tail(first=start):
                printer.show_one(entry)
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    break
        printer.finish()

    call.run(run())


@ledger.command(cls=ClusterCommand)
@click.argument("ledger_id", type=int, metavar="ID")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Close it also where bookies may have lost its last entries and nobody has them.",
)
@click.option("--yes", is_flag=True, help="With --accept-loss: give them up.")
@password_option
@click.pass_obj
def recover(call: Call, ledger_id: int, accept_loss: bool, yes: bool, password: bytes) -> None:
    """Shut the writer out and close the ledger.

    Last entries that are not on all their bookies are completed first.
    """

    async def run() -> dict[str, object]:
        async with call.connect() as bk:
            given_up: dict[str, object] = {}
            try:
                reader = await bk.open_ledger(ledger_id, password=password)
            except LedgerRecoveryError as error:
                if not accept_loss:
                    raise
                if not yes:
                    raise click.UsageError(
                        f"{error}. Closing the ledger before that entry gives up this entry and "
                        "everything acknowledged after it; add --yes to do so"
                    ) from error
                reader = await bk.open_ledger(ledger_id, password=password, accept_loss=True)
                given_up["given_up_from"] = reader.last_add_confirmed + 1
            async with reader:
                return {
                    "ledger_id": ledger_id,
                    "state": "closed",
                    "entries": reader.last_add_confirmed + 1,
                    "bytes": reader.metadata.length,
                    **given_up,
                }

    call.output.record(call.run(run()))


@ledger.command(cls=ClusterCommand)
@click.argument("ledger_ids", type=int, nargs=-1, required=True, metavar="ID...")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.pass_obj
def delete(call: Call, ledger_ids: Sequence[int], yes: bool) -> int:
    """Delete ledgers for good."""
    named = ", ".join(map(str, ledger_ids))
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("add --yes to delete without being asked")
        if not click.confirm(f"Delete ledger {named} and all its entries?", err=True):
            call.note("nothing was deleted")
            return FAILED

    deleted: list[dict[str, object]] = []

    async def run() -> None:
        async with call.connect() as bk:
            for ledger_id in ledger_ids:
                await bk.delete_ledger(ledger_id)
                deleted.append({"ledger_id": ledger_id, "state": "deleted"})

    try:
        call.run(run())
    finally:
        # Also when one of them fails: what is gone is gone.
        call.output.rows(deleted, ("ledger_id", "state"))
    return 0


def _new(call: Call, shape: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of ``create_ledger`` from a command's options."""
    return {
        **call.new_ledger_options(
            shape["ensemble_size"], shape["write_quorum"], shape["ack_quorum"]
        ),
        "custom_metadata": custom_metadata(shape["custom"]),
        "bookie_labels": wanted_labels(shape["bookie_labels"]),
    }


def _id_and_files(words: Sequence[str]) -> tuple[int | None, Sequence[str]]:
    """Tell an id from a file name: an id is a number, and a file of that name is ``./7``."""
    if words and words[0].isdigit():
        return int(words[0]), words[1:]
    return None, words


async def _write(
    call: Call,
    ledger_id: int | None,
    files: Sequence[str],
    password: bytes,
    options: dict[str, Any],
    deferred_sync: bool,
) -> dict[str, object]:
    async with call.connect() as bk:
        if ledger_id is None:
            writer = await bk.create_ledger(
                password=password, deferred_sync=deferred_sync, **options
            )
        else:
            writer = await bk.claim_unwritten_ledger(
                ledger_id, password=password, deferred_sync=deferred_sync
            )
        is_kept = True
        try:
            async with writer:
                is_typed = not files and sys.stdin.isatty()
                with progress("writing", None, is_wanted=not is_typed) as advance:
                    await _append_lines(writer, files, advance)
        except LocalProtocolError:
            # A line that no entry can hold, and nothing before it.
            is_kept = ledger_id is not None or writer.last_add_confirmed >= 0
            if not is_kept:
                await bk.delete_ledger(writer.id)
            raise
        finally:
            # Also after Ctrl-C: what was appended until then is in a closed ledger.
            entries = writer.last_add_confirmed + 1
            if is_kept:
                noun = "entry" if entries == 1 else "entries"
                call.note(f"{entries} {noun} in ledger {writer.id}")
        return {"ledger_id": writer.id, "entries": entries, "bytes": writer.length}


async def _append_lines(
    writer: LedgerWriter, files: Sequence[str], advance: Callable[[int], None]
) -> None:
    appender = EntryAppender(writer, lambda safe: advance(len(safe)))
    async for lines in groups_of_lines(files):
        for start in range(0, len(lines), _PIECE_LINES):
            await appender.append(lines[start : start + _PIECE_LINES])
    await appender.finish()


def _end(call: Call, reader: LedgerReader, first: int, last: int | None) -> int:
    """Return the last entry to print; -1 and the like if there is none."""
    lac = reader.last_add_confirmed
    if last is not None and last < first:
        raise click.UsageError(f"--last {last} is before --first {first}")
    if last is not None and last > lac:
        raise NoSuchEntryError(
            f"ledger {reader.id} has no entry {last}: its last one is {lac}"
            if reader.is_closed
            else f"entry {last} of ledger {reader.id} is not confirmed; the last one that is: {lac}"
        )
    if first > lac + 1 and reader.is_closed:
        raise NoSuchEntryError(f"ledger {reader.id} has no entry {first}: its last one is {lac}")
    if first > lac + 1:
        call.warn("no-such-entry", f"ledger {reader.id} has no entry {first} yet; it has {lac + 1}")
    return lac if last is None else last


async def _print_entries(call: Call, reader: LedgerReader, first: int, last: int) -> None:
    printer = _Printer(call.output.form)
    if first > last:
        printer.finish()
        return
    is_wanted = not sys.stdout.isatty()
    with progress("reading", last - first + 1, is_wanted=is_wanted) as advance:
        async for batch in reader.read_batches(first=first, last=last):
            printer.show(batch)
            advance(len(batch))
    printer.finish()


class _Printer:
    """Prints entries in the form asked for; bare payloads without a step for each."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._count = 0

    def show(self, batch: EntryBatch) -> None:
        """Print a batch."""
        if self._form == RAW:
            out = sys.stdout.buffer
            out.write(b"\n".join(batch.payloads))
            out.write(b"\n")
            return
        for entry in batch:
            self.show_one(entry)

    def show_one(self, entry: Entry) -> None:
        """Print an entry."""
        if self._form == RAW:
            sys.stdout.buffer.write(entry.payload + b"\n")
        elif self._form == TABLE:
            text = entry.payload.decode(errors="backslashreplace")
            print(f"{entry.entry_id:8}  {text}")
        else:
            if self._form == JSON:
                # One value, whose entries can be seen as they come.
                print(",\n" if self._count else "[", end="")
            end = "" if self._form == JSON else "\n"
            print(json.dumps(_entry_row(entry)), end=end)
        self._count += 1

    def finish(self) -> None:
        """Print what has to come last."""
        if self._form == JSON:
            print("]" if self._count else "[]")


def _entry_row(entry: Entry) -> dict[str, object]:
    row: dict[str, object] = {
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "bytes": len(entry.payload),
    }
    try:
        row["text"] = entry.payload.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(entry.payload).decode()
    return row
