"""A cluster of Apache Pulsar as its users run it: its own setup, real brokers, our bookies.

ZooKeeper, bookies and brokers are processes of their own, which may be killed; they end with the
process that started them.  Pulsar's jars come from Maven Central by ``pom.xml`` beside this file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar

from interop.peer_java import Java, free_port
from quorumbook.zookeeper_server import ZooKeeperServer

POM = Path(__file__).with_name("pom.xml")
PATIENCE_S = 120.0
NAME = "eu"
#: What Pulsar's own configuration gives Java bookies: room for messages of 5 MB.
FRAME_SIZE_BYTES = 5_253_120
_MEMORY = (
    "-Xmx320m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
_OPENED = (
    "java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip",
    "java.base/jdk.internal.misc", "java.base/jdk.internal.platform", "java.base/sun.net",
    "java.management/sun.management", "jdk.management/com.sun.management.internal",
)  # fmt: skip
#: Runs a command until it ends or standard input does.
_RUN = 'exec 3<&0; (read -r word <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'
#: Small ledgers and small caches; nothing is kept longer than it must be.
_BROKER = {
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "clusterName": NAME,
    "managedLedgerDefaultEnsembleSize": 2,
    "managedLedgerDefaultWriteQuorum": 2,
    "managedLedgerDefaultAckQuorum": 2,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerMaxEntriesPerLedger": 200,
    "managedLedgerCacheSizeMB": 16,
    "managedLedgerCursorRolloverTimeInSeconds": 60,
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": 5,
    "brokerDeleteInactiveTopicsEnabled": "false",
    "transactionCoordinatorEnabled": "true",
    "numIOThreads": 2,
    "numOrderedExecutorThreads": 2,
    "numHttpServerThreads": 8,
    "metadataStoreSessionTimeoutMillis": 10_000,
    "loadBalancerEnabled": "false",
    "preferLaterVersions": "false",
}


def wait_until(is_so: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it does not come true.
    """
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.1)


class OurBookie:
    """A bookie of ours in a process; ``options`` are ``--set`` words."""

    def __init__(self, uri: str, directory: Path, *options: str) -> None:
        self._uri = uri
        self.directory = directory
        self._options = options
        self._port = free_port()
        self.id = f"127.0.0.1:{self._port}"
        self.http = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "quorumbook", "bookie", "run", "-o", "jsonl"]
        words += ["--metadata", self._uri, "--port", str(self._port), "--stop-with-parent"]
        words += ["--data-dir", str(self.directory)]
        for option in ("http.port=0", *self._options):
            words += ["--set", option]
        with (self.directory / "bookie.log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.directory / "bookie.log").read_text()[-2000:]
        self.http = json.loads(line)["http"]

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(is_kill=True)

    def stop(self) -> None:
        """End it in order."""
        self._end(is_kill=False)

    def _end(self, *, is_kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        (process.kill if is_kill else process.terminate)()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def collect(self) -> dict[str, Any]:
        """Ask for a collection as a Java bookie is asked, and return the counters so far."""
        request(f"{self.http}/api/v1/bookie/gc", "PUT", {"forceMajor": True})
        found: dict[str, Any] = request(f"{self.http}/api/v1/bookie/gc_details")
        return found

    def entry_log_bytes(self) -> int:
        """Return how much its entry logs take."""
        return sum(path.stat().st_size for path in self.directory.rglob("*.log"))


class Broker:
    """A broker in a process."""

    def __init__(self, java: Java, zookeeper: str, directory: Path, conf: dict[str, Any]) -> None:
        self._java = java
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        port, http = free_port(), free_port()
        self.url = f"pulsar://127.0.0.1:{port}"
        self.http = f"http://127.0.0.1:{http}"
        self._conf = {
            **_BROKER,
            "brokerServicePort": port,
            "webServicePort": http,
            "metadataStoreUrl": f"zk:{zookeeper}",
            "configurationMetadataStoreUrl": f"zk:{zookeeper}",
            **conf,
        }

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._conf.items()))
        words = java_command(self._java, self._directory, "org.apache.pulsar.PulsarBrokerStarter")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _RUN, "broker", *words, "--broker-conf", str(file)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(self._is_ready, f"a broker that serves; see {self.log}")

    @property
    def log(self) -> Path:
        """What it says."""
        return self._directory / "broker.log"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        with contextlib.suppress(OSError):
            return self.admin("brokers/ready", raw=True) == "ok"
        return False

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def admin(
        self, path: str, method: str = "GET", body: object = None, *, raw: bool = False
    ) -> Any:
        """Ask the broker's administration; ``raw`` answers are text."""
        return request(f"{self.http}/admin/v2/{path}", method, body, raw=raw)


