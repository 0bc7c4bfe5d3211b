"""``quorumbook disk``: what lies in a stopped bookie's directories, and what is wrong with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.errors import FOUND
from quorumbook.cli.output import FORMATS, TABLE, Row

if TYPE_CHECKING:
    from quorumbook.bookie.options import BookieOptions
    from quorumbook.storage.directories.places import Directories

_data_dir = click.option("--data-dir", metavar="DIR", help="The bookie's --data-dir.")
_repair = click.option(
    "--repair", "is_repair", is_flag=True, help="Do it; without this, only say what would be done."
)


@click.group(cls=Commands)
def disk() -> None:
    """Look through a stopped bookie's files, and mend them."""


def _command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    return disk.command(
        name, cls=ClusterCommand, forms=FORMATS, has_metadata=False, has_peer_file=True
    )


@_command()
@_data_dir
@_repair
@click.pass_obj
def fsck(call: Call, data_dir: str | None, is_repair: bool) -> int:
    """Check every file of a bookie; exit code 6 if something is wrong."""
    from quorumbook.bookie.stopped.repair import inspect_bookie, repair, sets
    from quorumbook.env import Env
    from quorumbook.storage.inspection import HARMLESS

    options, env = _options(call, data_dir, is_change=is_repair), Env()
    if is_repair:
        with tempfile.TemporaryDirectory() as scratch:
            for action in repair(env, options, scratch):
                call.note(action)
    with tempfile.TemporaryDirectory() as scratch:
        found = list(inspect_bookie(env, options, scratch))
    if call.output.form == TABLE:
        for finding in found:
            where = finding.path if finding.offset is None else f"{finding.path}@{finding.offset}"
            click.echo(f"{finding.severity}: {finding.kind} {where}: {finding.problem}")
            click.echo(f"    it means: {finding.meaning}\n    do: {finding.remedy}")
    else:
        call.output.rows([asdict(finding) for finding in found], list(_FINDING))
    counts = sets(found)
    call.note(", ".join(f"{count} {severity}" for severity, count in counts.items()))
    return FOUND if len(found) > counts[HARMLESS] else 0


_FINDING = ("severity", "kind", "path", "offset", "ledger_id", "problem", "meaning", "remedy")


@_command("rebuild-index")
@_data_dir
@_repair
@click.pass_obj
def rebuild_index(call: Call, data_dir: str | None, is_repair: bool) -> None:
    """Make a bookie's index again from its entry logs."""
    from quorumbook.bookie.stopped.repair import rebuild_index as rebuild
    from quorumbook.env import Env

    options, env = _options(call, data_dir, is_change=is_repair), Env()
    if is_repair:
        report = rebuild(env, options)
        call.output.record(asdict(report))
        return
    call.output.record(_would_rebuild(env, options))
    call.note("nothing was changed; --repair rebuilds the index")


def _would_rebuild(env: Any, options: BookieOptions) -> Row:
    from quorumbook.bookie.stopped.repair import directories_of
    from quorumbook.storage.entrylog.scan import DamagedStretch, scan_entry_log
    from quorumbook.storage.entrylog.writer import find_entry_logs

    runs = entries = damaged = 0
    ledgers = set()
    for log_id, directory in find_entry_logs(env, directories_of(env, options).ledgers).items():
        for found in scan_entry_log(env, directory, log_id):
            if isinstance(found, DamagedStretch):
                damaged += 1
                continue
            runs += 1
            entries += found.run.count
            ledgers.add(found.run.ledger_id)
    return {"runs": runs, "entries": entries, "ledgers": len(ledgers), "damaged": damaged}


@_command()
@_data_dir
@click.pass_obj
def journal(call: Call, data_dir: str | None) -> None:
    """List a bookie's journals, and what a start would replay of them."""
    from quorumbook.bookie.stopped.repair import directories_of
    from quorumbook.env import Env

    env = Env()
    directories = directories_of(env, _options(call, data_dir))
    columns = ["path", "size_bytes", "entries", "fences", "keys", "state"]
    call.output.rows(_journals(env, directories), columns, empty="there is no journal")


def _journals(env: Any, directories: Directories) -> Iterator[Row]:
    from quorumbook.errors import StorageError
    from quorumbook.storage.directories.unclean import was_unclean
    from quorumbook.storage.inspection import JournalSummary
    from quorumbook.storage.journal.format import journal_name
    from quorumbook.storage.journal.marks import LastMarks
    from quorumbook.storage.journal.replay import journal_ids, summarize

    is_unclean = was_unclean(env.disk, directories.ledgers)
    marks = LastMarks(env, directories.ledgers, len(directories.journals))
    marks.load()
    for place, directory in enumerate(directories.journals):
        start = marks.minimum(place)
        for journal_id in journal_ids(env, directory):
            summary = JournalSummary()
            size = 0
            try:
                size, end = summarize(env, directory, journal_id, summary, was_unclean=is_unclean)
                state = f"damaged at byte {end.valid_end}" if end.is_damaged else "good"
                if end.is_torn:
                    state = f"good, and a write that was cut short at byte {end.valid_end}"
                if (journal_id, end.end) <= start:
                    state += ", all of it is in the entry logs"
            except StorageError as error:
                state = str(error)
            yield {
                "path": f"{directory}/{journal_name(journal_id)}",
                "size_bytes": size,
                **asdict(summary),
                "state": state,
            }


