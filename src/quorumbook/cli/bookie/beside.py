"""``admin.in_bookie``: the HTTP API and the console in a process beside a bookie.

Pages read all ledgers, which is nothing to do on the loop that writes entries.  The process is
started again when it ends; a bookie serves without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorumbook.cli.cluster.supervisor import ChildFailedError, LoggingHere, Supervisor

if TYPE_CHECKING:
    from quorumbook.cli.call import Call


@dataclass(slots=True)
class AdminBeside(LoggingHere):
    """``admin run`` with the configuration of its bookie."""

    _command = ("admin", "run")


@contextlib.asynccontextmanager
async def admin_beside(call: Call) -> AsyncIterator[str]:
    """Serve the API for the length of a block; its address, or "" if that cannot be."""
    child = AdminBeside("admin", call.environment(), "", call.forwarded())
    supervisor = Supervisor([child], call)
    try:
        await supervisor.start()
    except ChildFailedError as error:
        call.warn("child-failed", f"{error}; the bookie serves without it")
    try:
        yield child.report.get("url", "")
    finally:
        await supervisor.stop()
