"""The systems under measurement: how each is started, loaded and stopped.

Every system keeps its data below one working directory and listens on loopback.  A system that
cannot run here raises ``Missing`` with the command that would mend it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kazoo.client import KazooClient

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests" / "interop"), str(HERE.parent / "tests")]

from peer_java import Missing, find_jars, find_java, free_port  # noqa: E402

from doubles.certificates import Authority  # noqa: E402

__all__ = ["Missing", "find_jars", "free_port"]
#: As much cache as the peer's bookies are given: 256 MB of write caches, 128 MB to read ahead;
#: written out as often as theirs.
PEER_CACHES = {
    "QUORUMBOOK_STORAGE_WRITE_CACHE_SIZE_BYTES": str(128 << 20),
    "QUORUMBOOK_STORAGE_READ_CACHE_SIZE_BYTES": str(128 << 20),
    "QUORUMBOOK_STORAGE_FLUSH_INTERVAL_S": "10",
}
#: Servers that take less than a tenth of a processor rest; a JVM takes some all the time.
_RESTING_S, _REST_INTERVAL_S, _REST_PATIENCE_S = 0.05, 0.5, 20.0
#: Nothing collects the ledgers of a run, and the peer's bookies are told the same.
FULL_DISKS = {
    "QUORUMBOOK_BOOKIE_MAX_DISK_USAGE": "0.99",
    "QUORUMBOOK_BOOKIE_DISK_USAGE_WRITABLE": "0.98",
}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not ready after {timeout_s:.0f} s")
        time.sleep(0.02)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


class Processes:
    """Child processes of one system, with their output in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def output(self, name: str) -> str:
        return (self.directory / f"{name}.out").read_text()

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> int:
        with (self.directory / f"{name}.out").open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **(env or {})}
            )
        self.running[name] = process
        return process.pid

    def processor_s(self, prefix: str = "") -> float:
        """Return the processor time that those whose names begin so have taken."""
        pids = [each.pid for name, each in self.running.items() if name.startswith(prefix)]
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in pids]
        times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]
        return sum(int(user) + int(system) for user, system in times) / os.sysconf("SC_CLK_TCK")

    def let_rest(self) -> None:
        """Wait until they do nothing any more of what they were asked before."""
        deadline = time.monotonic() + _REST_PATIENCE_S
        while time.monotonic() < deadline:
            before_s = self.processor_s()
            time.sleep(_REST_INTERVAL_S)
            if self.processor_s() - before_s <= _RESTING_S:
                return

    def stop(self, name: str, with_signal: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(with_signal)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        for name in list(self.running)[::-1]:
            self.stop(name)


def quorumbook(*words: str) -> list[str]:
    return [sys.executable, "-m", "quorumbook.cli.main", *words]


class Own:
    """Quorumbook's bookies as processes, over sqlite metadata if no other is given."""

    name = "own"

    def __init__(
        self,
        directory: Path,
        bookies: int = 3,
        uri: str | None = None,
        always: dict[str, str] = FULL_DISKS,
    ) -> None:
        self.directory = directory
        self._always = always
        self.processes = Processes(directory)
        self.uri = uri or f"sqlite:///{directory}/metadata.db"
        #: What loads are told besides.
        self.load_settings: dict[str, str] = {}
        self.ports = [free_port() for _ in range(bookies)]

    def start(self, settings: dict[str, str] = PEER_CACHES) -> None:
        subprocess.run(
            quorumbook("cluster", "init", "--metadata", self.uri),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.start_bookies(settings)

    def start_bookies(self, settings: dict[str, str] = PEER_CACHES) -> None:
        for index in range(len(self.ports)):
            self.start_bookie(index, settings)
        for index in range(len(self.ports)):
            self.wait_ready(index)

    def start_bookie(self, index: int, settings: dict[str, str]) -> None:
        command = quorumbook("bookie", "run", "--metadata", self.uri)
        command += ["--port", str(self.ports[index]), "--advertised-address", "127.0.0.1"]
        command += ["--data-dir", str(self.directory / f"bookie{index}")]
        self.processes.start(f"bookie{index}", command, {**self._always, **settings})

    def wait_ready(self, index: int, timeout_s: float = 60.0) -> None:
        """Wait until a bookie says that it serves."""
        name = f"bookie{index}"
        wait_until(lambda: "bookie_id" in self.processes.output(name), name, timeout_s)

    def stop_bookies(self) -> None:
        self.processes.stop_all()

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.running.values()]

    def load(self, *words: str) -> dict[str, float]:
        """Run a ``quorumbook bench`` command and return its JSON object."""
        done = subprocess.run(
            quorumbook("bench", *words, "--metadata", self.uri, "-o", "json"),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **self.load_settings},
        )
        if done.returncode:
            raise RuntimeError(f"quorumbook bench {' '.join(words)}: {done.stderr[-500:]}")
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def stop(self) -> None:
        self.processes.stop_all()


