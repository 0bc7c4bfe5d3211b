"""What the tests of shipped deployments share: friends, strangers and a ZooKeeper."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import quorumbook
from doubles.certificates import Authority
from doubles.deployment import PATIENCE_S, Container, Stage, zookeeper_command
from quorumbook.env import TlsOptions
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from security.security_harness import SOLO, RawConnection, add_frames, add_v3

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: All manifests, in the order that they are applied.
KUBERNETES: list[dict[str, Any]] = [
    manifest
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text())
]
V2_UNAUTHORIZED = 102
RECOVERY_CHANGES = (
    "status?enabled=false", "trigger_audit", "lost_bookie_recovery_delay?seconds=86400"
)  # fmt: skip
READY = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/is_ready')"


def options_in(directory: Path, ca: str, certificate: str, key: str) -> TlsOptions:
    return TlsOptions(
        ca_file=str(directory / ca),
        certificate_file=str(directory / certificate),
        key_file=str(directory / key),
        client_authentication=True,
        require=True,
    )


async def is_used_by(uri: str, tls: TlsOptions, ensemble_size: int) -> None:
    """Write and read a ledger, as a program with a certificate of the right role."""
    shape = dict.fromkeys(("ensemble_size", "write_quorum_size", "ack_quorum_size"), ensemble_size)
    async with quorumbook.connect(uri, tls=tls) as client:
        async with client.create_ledger(**shape) as writer:
            await writer.append(b"mine")
        async with client.open_ledger(writer.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"mine"]


async def turns_strangers_away(uri: str, tls: TlsOptions, hosts: list[str], tmp_path: Path) -> None:
    """Have strangers of every kind ask every bookie, and the metadata store for a client.

    Of the same CA is only the one whose certificate has another role.
    """
    strange = Authority(tmp_path, "Stranger")
    forged = strange.issue("forged", ips=hosts, unit="0:cluster")
    for host in hosts:
        plain = RawConnection(*await asyncio.open_connection(host, 3181))
        assert (await plain.ask_v3(add_v3(1, 7))).status is Status.UNAUTHORIZED
        plain.close()
        plain = RawConnection(*await asyncio.open_connection(host, 3181))
        answer = await plain.ask_v2(add_frames(7, 1))
        assert isinstance(answer, v2.AddAnswers)
        assert answer.code == V2_UNAUTHORIZED
        plain.close()
    ca = tls.ca_file
    strangers = {
        "without TLS": None,
        "without certificate": TlsOptions(ca_file=ca),
        "of another CA": TlsOptions(
            ca_file=ca, certificate_file=forged.certificate_file, key_file=forged.key_file,
            client_authentication=True,
        ),
    }  # fmt: skip
    for who, options in strangers.items():
        await is_refused(uri, options, who)


async def is_refused(uri: str, tls: TlsOptions | None, who: str) -> None:
    """Reach the metadata store as a friend does, but no bookie."""
    async with quorumbook.connect(uri, tls=tls, operation_timeout_s=5) as client:
        with pytest.raises(QuorumbookError):
            async with client.create_ledger(**SOLO) as writer:
                await writer.append(who.encode())


def is_changed_with_the_token_alone(
    made: Stage, operator: Container, bookies: list[str], recovery: str
) -> None:
    """Ask every server for changes over HTTP without the token, and one as an operator does.

    Args:
        made: Where they run.
        operator: Changes something with the token.
        bookies: Their hosts.
        recovery: Host and port of auto-recovery.
    """
    asked = [f"{host}:8080/api/v1/bookie/scrub" for host in bookies]
    asked += [f"{recovery}/api/v1/autorecovery/{page}" for page in RECOVERY_CHANGES]
    for place in asked:
        for headers in ({}, {"Authorization": "Bearer 0123456789abcdef0124"}):
            request = urllib.request.Request(f"http://{place}", method="PUT", headers=headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == 401, place
    made.run(operator)


def is_administered_with_the_token_alone(url: str, ca: Path, token: str, bookies: int) -> None:
    """Ask the admin server for its bookies, without the first token and with it."""
    context = ssl.create_default_context(cafile=str(ca))
    # Its names lead elsewhere here.
    context.check_hostname = False
    with httpx.Client(base_url=url, verify=context) as client:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert client.get("/heartbeat").status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert client.get("/api/v2/bookies").status_code == 401
        answer = client.get("/api/v2/bookies", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["bookies"]) == bookies, answer.text


async def registered(uri: str, count: int) -> None:
    """Wait until so many bookies are there."""
    store = await open_store(uri)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len((await BookieRegistration(store).bookies())[0]) < count:
                await asyncio.sleep(0.05)
    finally:
        await store.close()


def said_nothing_alarming(made: Stage) -> None:
    for log in made.logs:
        text = log.read_text()
        assert "Traceback" not in text, text
        assert "listens on" not in text, text


def start_zookeeper(
    made: Stage, directory: Path, classpath: str, host: str, secret: Path
) -> Container:
    """Start a ZooKeeper on the port for TLS that demands a certificate of the same CA."""
    store = directory / "store.pem"
    key, certificate, ca = (next(secret.glob(n)) for n in ("tls.key", "tls.[cp]*", "ca.*"))
    store.write_text(key.read_text() + certificate.read_text())
    extra = (
        "secureClientPort=2281 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
        f" ssl.clientAuth=need ssl.keyStore.type=PEM ssl.keyStore.location={store}"
        f" ssl.trustStore.type=PEM ssl.trustStore.location={ca}"
    )
    variables = {
        "ZOO_SERVERS": "server.1=localhost:2888:3888",
        "ZOO_ADMINSERVER_ENABLED": "false",
        "ZOO_CFG_EXTRA": extra,
    }
    command = zookeeper_command(directory / "zookeeper", classpath, variables, host)
    found = Container(host, command, {}, {})
    made.start(found)
    made.wait_healthy(found, ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2281"])
    return found


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    """Return the Kubernetes manifests of some kinds."""
    return [manifest for manifest in KUBERNETES if manifest["kind"] in kinds]


def printed(page: str) -> list[str]:
    """Return the commands that a how-to of deployment prints, one each."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    blocks = re.findall(r"^ *```sh\n(.*?)```$", text, re.MULTILINE | re.DOTALL)
    whole = (re.sub(r"\\\n *", "", block) for block in blocks)  # what goes on in the next line
    return [line.strip() for block in whole for line in block.splitlines()]