class PulsarCluster:
    """One ZooKeeper, bookies of ours, and brokers."""

    def __init__(self, java: Java, zookeeper: ZooKeeperServer, directory: Path) -> None:
        self._java = java
        self._directory = directory
        self.zookeeper = zookeeper
        self.uri = f"zk://{zookeeper.address}/ledgers"
        self.bookies: list[OurBookie] = []
        self.brokers: list[Broker] = []
        self._clients: list[pulsar.Client] = []
        self._numbers = itertools.count()

    def set_up(self) -> None:
        """Make the cluster's metadata by Pulsar's own command."""
        store = f"zk:{self.zookeeper.address}"
        self._directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [
                *java_command(
                    self._java, self._directory, "org.apache.pulsar.PulsarClusterMetadataSetup"
                ),
                "--cluster", NAME, "--metadata-store", store,
                "--configuration-metadata-store", store,
                "--web-service-url", "http://127.0.0.1:8080",
                "--broker-service-url", "pulsar://127.0.0.1:6650",
            ],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def add_bookie(self, *options: str, scheme: str = "zk") -> OurBookie:
        """Start one more bookie, by a metadata URI of this scheme."""
        bookie = OurBookie(
            self.uri.replace("zk", scheme, 1),
            self._directory / f"bookie-{next(self._numbers)}",
            f"bookie.max_frame_bytes={FRAME_SIZE_BYTES}",
            *options,
        )
        bookie.start()
        self.bookies.append(bookie)
        return bookie

    def add_broker(self, **conf: Any) -> Broker:
        """Start one more broker."""
        name = f"broker-{next(self._numbers)}"
        broker = Broker(self._java, self.zookeeper.address, self._directory / name, conf)
        broker.start()
        self.brokers.append(broker)
        return broker

    def client(self) -> pulsar.Client:
        """Return a client of all brokers, which is closed with the cluster."""
        hosts = ",".join(broker.url.removeprefix("pulsar://") for broker in self.brokers)
        client = pulsar.Client(
            f"pulsar://{hosts}", operation_timeout_seconds=60,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )  # fmt: skip
        self._clients.append(client)
        return client

    def make_namespace(self, name: str) -> str:
        """Make a namespace and return the beginning of its topics' names."""
        admin = self.brokers[0].admin
        with contextlib.suppress(urllib.error.HTTPError):
            admin("tenants/t", "PUT", {"allowedClusters": [NAME]})
        admin(f"namespaces/t/{name}", "PUT", {})
        return f"persistent://t/{name}"

    def ledgers_of(self, topic: str) -> list[int]:
        """Return the ledgers of a topic's messages."""
        state = self.admin_of(topic, "internalStats")
        return [ledger["ledgerId"] for ledger in state["ledgers"]]

    def admin_of(self, topic: str, what: str, method: str = "GET", body: object = None) -> Any:
        """Ask the administration about a topic."""
        return self.brokers[0].admin(f"{topic.replace('://', '/')}/{what}", method, body)

    @contextlib.contextmanager
    def auto_recovery(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run our auditor and worker."""
        words = [sys.executable, "-m", "quorumbook", "recovery", "run", "--stop-with-parent"]
        words += ["--metadata", self.uri, "--set", "recovery.lost_bookie_delay_s=0"]
        words += ["--set", f"client.max_frame_bytes={FRAME_SIZE_BYTES}"]
        words += ["--set", "recovery.open_ledger_grace_s=1", "--set", "http.port=0"]
        words += ["--set", "recovery.max_retry_s=2"]
        with (self._directory / "recovery.log").open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def names_in_ledgers(self, bookie_id: str) -> int:
        """Return how many ledgers name a bookie in an ensemble."""
        done = subprocess.run(
            [sys.executable, "-m", "quorumbook", "ledger", "ls", "--metadata", self.uri,
             "-o", "jsonl", "--bookie", bookie_id],
            capture_output=True, text=True, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        return len(done.stdout.splitlines())

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.shutdown()
        for broker in self.brokers:
            broker.kill()
        for bookie in self.bookies:
            bookie.kill()
        self.zookeeper.stop()


def java_command(java: Java, directory: Path, *words: str) -> list[str]:
    """Return a command line with little memory and what Pulsar's own script opens."""
    opened = [word for name in _OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    unpacked = f"-Djava.io.tmpdir={directory}"
    return java.command(*words, options=(*_MEMORY, *opened, unpacked), log="warn")


def request(url: str, method: str = "GET", body: object = None, *, raw: bool = False) -> Any:
    """Ask over HTTP and return what the JSON says, None for an empty answer."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        url, data, method=method, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        text = answer.read().decode()
    if raw:
        return text.strip()
    return json.loads(text) if text.strip() else None


@contextlib.contextmanager
def running(cluster: PulsarCluster) -> Iterator[PulsarCluster]:
    """Close the cluster at the end."""
    try:
        yield cluster
    finally:
        cluster.close()
