"""Real ZooKeepers for tests."""

from __future__ import annotations

import asyncio
import itertools
import os

from doubles.certificates import Issued
from interop.peer_java import Missing, find_jars, free_port
from quorumbook.errors import ConfigError, MetadataUnavailableError
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.store import ZooKeeperStore
from quorumbook.zookeeper_server import (
    Member,
    ZooKeeperServer,
    find_classpath,
    find_java,
)

__all__ = ["Missing", "end_session", "find_zookeeper", "fresh_root", "start_ensemble"]

#: Sessions may be as short as two of these.
_TICK_TIME_MS = 200
_numbers = itertools.count()


def find_zookeeper() -> str:
    """Return a class path with a ZooKeeper on it, from this machine or by Maven.

    Raises:
        Missing: there is no Java, or no ZooKeeper.
    """
    try:
        find_java()
        return find_classpath()
    except ConfigError as error:
        if "Java" in str(error):
            raise Missing(str(error)) from error
        return find_jars()


class SecureZooKeeper(ZooKeeperServer):
    """A server that has a port for TLS beside the plain one."""

    def secure(self, issued: Issued, ca_file: str, *, wants_certificate: bool) -> None:
        """Say whose it is, whom it trusts, and whether it demands a certificate of clients."""
        self.secure_port = free_port()
        both = os.path.join(self.data_dir, "server.pem")
        os.makedirs(self.data_dir, exist_ok=True)
        with open(both, "w") as file:
            for part in (issued.key_file, issued.certificate_file):
                with open(part) as source:
                    file.write(source.read())
        self._secure_lines = [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={self.secure_port}",
            f"secureClientPortAddress={self.host}",
            f"ssl.keyStore.location={both}",
            f"ssl.trustStore.location={ca_file}",
            "ssl.keyStore.type=PEM",
            "ssl.trustStore.type=PEM",
            f"ssl.clientAuth={'need' if wants_certificate else 'none'}",
        ]

    @property
    def secure_address(self) -> str:
        """Host and port for TLS."""
        return f"{self.host}:{self.secure_port}"

    def _configuration(self) -> str:
        return super()._configuration() + "\n".join(self._secure_lines) + "\n"


def start_secure_zookeeper(
    directory: str, classpath: str, issued: Issued, ca_file: str, *, wants_certificate: bool = False
) -> SecureZooKeeper:
    """Start a server that speaks TLS as well, and wait until it serves."""
    while True:
        server = SecureZooKeeper(
            directory, free_port(), classpath=classpath, tick_time_ms=_TICK_TIME_MS
        )
        server.secure(issued, ca_file, wants_certificate=wants_certificate)
        if _is_started(server):
            return server


def start_zookeeper(directory: str, classpath: str, **options: object) -> ZooKeeperServer:
    """Start a server on a free port and wait until it serves."""
    while True:
        server = ZooKeeperServer(
            directory, free_port(), classpath=classpath, tick_time_ms=_TICK_TIME_MS, **options
        )
        if _is_started(server):
            return server


def _is_started(server: ZooKeeperServer) -> bool:
    """Start a server and wait until it serves; False if somebody has its port already."""
    try:
        server.start()
        server.wait_ready()
    except (ConfigError, MetadataUnavailableError) as error:
        server.kill()
        if "in use" not in str(error):
            raise
        return False
    return True


def start_ensemble(directory: str, classpath: str) -> list[ZooKeeperServer]:
    """Start three servers that are one ZooKeeper, and wait until they serve."""
    members = [Member("127.0.0.1", free_port(), free_port()) for _ in range(3)]
    servers = [
        ZooKeeperServer(
            os.path.join(directory, str(index)), free_port(), classpath=classpath,
            members=members, index=index, tick_time_ms=_TICK_TIME_MS,
        )
        for index in range(3)
    ]  # fmt: skip
    for server in servers:
        server.start()
    for server in servers:
        server.wait_ready()
    return servers


def fresh_root() -> str:
    """Return a path that no other test of this process uses."""
    return f"/test-{next(_numbers)}"


async def made_root(server: ZooKeeperServer) -> str:
    """Make a node that no other test uses, for a tree beneath it, and return its path."""
    root = fresh_root()
    store = await open_store(f"zk://{server.address}/ledgers")
    await store.create(root)
    await store.close()
    return root


async def end_session(store: ZooKeeperStore) -> None:
    """Close a session from elsewhere, as the server does when it hears nothing for too long."""
    session = store._session
    servers = list(session._servers)
    # Meanwhile its owner must not take it back.
    session._servers[:] = [("127.0.0.1", 1)]
    await close_session(store, servers[0])
    session._servers[:] = servers


async def close_session(store: ZooKeeperStore, server: tuple[str, int]) -> None:
    """Close a session while its owner cannot reach any server."""
    session = store._session
    while True:
        reader, writer = await asyncio.open_connection(*server)
        try:
            writer.write(jute.connect(0, 10_000, session._living_id, session._password))
            writer.write(jute.request(1, jute.Op.CLOSE))
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = jute.connected(await reader.readexactly(size))
            if answer.timeout_ms <= 0:
                break
            await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
