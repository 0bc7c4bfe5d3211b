"""Finds a ZooKeeper on this machine and runs it, alone or as one of an ensemble.

For tests, measurements and small clusters: ``quorumbook zookeeper run`` and ``testing`` start
servers by this.  The jars come from a class path given by name, an installed PySpark, Debian's
package or the local Maven repository, in this order.  The server listens on the address given and
on no other, logs into its data directory, and ends when the process that started it does.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumbook.errors import ConfigError, MetadataUnavailableError

_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
#: Lets the server say why it fails; it runs without.  The first that is there whole.
_LOGGERS = (("slf4j-simple",), ("log4j-slf4j2-impl", "log4j-core", "log4j-api"))
#: A server with a JAAS file or TLS needs them, a plain one does not.
_NETTY_JARS = tuple(
    f"netty-{part}"
    for part in (
        "buffer", "codec", "codec-base", "common", "handler", "resolver", "transport",
        "transport-classes-epoll", "transport-native-unix-common",
    )
)  # fmt: skip
_DEBIAN_JAR = "/usr/share/java/zookeeper.jar"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_VERSION = re.compile(r"-(\d[\w.]*)\.jar$")
#: The heap is the one of ZooKeeper's own scripts, and out of memory it ends rather than limps.
_JAVA_OPTIONS = (
    "-Xmx1000m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
#: What ends a server, or keeps its virtual machine from starting, but not the words behind that.
_CAUSE = re.compile(
    r"(Exception|Error): (?!Could not create the Java|A fatal exception)\S"
    r"|^(Unrecognized|Invalid|Initial heap|Could not reserve) "
)
#: What slf4j 1 and 2 say without one.
_NO_LOGGER = re.compile(r"SLF4J.*(No SLF4J providers were found|Failed to load class)")
_STOP_TIMEOUT_S = 10.0
_HOW_TO_GET_JAVA = "install it (Debian: apt-get install openjdk-17-jre-headless)"
_HOW_TO_GET_ZOOKEEPER = (
    "install Debian's package (apt-get install libzookeeper-java) or PySpark (pip install"
    " pyspark), or name the jars with --classpath"
)
#: Ends the server when our end of its standard input closes without a word.
_RUN = 'exec 3<&0; (read -r word <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'


class Member(NamedTuple):
    """One server of an ensemble: where the others find it."""

    host: str
    #: Where a leader takes its followers.
    peer_port: int
    election_port: int


def find_java() -> str:
    """Return the path of the Java virtual machine.

    Raises:
        ConfigError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise ConfigError(f"ZooKeeper needs Java, which is not here: {_HOW_TO_GET_JAVA}")
    return java


def find_classpath(given: str | None = None) -> str:
    """Return a class path with a ZooKeeper on it.

    Args:
        given: A class path as ``java -cp`` takes it, or a directory of jars.

    Raises:
        ConfigError: there is none, or not where it was said to be.
    """
    if given is not None:
        path = os.path.join(given, "*") if os.path.isdir(given) else given
        if not _has_zookeeper(path):
            raise ConfigError(f"there is no ZooKeeper on the class path {given}")
        return path
    for find in (_in_pyspark, _in_debian, _in_maven):
        path = find()
        if path:
            return path
    raise ConfigError(f"there is no ZooKeeper on this machine: {_HOW_TO_GET_ZOOKEEPER}")


def _has_zookeeper(path: str) -> bool:
    jars = [jar for each in path.split(os.pathsep) for jar in _jars_of(each)]
    return any(os.path.basename(jar).startswith("zookeeper") for jar in jars)


def _jars_of(entry: str) -> list[str]:
    return glob.glob(f"{entry}.jar") if entry.endswith("*") else [entry] * os.path.exists(entry)


def _in_pyspark() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.origin:
        return ""
    return _together(os.path.join(os.path.dirname(spec.origin), "jars", "{name}-[0-9]*.jar"))


def _in_debian() -> str:
    # Its manifest names the other jars, but none that logs.
    jars = (_DEBIAN_JAR, os.path.join(os.path.dirname(_DEBIAN_JAR), f"{_LOGGERS[0][0]}.jar"))
    return os.pathsep.join(filter(os.path.exists, jars)) if os.path.exists(_DEBIAN_JAR) else ""


def _in_maven() -> str:
    repository = os.path.join(os.path.expanduser("~"), ".m2", "repository")
    return _together(os.path.join(repository, "**", "{name}", "*", "{name}-[0-9]*.jar"))


def _together(pattern: str) -> str:
    """Return a class path of the newest of each jar, or nothing if one is missing."""
    jars = [_newest(pattern, name) for name in _JARS]
    if not all(jars):
        return ""
    jars += [_newest(pattern, name) for name in _NETTY_JARS]
    for logger in _LOGGERS:
        found = [_newest(pattern, name) for name in logger]
        if all(found):
            jars += found
            break
    return os.pathsep.join(filter(None, jars))


