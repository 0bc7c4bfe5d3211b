"""``quorumbook bookie adopt`` and ``give-back``: directories of a Java bookie, there and back."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from typing import Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import FORMATS

STORAGES = ("sorted", "db")


@click.command(cls=ClusterCommand, forms=FORMATS, has_peer_file=True)
@click.option(
    "--apply", "is_applied", is_flag=True, help="Do it; without this, only say what is found."
)
@click.option(
    "--storage", type=click.Choice(STORAGES), help="Which of two indexes to use, if both are there."
)
@click.option(
    "--without-index", is_flag=True,
    help="Take the entries alone: every open ledger starts fenced and in limbo.",
)  # fmt: skip
@click.option(
    "--accept-damage", is_flag=True,
    help="Take what is left: ledgers that may lack entries start in limbo.",
)  # fmt: skip
@click.pass_obj
def adopt(
    call: Call,
    is_applied: bool,
    storage: str | None,
    without_index: bool,
    accept_damage: bool,
) -> None:
    """Take a stopped Java bookie's directories over."""
    from quorumbook.bookie.stopped.adoption import adopt as take_over

    options = _stopped(call)
    with tempfile.TemporaryDirectory() as scratch:
        report = call.run(
            _with_store(
                call,
                lambda env, store: take_over(
                    env,
                    options,
                    store,
                    scratch=None if is_applied else scratch,
                    storage=_storage(call, storage),
                    without_index=without_index,
                    accept_damage=accept_damage,
                ),
            )
        )
    call.output.record({**asdict(report), "damage": report.damage[:10]})
    if report.is_done:
        configured = f"{options.advertised_host or options.host}:{options.port}"
        is_known = report.bookie_id in (options.bookie_id, configured)
        extra = "" if is_known else f" and --set bookie.bookie_id={report.bookie_id}"
        call.note(f"done; `quorumbook bookie run` with the same options{extra} starts the bookie")
    elif report.damage and not accept_damage:
        call.note("nothing was changed; --apply --accept-damage takes over what is left")
    else:
        call.note("nothing was changed; --apply takes the directories over")


@click.command("give-back", cls=ClusterCommand, forms=FORMATS, has_peer_file=True)
@click.option(
    "--apply", "is_applied", is_flag=True, help="Do it; without this, only say what is there."
)
@click.option(
    "--storage", type=click.Choice(STORAGES), help="The storage that the Java bookie runs."
)
@click.pass_obj
def give_back(call: Call, is_applied: bool, storage: str | None) -> None:
    """Hand a stopped bookie's directories to a Java bookie."""
    from quorumbook.bookie.stopped.adoption import give_back as hand_over

    options = _stopped(call)
    report = call.run(
        _with_store(
            call,
            lambda env, store: hand_over(
                env, options, store, is_applied=is_applied, storage=_storage(call, storage)
            ),
        )
    )
    call.output.record(asdict(report))
    call.note(
        "done; the Java bookie can be started with the configuration that it had"
        if report.is_done
        else "nothing was changed; --apply hands the directories over"
    )


def _storage(call: Call, storage: str | None) -> str | None:
    return storage or call.settings.text("storage.peer_storage") or None


def _stopped(call: Call) -> Any:
    """Return the bookie's options; refuse one that has files of the directories open."""
    from quorumbook.config.made import bookie_options
    from quorumbook.errors import ForeignDirectoryError

    call.show_warnings()
    options = bookie_options(call.settings)
    directories = [
        *options.journal_directories,
        *options.ledger_directories,
        *options.index_directories,
    ]
    for directory in directories:
        pid = process_in(directory)
        if pid is not None:
            raise ForeignDirectoryError(
                f"process {pid} has files open in {directory}; stop it first"
            )
    return options


def process_in(directory: str) -> int | None:
    """Return a process that has a file below a directory open, where the system tells.

    The peer takes no lock, so its open journals and entry logs have to stand for one.
    """
    prefix = f"{os.path.realpath(directory)}{os.sep}"
    if not os.path.isdir("/proc/self/fd"):
        return None
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{name}/fd")]
        except OSError:
            continue  # it has ended, or is somebody else's
        if any(file.startswith(prefix) for file in files):
            return int(name)
    return None


async def _with_store(call: Call, work: Any) -> Any:
    from quorumbook.env import Env
    from quorumbook.metadata.uri import open_store

    env = Env()
    store = await open_store(call.metadata_uri, env)
    try:
        return await work(env, store)
    finally:
        await store.close()
