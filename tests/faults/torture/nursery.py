"""Starts processes by forking one that has everything imported, and tells when they end.

A bookie is up in a tenth of the time that a fresh interpreter takes, and still is a process that
can be killed and paused alone.  All of them end with the nursery, which ends with its parent.

    {"id", "kind", "args", "directory"}  in:  ``command`` runs a command line, ``client`` a client
    {"id", "pid"}                        out: it runs
    {"pid", "status"}                    out: it ended, with this wait status
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from select import select
from typing import Any

_PR_SET_PDEATHSIG = 1


class Process:
    """A process of the nursery, by its id alone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.ended = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.status is None

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        """End it from one moment to the next."""
        self.send(signal.SIGKILL)
        await self.ended.wait()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for its end, so long; tell whether it came."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.ended.wait()
        return not self.is_alive


class Nursery:
    """The near side: ``start`` forks."""

    async def __aenter__(self) -> Nursery:
        self._started: dict[int, asyncio.Future[Process]] = {}
        self._processes: dict[int, Process] = {}
        self._numbers = itertools.count()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "faults.torture.nursery",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
        )
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.send(signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening

    async def start(self, kind: str, args: Any, directory: Path) -> Process:
        """Fork a process whose output goes to files of this directory."""
        number = next(self._numbers)
        self._started[number] = asyncio.get_running_loop().create_future()
        order = {"id": number, "kind": kind, "args": args, "directory": str(directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self._started[number]

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            news = json.loads(line)
            pid = news["pid"]
            if "id" in news:
                self._processes[pid] = Process(pid)
                self._started.pop(news["id"]).set_result(self._processes[pid])
            else:
                process = self._processes.pop(pid)
                process.status = news["status"]
                process.ended.set()
        for process in self._processes.values():
            process.status = -1
            process.ended.set()


def _forks() -> None:
    """The far side: fork as told, until nobody tells any more."""
    _warm_up()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
        # A beginning is always told before its end: both are told here, in this order.
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _begin(json.loads(line))
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                _tell({"pid": ended[0], "status": ended[1]})


def _tell(news: dict[str, Any]) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _begin(order: dict[str, Any]) -> None:
    pid = os.fork()
    if pid:
        _tell({"id": order["id"], "pid": pid})
        return
    status = 1
    try:
        status = _be(order["kind"], order["args"], Path(order["directory"]))
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # a child must never run its parent's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _be(kind: str, args: Any, directory: Path) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, str(directory / "out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, str(directory / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    if kind == "command":
        from quorumbook.cli.main import main

        return main(args)
    from faults.torture.clients import work

    return work(args)


def _warm_up() -> None:
    """Import what children would import, so that they need not."""
    from faults.torture.clients import work
    from quorumbook.cli.main import main

    assert work
    assert main
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _forks()
