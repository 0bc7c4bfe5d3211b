"""TLS and authentication with the peer: its client and ours, its bookies and ours, both ways."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from doubles.certificates import Authority, Issued
from doubles.zookeeper import start_secure_zookeeper
from interop.clusters import Cluster
from interop.peer_driver import Peer, PeerError, expected
from interop.sides import JavaSide, OwnSide, Shape
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env, TlsOptions
from quorumbook.errors import SecurityError
from quorumbook.metadata.uri import open_store
from quorumbook.storage.options import StorageOptions

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SIZES = [0, 1, 1000, 16_384, 65_536, 1_000_000]
#: Where the plug-ins of our side are.
TOYS = str(Path(__file__).parents[1] / "security")


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOYS)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def bookies_own(ca: Authority) -> Issued:
    return ca.issue("bookie", ips=["127.0.0.1"], dns=["localhost"], unit="0:bookie")


@pytest.fixture(scope="module")
def writer(ca: Authority) -> Issued:
    return ca.issue("writer", unit="0:writer;1:main")


@pytest.fixture(scope="module")
def stranger(ca: Authority) -> Issued:
    return ca.issue("stranger", unit="0:stranger")


def java_tls(ca: Authority, issued: Issued, **more: Any) -> dict[str, Any]:
    """Return the peer's options for TLS with certificates on both sides."""
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsClientAuthentication": True,
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": issued.key_file,
        "tlsCertificatePath": issued.certificate_file,
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": ca.ca_file,
        **more,
    }


def own_tls(ca: Authority, issued: Issued, **more: Any) -> TlsOptions:
    return TlsOptions(
        certificate_file=issued.certificate_file,
        key_file=issued.key_file,
        ca_file=ca.ca_file,
        client_authentication=True,
        **more,
    )


@contextlib.asynccontextmanager
async def own_bookies(cluster: Cluster, root: Path, count: int, **changes: Any) -> Any:
    """Run bookies of ours in this process, registered where the peer's clients look."""
    async with contextlib.AsyncExitStack() as stack:
        store = await open_store(cluster.uri, Env())
        stack.push_async_callback(store.close)
        bookies = []
        for index in range(count):
            options = BookieOptions(
                journal_directories=(f"{root}/own-{index}/journal",),
                ledger_directories=(f"{root}/own-{index}/ledgers",),
                port=0,
                storage=StorageOptions(write_cache_size_bytes=16 << 20),
                max_disk_usage=1.0,
                disk_usage_writable=1.0,
                min_high_priority_free_bytes=1,
                **changes,
            )
            bookie = Bookie(Env(), options, store)
            await bookie.start()
            stack.push_async_callback(bookie.stop)
            bookies.append(bookie)
        yield bookies


@contextlib.asynccontextmanager
async def secured(
    java: Any,
    peer: Any,
    zookeeper: Any,
    root: Path,
    *,
    own: int = 0,
    java_bookies: int = 0,
    own_options: dict[str, Any] | None = None,
    java_conf: dict[str, Any] | None = None,
) -> Any:
    """Run a cluster of bookies of both kinds under a root of its own."""
    cluster = Cluster(java, peer, zookeeper.address, f"security-{root.name}", root)
    try:
        for _ in range(java_bookies):
            await cluster.start_java(**(java_conf or {}))
        async with own_bookies(cluster, root, own, **(own_options or {})) as bookies:
            yield cluster, bookies
    finally:
        await cluster.stop()


async def round_trip(writer_side: Any, reader_side: Any, *, is_closed: bool = True) -> None:
    shape = Shape()
    ledger = await writer_side.create(shape)
    await ledger.append("secret", SIZES)
    await ledger.append("secret", SIZES)
    if is_closed:
        await ledger.close()
    # Of a ledger that is not closed the reader is its recovery, fences included.
    other = await reader_side.open(ledger.id, shape)
    assert await other.read(0, 2 * len(SIZES) - 1) == expected("secret", SIZES * 2)
    await other.close()


def kinds(kind: str) -> dict[str, int]:
    return {
        "own": {"own": 3},
        "java": {"java_bookies": 3},
        "mixed": {"own": 2, "java_bookies": 2},
    }[kind]