def _newest(pattern: str, name: str) -> str:
    found = glob.glob(pattern.format(name=name), recursive=True)
    return max((jar for jar in found if _VERSION.search(jar)), key=_version, default="")


def _version(jar: str) -> list[int]:
    match = _VERSION.search(jar)
    return [int(part) for part in re.findall(r"\d+", match[1])] if match else []


def _flags_of_environment() -> list[str]:
    try:
        return shlex.split(os.environ.get("JVMFLAGS", ""))
    except ValueError as error:
        raise ConfigError(f"JVMFLAGS cannot be understood: {error}") from error


@dataclass
class ZooKeeperServer:
    """One server process.

    Args:
        data_dir: Where its data, configuration and log are; made if need be.
        port: Where clients reach it.
        host: The address it listens on.
        classpath: See ``find_classpath``.
        members: All servers of the ensemble; none for a server alone.
        index: Which of them this is.
        tick_time_ms: The unit of its timeouts; sessions end with this precision.
        java_options: For the virtual machine, behind those of the environment's ``JVMFLAGS``.
    """

    data_dir: str
    port: int
    host: str = "127.0.0.1"
    classpath: str | None = None
    members: Sequence[Member] = ()
    index: int = 0
    tick_time_ms: int = 2000
    java_options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Host and port for a metadata URI."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> str:
        """Where the server's own words go."""
        return os.path.join(self.data_dir, "zookeeper.log")

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server without waiting for it.

        Raises:
            ConfigError: there is no Java, or no ZooKeeper.
        """
        java, classpath = find_java(), find_classpath(self.classpath)
        self._refuse_used_port()
        os.makedirs(self.data_dir, exist_ok=True)
        config = os.path.join(self.data_dir, "zoo.cfg")
        with open(config, "w", encoding="utf-8") as file:
            file.write(self._configuration())
        if self.members:
            with open(os.path.join(self.data_dir, "myid"), "w", encoding="utf-8") as file:
                file.write(str(self.index + 1))
        options = [*_JAVA_OPTIONS, *_flags_of_environment(), *self.java_options]
        command = [java, *options, "-cp", classpath, _MAIN, config]
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the words are ours
                ["/bin/sh", "-c", _RUN, "zookeeper", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # A Ctrl-C goes to whoever started the server, and stops it in order.
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it serves; one of an ensemble does when most of the ensemble are there.

        Raises:
            MetadataUnavailableError: it ended, or does not serve after this time.
        """
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while True:
            # Before the look: while this process was paused the server may have got ready.
            is_over = time.monotonic() > deadline
            if self.mode():
                return
            if self._process.poll() is not None:
                raise MetadataUnavailableError(f"ZooKeeper did not start: {self.last_word()}")
            if is_over:
                raise MetadataUnavailableError(
                    f"ZooKeeper does not serve after {timeout_s:g} s; see {self.log_path}"
                )
            time.sleep(0.02)

    def mode(self) -> str:
        """Return standalone, leader or follower, or nothing while it does not serve."""
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return ""
        match = re.search(rb"^Mode: (\w+)", answer, re.MULTILINE)
        return match[1].decode() if match else ""

    def poll(self) -> int | None:
        """Return the exit code if the server has ended."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Stop the server; what it has answered is on its disk."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server without any warning."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the server: connections stay, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal takes its time to reach every thread; until then one of them may answer.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def last_word(self) -> str:
        """Return the line of its log that most likely says why it ended."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log]
        causes = [line for line in lines if re.search(_CAUSE, line)]
        silence = f"it does not say why; look into {self.data_dir}"
        if any(re.match(_NO_LOGGER, line) for line in lines):
            silence = (
                "it cannot say why, because no logger for slf4j is on its class path; add"
                f" slf4j-simple.jar to --classpath, and look into {self.data_dir}"
            )
        return (causes or [silence])[-1][:300]

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            # The process id may be somebody else's by now.
            process.stdin.write(b"ended\n")
            process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()

    def _refuse_used_port(self) -> None:
        # The server's own word about it is a page long.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise ConfigError(
                    f"a ZooKeeper cannot listen on {self.address}: {error.strerror}"
                ) from error

    def _configuration(self) -> str:
        lines = [
            f"tickTime={self.tick_time_ms}",
            f"dataDir={os.path.abspath(self.data_dir)}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr,ruok,mntr",
            "maxClientCnxns=0",
            "maxSessionTimeout=3600000",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if self.members:
            lines += ["initLimit=10", "syncLimit=5"]
            for number, member in enumerate(self.members, start=1):
                ports = f"{member.peer_port}:{member.election_port}"
                lines.append(f"server.{number}={member.host}:{ports}")
        return "\n".join(lines) + "\n"
