"""Bookies and auto-recovery as child processes: started, awaited, restarted when they die, stopped.

A child reports on its standard output that it is ready, and stops by itself when its standard
input ends, so that no bookie outlives a supervisor that was killed.  A detached child
(``demo --keep``) lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, ClassVar

from quorumbook.env import patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError

if TYPE_CHECKING:
    from quorumbook.cli.call import Call

#: A child that dies again and again is restarted after ever longer pauses.
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
#: A child that served for so long had a good start; its next pause is the first one again.
_GOOD_START_S = 30.0


class ChildFailedError(QuorumbookError):
    """A child process did not come up; the message is its own last word."""

    code = -1


@dataclass(slots=True)
class ChildProcess:
    """One child, which reports in one line of JSON that it is ready."""

    name: str
    #: Says where the metadata is, and what else anybody must not read in a command line.
    environment: Mapping[str, str]
    #: Where its log goes.
    directory: str
    #: Further words of its command.
    words: Sequence[str] = ()
    is_detached: bool = False
    #: What the child said when it was ready.
    report: dict[str, str] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None
    #: The command, and the name of its log.
    _command: ClassVar[tuple[str, str]]
    _log_name: ClassVar[str]
    #: None: as long as it takes.
    _start_timeout_s: ClassVar[float | None] = 60.0
    _stop_timeout_s: ClassVar[float | None] = 15.0

    @property
    def log_path(self) -> str:
        """Where the child's log goes."""
        return os.path.join(self.directory, self._log_name)

    @property
    def pid(self) -> int:
        """The process id of the running child."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What the child ended with; None while it runs, or before its start."""
        return self._process.returncode if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Tell whether there is a process."""
        return self._process is not None and self._process.returncode is None

    def own_words(self) -> list[str]:
        """Return what this kind of child is told beside."""
        return []

    def command(self) -> list[str]:
        """Return the command line of the child."""
        words = [sys.executable, "-m", "quorumbook", *self._command, *self.own_words()]
        words += ["-o", "jsonl", *self.words]
        return words if self.is_detached else [*words, "--stop-with-parent"]

    async def start(self) -> None:
        """Start the child and wait until it serves.

        Raises:
            ChildFailedError: it ended, or said nothing for a minute.
        """
        log_start = self._log_size()
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL if self.is_detached else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self.environment,
                # A Ctrl-C goes to the supervisor alone, which stops the children in order.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            async with patience.timeout(self._start_timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            await self.stop()
            limit = f"{self._start_timeout_s:g} s"
            raise ChildFailedError(f"{self.name} did not start in {limit}") from None
        if not line:
            await self._process.wait()
            raise ChildFailedError(f"{self.name} did not start: {self._last_word(log_start)}")
        self.report = json.loads(line)

    async def wait(self) -> int:
        """Wait until the child ends, and return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Ask the child to stop, and kill it if it takes too long."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with patience.timeout(self._stop_timeout_s):
                await process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """Kill the child as a crash would."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    def _log_size(self) -> int:
        """Return where the log of the next start begins."""
        return os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0

    def _open_log(self) -> IO[bytes]:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        return open(self.log_path, "ab")

    def _last_word(self, log_start: int) -> str:
        with open(self.log_path, "rb") as log:
            log.seek(log_start)
            lines = log.read().decode(errors="replace").strip().splitlines()
        if not lines:
            return f"it ended without a word (exit code {self.exit_code})"
        return lines[-1].removeprefix("quorumbook: ")


@dataclass(slots=True)
class LoggingHere(ChildProcess):
    """A child of a service, which logs where its supervisor does."""

    def _log_size(self) -> int:
        return 0

    def _open_log(self) -> IO[bytes]:
        return os.fdopen(os.dup(sys.stderr.fileno()), "wb")

    def _last_word(self, log_start: int) -> str:
        del log_start
        return f"exit code {self.exit_code}, its reason stands above"


@dataclass(slots=True)
class BookieProcess(ChildProcess):
    """A bookie; its data lie where its log does."""

    port: int = 0
    _command = ("bookie", "run")
    _log_name = "bookie.log"

    @property
    def bookie_id(self) -> str:
        """The name it registered."""
        return self.report["bookie_id"]

    def own_words(self) -> list[str]:
        """Return where it listens and keeps its data."""
        # One API and console is enough for all of them.
        alone = ["--set", "admin.in_bookie=false"]
        return ["--port", str(self.port), "--data-dir", self.directory, *alone]


@dataclass(slots=True)
class RecoveryProcess(ChildProcess):
    """Auditor and replication worker."""

    _command = ("recovery", "run")
    _log_name = "recovery.log"


@dataclass(slots=True)
class ConsoleProcess(ChildProcess):
    """The HTTP API and the console."""

    #: The wanted port, or a free one where that is in use; 0 is a free one.  It is kept when the
    #: console is started again.
    port: int = 0
    _command = ("admin", "run")
    _log_name = "console.log"

    @property
    def url(self) -> str:
        """Where it is."""
        return self.report["url"]

    async def start(self) -> None:
        """Start it as the others; where that fails at the wanted port, once more at a free one."""
        try:
            await ChildProcess.start(self)
        except ChildFailedError:
            if not self.port:
                raise
            self.report, self.port = {}, 0
            await ChildProcess.start(self)

    def own_words(self) -> list[str]:
        """Return where it listens."""
        known = self.report.get("url", "").rpartition(":")[2]
        return ["--port", known or str(self.port)]


class Supervisor:
    """Keeps several child processes alive until it is stopped."""

    def __init__(self, children: Sequence[ChildProcess], call: Call) -> None:
        self._children = children
        self._call = call
        self._guards: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all at once; if one fails, none is left behind.

        Raises:
            ChildFailedError: from the first that failed.
        """
        results = await asyncio.gather(
            *(child.start() for child in self._children), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await self.stop()
            raise failed[0]
        self._guards = [asyncio.create_task(self._guard(child)) for child in self._children]

    async def stop(self) -> None:
        """Stop all; returns when every child is gone."""
        await cancel_and_wait(self._guards)
        await asyncio.gather(*(child.stop() for child in self._children))

    async def _guard(self, child: ChildProcess) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            began = loop.time()
            code = await child.wait()
            if loop.time() - began > _GOOD_START_S:
                pause_s = _FIRST_PAUSE_S
            why = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._call.warn(
                "child-failed", f"{child.name} {why}; it is started again in {pause_s:g} s"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            try:
                await child.start()
                self._call.note(f"{child.name} is there again")
            except (ChildFailedError, OSError, ValueError) as error:
                # A system that had no room for a process may have it the next time.
                self._call.warn("child-failed", str(error))