@_command()
@_data_dir
@click.argument("log_id", metavar="[LOG]", required=False)
@click.pass_obj
def log(call: Call, data_dir: str | None, log_id: str | None) -> None:
    """List a bookie's entry logs, or the runs of one (its number in hex)."""
    from quorumbook.bookie.stopped.repair import directories_of
    from quorumbook.env import Env

    env = Env()
    directories = directories_of(env, _options(call, data_dir))
    if log_id is None:
        columns = ["entry_log", "directory", "size_bytes", "runs", "entries", "damaged"]
        call.output.rows(_logs(env, directories), columns, empty="there is no entry log")
        return
    columns = ["position", "ledger_id", "first_entry_id", "last_entry_id", "entries", "state"]
    call.output.rows(_runs_of(env, directories, _number(log_id)), columns, empty="it is empty")


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise click.UsageError(f"{text} is not a number in hex") from None


def _logs(env: Any, directories: Directories) -> Iterator[Row]:
    from quorumbook.storage.entrylog.format import entry_log_name
    from quorumbook.storage.entrylog.scan import ScannedRun, scan_entry_log
    from quorumbook.storage.entrylog.writer import find_entry_logs

    for entry_log_id, directory in sorted(find_entry_logs(env, directories.ledgers).items()):
        found = list(scan_entry_log(env, directory, entry_log_id))
        runs = [one.run for one in found if isinstance(one, ScannedRun)]
        file = env.disk.open(f"{directory}/{entry_log_name(entry_log_id)}", read_only=True)
        try:
            size = file.size_bytes()
        finally:
            file.close()
        yield {
            "entry_log": f"{entry_log_id:x}",
            "directory": directory,
            "size_bytes": size,
            "runs": len(runs),
            "entries": sum(run.count for run in runs),
            "damaged": len(found) - len(runs),
        }


def _runs_of(env: Any, directories: Directories, entry_log_id: int) -> Iterator[Row]:
    from quorumbook.errors import MissingEntryLogError
    from quorumbook.storage.entrylog.scan import ScannedRun, scan_entry_log
    from quorumbook.storage.entrylog.writer import find_entry_logs

    directory = find_entry_logs(env, directories.ledgers).get(entry_log_id)
    if directory is None:
        raise MissingEntryLogError(
            f"there is no entry log {entry_log_id:x} here; `quorumbook disk log` lists them"
        )
    for found in scan_entry_log(env, directory, entry_log_id):
        if isinstance(found, ScannedRun):
            run = found.run
            yield {
                "position": found.position,
                "ledger_id": run.ledger_id,
                "first_entry_id": run.first_entry_id,
                "last_entry_id": run.last_entry_id,
                "entries": run.count,
                "state": "good" if found.is_verified else "without a check",
            }
        else:
            yield {
                "position": found.position,
                "ledger_id": found.ledger_id,
                "first_entry_id": found.first_entry_id,
                "last_entry_id": found.last_entry_id,
                "entries": None,
                "state": f"damaged: {found.reason}",
            }


@_command()
@_data_dir
@click.argument("ledger_id", metavar="[LEDGER]", type=int, required=False)
@click.pass_obj
def index(call: Call, data_dir: str | None, ledger_id: int | None) -> None:
    """List the ledgers of a bookie's index, or the runs of one."""
    from quorumbook.bookie.stopped.repair import directories_of
    from quorumbook.env import Env
    from quorumbook.storage.inspection import open_copy

    directories = directories_of(Env(), _options(call, data_dir))
    with tempfile.TemporaryDirectory() as scratch:
        found = open_copy(directories, scratch)
        try:
            if ledger_id is None:
                columns = ["ledger_id", "entries", "last_entry_id", "runs", "damaged", "fenced",
                           "limbo"]  # fmt: skip
                call.output.rows(_ledgers(found), columns, empty="the index is empty")
            else:
                columns = ["first_entry_id", "last_entry_id", "entries", "entry_log", "position",
                           "damaged"]  # fmt: skip
                call.output.rows(
                    _runs(found, ledger_id), columns, empty="this bookie has nothing of it"
                )
        finally:
            found.close()


def _ledgers(index: Any) -> Iterator[Row]:
    for state in index.ledger_states():
        runs = index.runs(state.ledger_id)
        yield {
            "ledger_id": state.ledger_id,
            "entries": sum(run.entry_count for run in runs),
            "last_entry_id": runs[-1].last_entry_id if runs else None,
            "runs": len(runs),
            "damaged": sum(run.entry_count for run in runs if run.is_damaged),
            "fenced": state.is_fenced,
            "limbo": state.is_in_limbo,
        }


def _runs(index: Any, ledger_id: int) -> Iterator[Row]:
    for run in index.runs(ledger_id):
        yield {
            "first_entry_id": run.first_entry_id,
            "last_entry_id": run.last_entry_id,
            "entries": run.entry_count,
            "entry_log": f"{run.entry_log_id:x}",
            "position": run.position,
            "damaged": run.is_damaged,
        }


def _options(call: Call, data_dir: str | None, *, is_change: bool = False) -> BookieOptions:
    """Return the bookie's options; say so if it runs, and refuse to change anything then."""
    from quorumbook.cli.bookie.adoption import process_in
    from quorumbook.cli.bookie.commands import in_directory
    from quorumbook.config.made import bookie_options
    from quorumbook.errors import DirectoryLockedError

    call.show_warnings()
    settings = call.settings if data_dir is None else in_directory(call.settings, data_dir)
    options = bookie_options(settings)
    for directory in (*options.journal_directories, *options.ledger_directories):
        pid = process_in(directory)
        if pid is None:
            continue
        if is_change:
            raise DirectoryLockedError(f"process {pid} has files open in {directory}")
        call.warn(
            "bookie-runs-meanwhile",
            f"process {pid} runs on {directory}; what it writes now may look damaged",
        )
        break
    return options
