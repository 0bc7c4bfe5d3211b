"""Processes that the examples talk to, and kill."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys


class Process:
    """A script with its own standard input and output, line by line."""

    def __init__(self, script: str, *words: str) -> None:
        self._words = [sys.executable, script, *words]
        self.start()

    def start(self) -> None:
        """Start it, again if it was killed."""
        self.process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, whatever it is doing."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Close its input, and wait until it has ended by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def say(self, line: str) -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self._words} ended with {self.process.wait()}")
        return line