class Floor:
    """The hot path alone."""

    name = "floor"

    def __init__(self, directory: Path, bookies: int = 3) -> None:
        self.processes = Processes(directory)
        self.directory = directory
        self.ports = [free_port() for _ in range(bookies)]

    def start(self) -> None:
        for index, port in enumerate(self.ports):
            self.processes.start(
                f"bookie{index}",
                [
                    sys.executable,
                    str(HERE / "floor" / "bookie.py"),
                    str(port),
                    str(self.directory / f"journal{index}"),
                ],
            )
        for port in self.ports:
            wait_until(lambda port=port: answers(port), f"floor bookie on port {port}")

    def load(
        self, ensemble: int, write: int, ack: int, size: int, count: int, in_flight: int
    ) -> dict[str, float]:
        """Return the last round's rate and the p50 of one add at a time."""
        done = subprocess.run(
            [
                sys.executable,
                str(HERE / "floor" / "client.py"),
                ",".join(map(str, self.ports)),
                *map(str, (ensemble, write, ack, size, count, in_flight)),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = done.stdout.strip().splitlines()
        rates = [float(line.split(": ")[1].split()[0]) for line in lines if "entries/s" in line]
        single = float(lines[-1].split("p50 ")[1].split()[0])
        return {"entries_per_s": rates[-1], "single_p50_ms": single}

    def stop(self) -> None:
        self.processes.stop_all()


class Java:
    """What the peer's processes share: class path, ZooKeeper, the load generator."""

    def __init__(self, directory: Path) -> None:
        self.installed = find_java(sorted((HERE / "peer").glob("*.java")))
        self.directory = directory
        self.processes = Processes(directory)
        self.zookeeper_port = free_port()

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://127.0.0.1:{self.zookeeper_port}/ledgers"

    def java(self, *words: str) -> list[str]:
        return self.installed.command(*words[-1].split(), options=words[:-1])

    def start_zookeeper(self) -> None:
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime=2000\ndataDir={self.directory}/zk\nclientPort={self.zookeeper_port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=*\n"
        )
        self.processes.start(
            "zookeeper",
            self.java("-Xmx512m", f"org.apache.zookeeper.server.ZooKeeperServerMain {config}"),
        )
        wait_until(self._zookeeper_answers, "ZooKeeper")
        self.write_config(self.directory / "init.conf", self.directory / "init", 0)
        subprocess.run(
            self.java(
                "org.apache.bookkeeper.bookie.BookieShell -conf "
                f"{self.directory}/init.conf initnewcluster"
            ),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _zookeeper_answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.zookeeper_port), timeout=1) as connection,
        ):
            connection.sendall(b"ruok")
            return connection.recv(16) == b"imok"
        return False

    def write_config(self, path: Path, data: Path, port: int) -> None:
        path.write_text(
            f"bookiePort={port}\nallowLoopback=true\nadvertisedAddress=127.0.0.1\n"
            f"metadataServiceUri={self.uri}\njournalDirectories={data}/journal\n"
            f"ledgerDirectories={data}/ledgers\n"
            "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
            "dbStorage_writeCacheMaxSizeMb=256\ndbStorage_readAheadCacheMaxSizeMb=128\n"
            "httpServerEnabled=false\ndiskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.98\n"
        )

    def load(
        self, uri: str, rounds: int = 3, counted: int = 1, **arguments: object
    ) -> dict[str, float]:
        """Run the load generator; the JVM warms up in its first rounds.

        Returns:
            The median round, by its rate, of the last ``counted`` ones.
        """
        results = self._run("PeerLoad", uri=uri, rounds=rounds, **arguments)[-counted:]
        return sorted(results, key=lambda result: result["entries_per_s"])[counted // 2]

    def load_streams(
        self,
        mode: str,
        rounds: int,
        cases: Sequence[tuple[int, int, int, int]],
        **arguments: object,
    ) -> list[float]:
        """Write or read streams with DistributedLog.

        Args:
            mode: ``write`` or ``read``.
            rounds: Through all cases; the last one counts.
            cases: Bytes of an entry, records of a call, calls under way, and records.
            arguments: Others of ``PeerStreamLoad``.

        Returns:
            Records per second of each case.
        """
        results = self._run(
            "PeerStreamLoad",
            servers=f"127.0.0.1:{self.zookeeper_port}",
            ledgers="/ledgers",
            mode=mode,
            rounds=rounds,
            cases=",".join(":".join(map(str, case)) for case in cases),
            **arguments,
        )
        return [result["records_per_s"] for result in results[-len(cases) :]]

    def _run(self, program: str, rounds: int, **arguments: object) -> list[dict[str, float]]:
        words = " ".join(f"{key}={value}" for key, value in arguments.items())
        command = f"{program} rounds={rounds} {words}"
        done = subprocess.run(
            self.java("-Xmx1g", "-XX:MaxDirectMemorySize=2g", command),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if len(lines) < rounds:
            raise RuntimeError(f"{command}: {done.stdout[-300:]}{done.stderr[-300:]}")
        results: list[dict[str, float]] = [json.loads(line) for line in lines]
        failed = sum(result["failed"] for result in results)
        if failed:
            raise RuntimeError(f"{command}: {failed:.0f} operations failed: {done.stderr[-2000:]}")
        return results


class Peer:
    """The peer's bookies in its own ZooKeeper."""

    name = "peer"

    def __init__(self, java: Java, bookies: int = 3) -> None:
        self.java = java
        self.ports = [free_port() for _ in range(bookies)]
        self.uri = java.uri

    def start(self) -> None:
        self.java.start_zookeeper()
        self.start_bookies()

    def start_bookies(self) -> None:
        for index, port in enumerate(self.ports):
            config = self.java.directory / f"bookie{index}.conf"
            self.java.write_config(config, self.java.directory / f"bookie{index}", port)
            self.java.processes.start(
                f"bookie{index}",
                self.java.java(
                    "-Xms512m",
                    "-Xmx1g",
                    "-XX:MaxDirectMemorySize=1g",
                    f"org.apache.bookkeeper.server.Main --conf {config}",
                ),
            )
        for port in self.ports:
            wait_until(lambda port=port: answers(port), f"peer bookie on port {port}")

    def stop_bookies(self) -> None:
        for index in range(len(self.ports)):
            self.java.processes.stop(f"bookie{index}")

    def stop(self) -> None:
        self.java.processes.stop_all()


class Mixed(Own):
    """Quorumbook's bookies under a second root of the peer's ZooKeeper."""

    name = "mixed"

    def __init__(self, java: Java, directory: Path) -> None:
        super().__init__(directory, uri=java.uri.replace("/ledgers", "/mixed"))

        ca = Authority(directory)
        self._ca_file = ca.ca_file
        self._issued = ca.issue("bookie", ips=["127.0.0.1"], dns=["localhost"])
        #: What the peer's client is told to come over TLS, which the bookies offer.
        self.tls = {
            "conf.tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "conf.tlsTrustStoreType": "PEM",
            "conf.tlsTrustStore": ca.ca_file,
        }

    def start_bookies(self, settings: dict[str, str] = PEER_CACHES) -> None:
        tls = {
            "QUORUMBOOK_TLS_ENABLED": "true",
            "QUORUMBOOK_TLS_CERTIFICATE_FILE": self._issued.certificate_file,
            "QUORUMBOOK_TLS_KEY_FILE": self._issued.key_file,
        }
        super().start_bookies({**settings, **tls})

    @contextlib.contextmanager
    def loads_over_tls(self) -> Iterator[None]:
        """Have our own client come over TLS meanwhile."""
        tls = {"QUORUMBOOK_TLS_ENABLED": "true", "QUORUMBOOK_TLS_CA_FILE": self._ca_file}
        before, self.load_settings = self.load_settings, tls
        try:
            yield
        finally:
            self.load_settings = before

    @contextlib.contextmanager
    def canned(self, ledger_id: int, count: int, size: int) -> Iterator[None]:
        """Have bookies that cost next to nothing answer the reads of one ledger meanwhile."""
        self.stop_bookies()
        words = [str(word) for word in (ledger_id, count, size)]
        for index, port in enumerate(self.ports):
            command = [sys.executable, str(HERE / "floor" / "canned.py"), str(port), *words]
            self.processes.start(f"canned{index}", command)
            name = f"canned{index}"
            wait_until(lambda name=name: "ready" in self.processes.output(name), name)
        hosts, _, root = self.uri.partition("://")[2].partition("/")
        registry = KazooClient(hosts)
        registry.start()
        try:
            for port in self.ports:
                registry.create(f"/{root}/available/127.0.0.1:{port}", b"", ephemeral=True)
            yield
        finally:
            registry.stop()
            self.stop_bookies()
            self.start_bookies()


class OnEtcd(Own):
    """Quorumbook's bookies over an etcd of one member, with its own defaults."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        if shutil.which("etcd") is None:
            raise Missing("apt-get install etcd-server")
        self._client, self._peers = free_port(), free_port()
        super().__init__(directory, uri=f"etcd://127.0.0.1:{self._client}/ledgers")

    def start(self, settings: dict[str, str] = PEER_CACHES) -> None:
        client, peers = (f"http://127.0.0.1:{port}" for port in (self._client, self._peers))
        words = [
            "--data-dir",
            str(self.directory / "etcd"),
            "--initial-cluster",
            f"default={peers}",
        ]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        self.processes.start("etcd", ["etcd", *words])
        wait_until(lambda: answers(self._client), "etcd")
        super().start(settings)
