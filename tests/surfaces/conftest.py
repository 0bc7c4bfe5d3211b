"""A cluster of real processes, and the command line against it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from doubles.clusters import local_cluster
from doubles.warm_command import run_command


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


class CommandLine:
    """Runs ``quorumbook`` in a process of its own, as a user does.

    A command that is called is over when its result is there; one that a test starts is a process
    of its own from the first instruction of Python on.
    """

    def __init__(self, uri: str, directory: str) -> None:
        self.directory = directory
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("QUORUMBOOK_")
        }
        self.environment["QUORUMBOOK_METADATA"] = uri

    def start(self, *words: object, **options) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "quorumbook", *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=self.environment, cwd=self.directory, **options,
        )  # fmt: skip

    @contextlib.contextmanager
    def running(self, *words: object) -> Iterator[subprocess.Popen]:
        """Run a command for the length of a block, whatever happens in it."""
        with self.start(*words) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def __call__(self, *words: object, stdin: bytes = b"", code: int = 0) -> Done:
        ended = run_command(
            *words, stdin=stdin, environment=self.environment, directory=self.directory
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr.decode())
        assert done.code == code, (words, done)
        assert "Traceback" not in done.err
        return done


cluster = local_cluster(scope="module")


@pytest.fixture
def quorumbook(cluster, tmp_path):
    """The command line on the cluster."""
    return CommandLine(cluster.metadata_uri, str(tmp_path))