@pytest.mark.parametrize("bookies", ["own", "java", "mixed"])
@pytest.mark.parametrize("provider", ["OpenSSL", "JDK"])
async def test_ledgers_pass_between_the_sides_over_mutual_tls(
    java: Any, peer: Any, zookeeper: Any, tmp_path: Path,
    ca: Authority, bookies_own: Issued, writer: Issued, bookies: str, provider: str,
) -> None:  # fmt: skip
    # The peer counts a certificate's name from its reverse look-up; on loopback it is localhost.
    served = java_tls(ca, bookies_own, tlsProvider=provider)
    used = java_tls(ca, writer, tlsProvider=provider, tlsHostnameVerificationEnabled=True)
    own = {"tls": own_tls(ca, bookies_own, require=True)}
    async with secured(
        java, peer, zookeeper, tmp_path,
        own_options=own, java_conf=served, **kinds(bookies),
    ) as (cluster, running):  # fmt: skip
        ours = await OwnSide.connect(cluster.uri, tls=own_tls(ca, writer))
        v2 = await JavaSide.connect(peer, cluster.uri, v2=True, **used)
        v3 = await JavaSide.connect(peer, cluster.uri, **used)
        try:
            for one, other in ((v2, ours), (v3, ours), (ours, v2), (ours, v3), (v2, v3)):
                await round_trip(one, other)
                await round_trip(one, other, is_closed=False)
            for bookie in running:
                assert bookie.metrics.add.succeeded.count
                assert not bookie.metrics.requests_refused
                assert not bookie.metrics.connections_unauthorized
        finally:
            await asyncio.gather(ours.close(), v2.close(), v3.close())


@pytest.mark.parametrize("bookies", ["own", "java"])
async def test_the_role_in_a_certificate_counts_on_both_sides(
    java: Any, peer: Any, zookeeper: Any, tmp_path: Path,
    ca: Authority, bookies_own: Issued, writer: Issued, stranger: Issued, bookies: str,
) -> None:  # fmt: skip
    plugin = "org.apache.bookkeeper.tls.BookieAuthZFactory"
    async with secured(
        java, peer, zookeeper, tmp_path,
        own_options={
            "tls": own_tls(ca, bookies_own, require=True),
            "auth_plugin": plugin,
            "authorized_roles": ("writer",),
        },
        java_conf=java_tls(
            ca, bookies_own, bookieAuthProviderFactoryClass=plugin, authorizedRoles="writer"
        ),
        **kinds(bookies),
    ) as (cluster, _):  # fmt: skip
        ours = await OwnSide.connect(cluster.uri, tls=own_tls(ca, writer))
        v2 = await JavaSide.connect(peer, cluster.uri, v2=True, **java_tls(ca, writer))
        v3 = await JavaSide.connect(peer, cluster.uri, **java_tls(ca, writer))
        bad_own = await OwnSide.connect(cluster.uri, tls=own_tls(ca, stranger))
        bad_java = await JavaSide.connect(
            peer, cluster.uri, addEntryTimeoutSec=3, **java_tls(ca, stranger)
        )
        try:
            for one, other in ((v2, ours), (ours, v3)):
                await round_trip(one, other)
            with pytest.raises(SecurityError, match="role"):
                await bad_own.create(Shape())
            with pytest.raises(PeerError):
                await (await bad_java.create(Shape())).append("no", [1])
        finally:
            await asyncio.gather(
                ours.close(), v2.close(), v3.close(), bad_own.close(), bad_java.close()
            )


