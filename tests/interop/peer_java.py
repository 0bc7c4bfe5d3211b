"""Where the peer's Java comes from: a JDK, Maven, its jars, our few sources beside them.

Tests and measurements use it.  Jars come from Maven Central by ``peer/pom.xml``; the class path and
what was compiled are kept below ``build/peer`` for as long as nothing that they depend on changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "peer"
POM = HERE / "peer" / "pom.xml"
LOGGING = HERE / "peer" / "log4j2.properties"
DRIVER = sorted((HERE / "peer").glob("*.java"))


class Missing(Exception):  # noqa: N818 - nothing went wrong; the machine lacks a tool
    """Something that the peer needs is not on this machine."""


@dataclass(frozen=True)
class Java:
    """A Java that knows the peer."""

    classpath: str

    def command(self, *words: str, options: tuple[str, ...] = (), log: str = "error") -> list[str]:
        """Return the command line that runs a class with its arguments."""
        logging = (f"-Dlog4j2.configurationFile={LOGGING}", f"-Dquorumbook.log={log}")
        return ["java", *logging, *options, "-cp", self.classpath, *words]


def free_port() -> int:
    """Return a port below those that outgoing connections are given, which could take it."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def lacking() -> str | None:
    """Say what this machine lacks and how to get it."""
    for tool, package in (
        ("java", "default-jdk-headless"),
        ("javac", "default-jdk-headless"),
        ("mvn", "maven"),
    ):
        if shutil.which(tool) is None:
            return f"{tool} is missing: apt-get install {package}"
    return None


def find_jars(pom: Path = POM) -> str:
    """Return a class path of the peer's jars.

    Raises:
        Missing: a tool is missing, or Maven could not get the jars.
    """
    reason = lacking()
    if reason is not None:
        raise Missing(reason)
    BUILD.mkdir(parents=True, exist_ok=True)
    with _alone():
        return _jars(pom)


def find_java(sources: list[Path] = DRIVER, pom: Path = POM) -> Java:
    """Return a Java with the peer's jars and the given sources compiled.

    Raises:
        Missing: a tool is missing, or Maven could not get the jars.
    """
    jars = find_jars(pom)
    with _alone():
        classes = BUILD / f"classes-{_digest(pom, *sources)}"
        if not classes.exists():
            building = BUILD / "building"
            shutil.rmtree(building, ignore_errors=True)
            _run(["javac", "-nowarn", "-cp", jars, "-d", str(building), *map(str, sources)])
            building.rename(classes)
    return Java(f"{jars}:{classes}")


def _jars(pom: Path) -> str:
    kept = BUILD / f"classpath-{_digest(pom)}"
    if kept.exists():
        jars = kept.read_text().strip()
        if all(Path(jar).exists() for jar in jars.split(":")):
            return jars
    found = BUILD / "classpath"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={found}"]
    _run(["mvn", "-q", "-B", "-f", str(pom), *goal])
    found.rename(kept)
    return kept.read_text().strip()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BUILD)
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-800:]
        raise Missing(f"{command[0]} failed (is Maven Central reachable?): {output}")


def _digest(*files: Path) -> str:
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let one process build, while others wait for what it makes."""
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
