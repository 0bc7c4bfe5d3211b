"""``bookie run --processes N``: N bookies on one machine, as one service.

A bookie is one process with one event loop, so it uses little more than one core.  Each of the N
is a bookie of its own, with its own id, port and directories; together they are one machine, on
which no entry has two replicas (``ledger.placement.machines``).  What the configuration says
becomes, for the process of number i = 1 to N:

    bookie.port, http.port      that port + i - 1; 0 stays a free one
    bookie.bookie_id            that name and -i, if it is given
    storage.*_directories       the subdirectory i of each
    bookie.machine              the advertised host, if no machine is given
    background.io_rate_bytes    an Nth
    recovery.in_bookie          only in the first; so is admin.in_bookie

``cli.cluster.supervisor`` starts them and starts again what ends; this module says what each is
told, and stops all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from quorumbook.cli.cluster.supervisor import ChildFailedError, LoggingHere, Supervisor
from quorumbook.cli.serving.stopping import stop_wanted
from quorumbook.env import RealDisk
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from quorumbook.cli.call import Call
    from quorumbook.config import Settings

_SOURCE = "--processes"
_OPTIONS = ("--port", "--data-dir", "--advertised-address", "--label")
_DIRECTORIES = ("storage.journal_directories", "storage.ledger_directories")
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
_COOKIE = os.path.join("current", "VERSION")


@dataclass(slots=True)
class OneOfSeveral(LoggingHere):
    """A bookie that logs where its supervisor does, and takes the time that it needs."""

    number: int = 1
    _command = ("bookie", "run")
    #: A long journal is replayed before a bookie is ready, and a stop writes out what it holds;
    #: whoever runs the service sets the limits.
    _start_timeout_s: ClassVar[float | None] = None
    _stop_timeout_s: ClassVar[float | None] = None

    def own_words(self) -> list[str]:
        """Return by what name it logs."""
        return ["--process", str(self.number)]


def settings_of(settings: Settings, number: int, count: int) -> Settings:
    """Return what one of several bookies is told.

    Args:
        settings: Of all of them.
        number: Which one, from 1 on.
        count: How many there are.

    Raises:
        ConfigError: Ports go beyond 65535 or meet, or something is for one bookie only.
    """
    values: dict[str, object] = {
        key: tuple(os.path.join(directory, str(number)) for directory in settings.texts(key))
        for key in _DIRECTORIES
    }
    if settings.texts("storage.index_directories"):
        raise ConfigError(
            "storage.index_directories belongs to a bookie that was adopted from Java, which is "
            "one bookie; run it without --processes"
        )
    ports = {key: settings.integer(key) for key in ("bookie.port", "http.port")}
    for key, port in ports.items():
        if port + count - 1 > 65535:
            raise ConfigError(f"{key}: {count} ports from {port} on go beyond 65535")
        values[key] = port + number - 1 if port else 0
    is_http = bool(settings["http.enabled"].value)
    if is_http and all(ports.values()) and abs(ports["bookie.port"] - ports["http.port"]) < count:
        raise ConfigError(
            f"{count} processes listen on the ports from bookie.port {ports['bookie.port']} on and "
            f"serve HTTP from http.port {ports['http.port']} on, which meet; set one of them"
        )
    if bookie_id := settings.text("bookie.bookie_id"):
        values["bookie.bookie_id"] = f"{bookie_id}-{number}"
    if not settings.text("bookie.machine"):
        host = settings.text("bookie.advertised_host") or settings.text("bookie.host")
        values["bookie.machine"] = socket.gethostname() if host in _EVERY_ADDRESS else host
    if rate := settings.integer("background.io_rate_bytes"):
        values["background.io_rate_bytes"] = max(rate // count, 1)
    if number > 1:
        values |= {"recovery.in_bookie": False, "admin.in_bookie": False}
    for key, value in values.items():
        settings = settings.replaced(key, value, _SOURCE)
    return settings


def refuse_other_layout(settings: Settings, count: int) -> None:
    """Refuse directories in which another number of bookies has its data.

    A bookie that is left out takes its replicas with it, and looks lost.

    Raises:
        ConfigError: There is a bookie that would not run.
        StorageError: Whether there is one cannot be told.
    """
    disk = RealDisk()
    for directory in (d for key in _DIRECTORIES for d in settings.texts(key)):
        if count > 1 and disk.exists(os.path.join(directory, _COOKIE)):
            raise ConfigError(
                f"{directory} holds one bookie that ran without --processes; run it so, or move "
                "its ledgers away with `quorumbook bookie decommission` and remove what is left"
            )
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            numbers = [int(name) for name in os.listdir(directory) if name.isdecimal()]
            there = [n for n in numbers if disk.exists(f"{directory}/{n}/{_COOKIE}")]
            if there and max(there) > (count if count > 1 else 0):
                raise ConfigError(
                    f"{directory} holds {max(there)} bookies; add --processes {max(there)}, or "
                    "decommission those of the highest numbers and remove their directories"
                )


async def serve_several(call: Call, settings: Settings, count: int, *, is_child: bool) -> int:
    """Run so many bookies until Ctrl-C or SIGTERM; all of them stop at the same time.

    Returns:
        The exit code: 0, or that of a bookie that could not start or not stop cleanly.
    """
    children = [_child(call, settings_of(settings, i, count), i) for i in range(1, count + 1)]
    supervisor = Supervisor(children, call)
    stop = await stop_wanted(with_parent=is_child)
    asked = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(supervisor.start())
    try:
        await asyncio.wait({asked, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            starting.result()
            _announce(call, children)
            await asked
    except ChildFailedError as error:
        call.note(str(error))
        return next((child.exit_code for child in children if child.exit_code), 1)
    finally:
        await cancel_and_wait([asked, starting])
        served = [child for child in children if child.is_running]
        await supervisor.stop()
    return next((child.exit_code for child in served if child.exit_code), 0)


def _child(call: Call, settings: Settings, number: int) -> OneOfSeveral:
    environment = call.environment() | settings.variables(*_OPTIONS, _SOURCE)
    words = call.forwarded()
    if call.peer_file:
        words += ["--conf", call.peer_file]
    return OneOfSeveral(f"bookie {number}", environment, "", words, number=number)


def _announce(call: Call, children: Sequence[OneOfSeveral]) -> None:
    """Say that all serve, a row for each."""
    call.output.rows([child.report for child in children], ["bookie_id", "address", "http"])
    sys.stdout.flush()