@pytest.mark.parametrize("bookies", ["own", "java"])
@pytest.mark.parametrize("over_tls", [False, True])
async def test_a_plug_in_of_two_rounds_works_with_the_other_side(
    java: Any, peer: Any, zookeeper: Any, tmp_path: Path,
    ca: Authority, bookies_own: Issued, writer: Issued, bookies: str, over_tls: bool,
) -> None:  # fmt: skip
    own: dict[str, Any] = {"auth_plugin": "security_toys:GoldenBookie"}
    served: dict[str, Any] = {"bookieAuthProviderFactoryClass": "PeerAuth$Bookie"}
    used: dict[str, Any] = {"clientAuthProviderFactoryClass": "PeerAuth$Client"}
    mine: dict[str, Any] = {"auth_plugin": "security_toys:GoldenClient"}
    if over_tls:
        own["tls"] = own_tls(ca, bookies_own, require=True)
        served |= java_tls(ca, bookies_own)
        used |= java_tls(ca, writer)
        mine["tls"] = own_tls(ca, writer)
    async with secured(
        java, peer, zookeeper, tmp_path,
        own_options=own, java_conf=served, **kinds(bookies),
    ) as (cluster, _):  # fmt: skip
        ours = await OwnSide.connect(cluster.uri, **mine)
        v2 = await JavaSide.connect(peer, cluster.uri, v2=True, **used)
        v3 = await JavaSide.connect(peer, cluster.uri, **used)
        try:
            for one, other in ((v3, ours), (ours, v3)):
                await round_trip(one, other)
            # Behind the handshake the peer's bookie sends a v3 answer that says "not yet"; its
            # own v2 client cannot read that and gives up.
            if bookies == "own" or not over_tls:
                await round_trip(v2, ours)
                await round_trip(ours, v2)
        finally:
            await asyncio.gather(ours.close(), v2.close(), v3.close())


async def test_the_peers_clients_without_tls_get_nothing_of_a_bookie_that_requires_it(
    java: Any, peer: Any, zookeeper: Any, tmp_path: Path,
    ca: Authority, bookies_own: Issued,
) -> None:  # fmt: skip
    own = {"tls": own_tls(ca, bookies_own, require=True)}
    async with secured(
        java, peer, zookeeper, tmp_path, own=3, own_options=own
    ) as (cluster, running):  # fmt: skip
        for is_v2 in (True, False):
            plain = await JavaSide.connect(peer, cluster.uri, v2=is_v2, addEntryTimeoutSec=3)
            try:
                with pytest.raises(PeerError) as caught:
                    await (await plain.create(Shape())).append("no", [1])
                assert caught.value.code == -102
            finally:
                await plain.close()
        assert not any(bookie.metrics.add.succeeded.count for bookie in running)


async def test_both_sides_reach_a_zookeeper_that_speaks_tls(
    connect, java, zookeeper_classpath, ca, tmp_path
):
    server = start_secure_zookeeper(
        str(tmp_path / "zookeeper"),
        zookeeper_classpath,
        ca.issue("zookeeper", ips=["127.0.0.1"], dns=["localhost"]),
        ca.ca_file,
        wants_certificate=True,
    )
    mine = ca.issue("mine")
    both = tmp_path / "mine-both.pem"
    both.write_text(
        "".join(Path(file).read_text() for file in (mine.key_file, mine.certificate_file))
    )
    peer = Peer(
        java,
        tmp_path / "peer",
        options=[
            "-Dzookeeper.client.secure=true",
            "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
            f"-Dzookeeper.ssl.trustStore.location={ca.ca_file}",
            f"-Dzookeeper.ssl.keyStore.location={both}",
            "-Dzookeeper.ssl.trustStore.type=PEM",
            "-Dzookeeper.ssl.keyStore.type=PEM",
        ],
    )
    cluster = Cluster(java, peer, server.secure_address, "secured", tmp_path / "bookies")
    peers_uri = cluster.uri
    cluster.uri += f"?tls.ca_file={ca.ca_file}&tls.certificate_file={mine.certificate_file}"
    cluster.uri += f"&tls.key_file={mine.key_file}"
    try:
        await cluster.start(own=2)
        ours = await connect("own", cluster.uri)
        cluster.uri = peers_uri
        await cluster.start_java()
        peers = await JavaSide.connect(peer, peers_uri)
        for writing, reading in ((ours, peers), (peers, ours)):
            ledger = await writing.create(Shape())
            await ledger.append("secured", [100] * 20)
            await ledger.close()
            opened = await reading.open(ledger.id, Shape())
            assert await opened.read(0, 19) == expected("secured", [100] * 20)
            await opened.close()
    finally:
        await cluster.stop()
        peer.stop()
        server.kill()
