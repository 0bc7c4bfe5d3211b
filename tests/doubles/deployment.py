"""Starts what deployment files describe, as plain processes on loopback, without any image.

A name of a host becomes an address of 127.0.0.0/8 of its own, and so does 0.0.0.0; ports stay as
they are.  A directory that a container mounts becomes one of the test's.  Both are replaced in the
text of command lines, variables and files, and nothing else is changed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorumbook.zookeeper_server import find_java

#: Longer than anything here takes.
PATIENCE_S = 60
_SCRIPTS = str(Path(sys.executable).parent)


@dataclass
class Container:
    """What one container runs.

    Attributes:
        host: The address that stands for it.
        command: Its words, before anything is replaced.
        variables: Its environment, likewise.
        mounts: Where the directories and files that it mounts are in truth.
    """

    host: str
    command: Sequence[str]
    variables: Mapping[str, str]
    mounts: Mapping[str, Path]


class Stage:
    """Runs containers; what still runs at the end is killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Two runs at once, of two checkouts, must not meet on a port.
        self._network = f"127.{random.randrange(16, 250)}.{random.randrange(250)}"
        self.hosts: dict[str, str] = {}
        self.logs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def host(self, *names: str) -> str:
        """Return the address of a new host of these names."""
        address = f"{self._network}.{len(set(self.hosts.values())) + 1}"
        self.hosts.update(dict.fromkeys(names, address))
        return address

    def text(self, text: str, container: Container) -> str:
        """Put addresses and directories of the stage into a text."""
        for name in sorted(self.hosts, key=len, reverse=True):
            # Behind one slash it is a path, behind two a host.
            alone = rf"(?<![\w.*-])(?<!(?<!/)/){re.escape(name)}(?![\w.-])"
            text = re.sub(alone, self.hosts[name], text)
        text = re.sub(r"(?<![\d.])(?:0\.0\.0\.0|127\.0\.0\.1)(?![\d.])", container.host, text)
        for path in sorted(container.mounts, key=len, reverse=True):
            place = str(container.mounts[path])
            text = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", place, text)
        return text

    def start(self, container: Container) -> subprocess.Popen[bytes]:
        """Start a container's command."""
        words = [self.text(word, container) for word in container.command]
        if words[0] == "quorumbook":
            words[:1] = [sys.executable, "-m", "quorumbook"]
        log = self.directory / f"{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as file:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                cwd=self.directory, env=self._environment(container),
            )  # fmt: skip
        self._processes.append(process)
        return process

    def run(self, container: Container) -> None:
        """Run a container's command to its end, which must be good."""
        code = self.start(container).wait(PATIENCE_S)
        assert code == 0, (container.command, self.logs[-1].read_text())

    def wait_healthy(self, container: Container, command: Sequence[str]) -> None:
        """Wait until a health check passes; its container must not have ended before."""
        words = [self.text(word, container) for word in command]
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(
            words, env=self._environment(container), capture_output=True, check=False
        ).returncode:
            assert time.monotonic() < deadline, (words, [log.read_text() for log in self.logs])
            time.sleep(0.1)

    def _environment(self, container: Container) -> dict[str, str]:
        """Return what the image has, where the package's commands are in PATH, and no more."""
        own = {"PATH": f"{_SCRIPTS}:{os.environ['PATH']}"}
        if "PYTHONPATH" in os.environ:  # of sources with a planted bug
            own["PYTHONPATH"] = os.environ["PYTHONPATH"]
        return own | {k: self.text(v, container) for k, v in container.variables.items()}

    def stop(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stage(directory: Path) -> Iterator[Stage]:
    """Return a stage that is cleared at the end."""
    made = Stage(directory)
    try:
        yield made
    finally:
        made.stop()


def zookeeper_command(
    directory: Path, classpath: str, variables: Mapping[str, str], host: str
) -> list[str]:
    """Return what the image zookeeper:3.9 would run with such variables.

    Its entry point writes the words of these variables into ``zoo.cfg``, one a line.
    """
    lines = [
        f"dataDir={directory / 'data'}",
        "tickTime=2000",
        "initLimit=5",
        "syncLimit=2",
        f"admin.enableServer={variables.get('ZOO_ADMINSERVER_ENABLED', 'true')}",
        *variables.get("ZOO_SERVERS", "server.1=localhost:2888:3888;2181").split(),
        *variables.get("ZOO_CFG_EXTRA", "").split(),
        f"secureClientPortAddress={host}",
    ]
    directory.mkdir(exist_ok=True)
    (directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [
        find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", classpath, main,
        str(directory / "zoo.cfg"),
    ]  # fmt: skip
