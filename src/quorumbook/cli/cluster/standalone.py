"""``quorumbook standalone``: a whole cluster on one machine.

Each bookie is a process, and so is auto-recovery.  The data directory holds the metadata file, one
directory for each of them, and ``standalone.json`` with the ports: a bookie is known by its
address, so a second start must use the ports of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence

import click

from quorumbook.cli.call import Call
from quorumbook.cli.cluster.commands import init_cluster
from quorumbook.cli.cluster.supervisor import (
    BookieProcess,
    ConsoleProcess,
    RecoveryProcess,
    Supervisor,
)
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import TABLE
from quorumbook.cli.ports import free_ports, refuse_used
from quorumbook.cli.serving.logs import begin_log
from quorumbook.errors import ConfigError, DirectoryLockedError


@click.command(cls=ClusterCommand, forms=("table", "json"), has_metadata=False, has_log=True)
@click.option(
    "--bookies", type=click.IntRange(1, 64), default=3, show_default=True, help="How many bookies."
)
@click.option(
    "--data-dir",
    default="quorumbook-data",
    show_default=True,
    metavar="DIR",
    help="Where everything is kept.",
)
@click.option("--ephemeral", is_flag=True, help="Keep nothing: a temporary directory is used.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the first bookie [default: 3181]."
)
@click.pass_obj
def standalone(call: Call, bookies: int, data_dir: str, ephemeral: bool, port: int | None) -> None:
    """Run a whole cluster on this machine until Ctrl-C."""
    if not data_dir:
        raise click.UsageError("--data-dir is empty; name a directory")
    begin_log(call.settings, is_verbose=call.is_verbose, usual="warning")  # children do likewise
    if not ephemeral:
        directory = os.path.abspath(data_dir)
        ports = _known_ports(directory, bookies, port)
        if not os.path.exists(directory):
            for number in ports[:bookies]:
                refuse_used(number)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with _only_one(directory):
            for number in ports[:bookies]:
                refuse_used(number)
            # Only now: a start that fails for its ports can be tried again with others.
            _keep(directory, ports)
            call.run(_run(call, directory, ports[:bookies]))
        return
    directory = tempfile.mkdtemp(prefix="quorumbook-")
    try:
        ports = _following(port, bookies) if port else free_ports(bookies)
        for number in ports:
            refuse_used(number)
        call.run(_run(call, directory, ports, is_ephemeral=True))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _run(call: Call, directory: str, ports: list[int], *, is_ephemeral: bool = False) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    uri = _uri(directory)
    call.use_metadata(uri)
    await init_cluster(call, is_existing_fine=True)
    environment = call.environment()
    bookies = [
        BookieProcess(
            f"bookie-{number}", environment, os.path.join(directory, f"bookie-{number}"),
            call.forwarded(), port=port,
        )
        for number, port in enumerate(ports, 1)
    ]  # fmt: skip
    # The port that is configured for HTTP, if one is, is a bookie's.
    words = [*call.forwarded(), "--set", "http.port=0"]
    recovery = RecoveryProcess("recovery", environment, os.path.join(directory, "recovery"), words)
    console = ConsoleProcess(
        "console", environment, os.path.join(directory, "console"), call.forwarded(),
        port=0 if is_ephemeral else call.settings.integer("admin.port"),
    )  # fmt: skip
    supervisor = Supervisor([*bookies, recovery, console], call)
    try:
        await supervisor.start()
        _greet(call, uri, directory, bookies, console.url)
        await stop.wait()
        call.note("stopping ...")
    finally:
        await supervisor.stop()


def _greet(
    call: Call, uri: str, directory: str, bookies: Sequence[BookieProcess], console: str
) -> None:
    ids = [bookie.bookie_id for bookie in bookies]
    if call.output.form != TABLE:
        call.output.record(
            {"metadata": uri, "directory": directory, "bookies": ids, "console": console}
        )
        return
    call.note(
        f"{len(ids)} bookies are ready: {', '.join(ids)}\n"
        f"data and logs: {directory}\n"
        f"metadata: {uri}\n"
        f"console: {console}\n\n"
        "Ctrl-C stops them.  To try, in another terminal:\n\n"
        f"  export QUORUMBOOK_METADATA={uri}\n"
        "  echo hello | quorumbook ledger write\n"
        "  quorumbook ledger ls\n"
        "  quorumbook ledger read 0\n"
    )


@contextlib.contextmanager
def _only_one(directory: str) -> Iterator[None]:
    """Refuse a second standalone on a directory; the lock ends with the process."""
    fd = os.open(os.path.join(directory, "standalone.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryLockedError(
                f"a standalone cluster runs on {directory} already, with --metadata"
                f" {_uri(directory)}"
            ) from None
        yield
    finally:
        os.close(fd)


def _uri(directory: str) -> str:
    return f"sqlite:///{directory}/metadata.db"


def _following(first: int, count: int) -> list[int]:
    if first + count > 65536:
        raise ConfigError(f"{count} bookies from --port {first} on go beyond 65535; begin lower")
    return [first + number for number in range(count)]


def _known_ports(directory: str, count: int, first_port: int | None) -> list[int]:
    """Return the ports of earlier starts, and new ones for new bookies."""
    path = _ports_path(directory)
    ports: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        try:
            with open(path, encoding="utf-8") as file:
                ports = [int(port) for port in json.load(file)["ports"]]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path} is damaged; it holds {{'ports': [3181, ...]}}") from None
    if ports and first_port is not None and ports[0] != first_port:
        raise ConfigError(
            f"the bookies in {directory} have been using the ports from {ports[0]} on and are known"
            " by them; leave out --port, or use another --data-dir"
        )
    next_port = ports[-1] + 1 if ports else first_port or 3181
    return [*ports, *_following(next_port, max(count - len(ports), 0))]


def _ports_path(directory: str) -> str:
    return os.path.join(directory, "standalone.json")


def _keep(directory: str, ports: list[int]) -> None:
    path = _ports_path(directory)
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"ports": ports}, file)
    os.replace(temporary, path)
