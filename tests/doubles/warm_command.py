"""Commands of ``quorumbook``, each in a process of its own that begins with all modules imported.

A process that starts from nothing spends half a second of a core on imports, and tests of the
command line start a thousand.  ``run_command`` has a child of a process that imported them once do
what ``python -m quorumbook WORDS`` does: with its own files, environment, directory and exit code.
What depends on how Python starts (its options, the locale, standard files that are closed) and
commands that a test writes to or kills while they run want a real process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any, NoReturn

import click

_LENGTH_BYTES = 4


class WarmCommands:
    """The process that commands are forked from, until this one ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: what lies beside this file shadows no module.
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def run(
        self,
        words: Sequence[str],
        stdin: bytes,
        environment: Mapping[str, str],
        directory: str,
        timeout_s: float,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, as ``run_command`` says."""
        into, answers = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        (child_in, to_child), (from_child, child_out), (errors, child_err) = pipes
        asked = json.dumps([list(words), dict(environment), directory]).encode()
        try:
            files = [child_in, child_out, child_err, answers.fileno()]
            length = len(asked).to_bytes(_LENGTH_BYTES, "big")
            with self._lock:
                socket.send_fds(self._ours, [length], files)
                self._ours.sendall(asked)
        finally:
            answers.close()
            for fd in child_in, child_out, child_err:
                os.close(fd)
        with (
            into,
            open(to_child, "wb") as given,
            open(from_child, "rb") as out,
            open(errors, "rb") as err,
        ):
            code, *written = _exchanged(into, given, stdin, out, err, timeout_s)
        return subprocess.CompletedProcess(list(words), code, *written)


@cache
def _of_this_process() -> WarmCommands:
    return WarmCommands()


def run_command(
    *words: object,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] = ".",
    timeout_s: float = 100.0,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of ``quorumbook`` to its end.

    Args:
        words: What follows ``quorumbook``.
        environment: All variables; this process's by default.

    Raises:
        TimeoutError: it has not ended by then; it is killed.
    """
    return _of_this_process().run(
        [*map(str, words)],
        stdin,
        os.environ if environment is None else environment,
        os.path.abspath(directory),
        timeout_s,
    )


def _exchanged(
    into: socket.socket,
    given: IO[bytes],
    stdin: bytes,
    out: IO[bytes],
    err: IO[bytes],
    timeout_s: float,
) -> tuple[int, bytes, bytes]:
    """Feed a command, read what it writes, and wait for its exit code."""
    read: dict[int, bytes] = {}

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError):  # as ``communicate`` does
            with given:
                given.write(stdin)

    def drain(number: int, file: IO[bytes]) -> None:
        read[number] = file.read()

    threads = [threading.Thread(target=feed)]
    threads += [threading.Thread(target=drain, args=each) for each in ((1, out), (2, err))]
    pid = int.from_bytes(into.recv(_LENGTH_BYTES), "big")
    for thread in threads:
        thread.start()
    into.settimeout(timeout_s)
    began = time.monotonic()
    try:
        code = int.from_bytes(into.recv(_LENGTH_BYTES), "big", signed=True)
        for thread in threads:
            thread.join(timeout_s - (time.monotonic() - began))
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError("a child of the command keeps its files open")
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise
    return code, read[1], read[2]


def _serve(ours: socket.socket) -> NoReturn:
    """Fork a child for each command; it is told pid and exit code by the fourth file."""
    _import_all()
    gc.collect()
    gc.freeze()
    while True:
        length, files, _, _ = socket.recv_fds(ours, _LENGTH_BYTES, 4)
        if not length:
            os._exit(0)
        asked = bytearray()
        while left := int.from_bytes(length, "big") - len(asked):
            asked += ours.recv(left)
        # One in between waits, so that commands may run side by side.
        if os.fork() == 0:
            ours.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _in_a_child(json.loads(asked), files)
        for fd in files:
            os.close(fd)


def _in_a_child(asked: list[Any], files: list[int]) -> None:
    """Become the command, in a process whose parent tells how it ended."""
    words, environment, directory = asked
    *standard, answers = files
    child = os.fork()
    if child != 0:
        for fd in standard:
            os.close(fd)
        with socket.socket(fileno=answers) as told:
            told.sendall(child.to_bytes(_LENGTH_BYTES, "big"))
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            told.sendall(code.to_bytes(_LENGTH_BYTES, "big", signed=True))
        os._exit(0)
    os.close(answers)
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(importlib.import_module("quorumbook.cli.main").main(words))


def _import_all() -> None:
    """Import what commands do, so that none of them has to."""
    main = importlib.import_module("quorumbook.cli.main")
    context = click.Context(main.root)
    for name in main.root.list_commands(context):
        main.root.get_command(context, name)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those in between
    _serve(socket.socket(fileno=int(sys.argv[1])))
