"""TLS to the metadata store: a real ZooKeeper and a real etcd, and certificates that are wrong."""

from __future__ import annotations

import ssl

import pytest

from doubles.certificates import CLIENT, SERVER
from doubles.etcd_server import EtcdServer
from doubles.zookeeper import fresh_root, start_secure_zookeeper
from quorumbook.errors import ConfigError, MetadataUnavailableError
from quorumbook.metadata.cluster import init_cluster, read_instance_id
from quorumbook.metadata.uri import open_store, parse_uri


class Secured:
    """A store's server that speaks TLS: how to reach it, with and without."""

    def __init__(self, scheme: str, server, address: str) -> None:
        self.scheme = scheme
        self.server = server
        self.address = address

    def uri(self, root: str, *options: str) -> str:
        return f"{self.scheme}://{self.address}{root}?{'&'.join(options)}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("quorumbook.metadata.etcd.store._OPEN_PATIENCE_S", 0.5)


def start_etcd(directory, issued, ca, *, wants_certificate):
    context = ssl.create_default_context(cafile=ca.ca_file)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    mutual = ["--client-cert-auth", "--trusted-ca-file", ca.ca_file] * wants_certificate
    if wants_certificate:
        prober = ca.issue("prober")
        context.load_cert_chain(prober.certificate_file, prober.key_file)
    directory.mkdir()
    return EtcdServer(directory, *mutual, issued=issued, client_context=context)


@pytest.fixture(params=["zk", "etcd"])
def start(request, ca, tmp_path):
    """Return what starts a server with a certificate."""
    servers = []

    def start(issued, *, wants_certificate=False):
        if request.param == "zk":
            classpath = request.getfixturevalue("zookeeper_classpath")
            server = start_secure_zookeeper(
                str(tmp_path / "zk"), classpath, issued, ca.ca_file,
                wants_certificate=wants_certificate,
            )  # fmt: skip
            secured = Secured("zk", server, server.secure_address)
        else:
            server = start_etcd(tmp_path / "etcd", issued, ca, wants_certificate=wants_certificate)
            secured = Secured("etcd", server, server.endpoint)
        servers.append(server)
        return secured

    yield start
    for server in servers:
        server.kill()


async def refusal_of(uri: str) -> str:
    with pytest.raises(MetadataUnavailableError) as caught:
        await open_store(uri, session_timeout_s=3)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_cluster_lives_in_a_store_that_is_reached_over_tls(start, ca, good, tmp_path):
    secured = start(good)
    root = fresh_root()
    uri = secured.uri(root, f"tls.ca_file={ca.ca_file}")
    store, other = await open_store(uri), await open_store(uri)
    try:
        instance_id = await init_cluster(store)
        assert await read_instance_id(other) == instance_id
        # More than one record of TLS, both ways.
        await store.create("/large", bytes(200_000))
        assert (await other.get("/large")).data == bytes(200_000)
    finally:
        await store.close()
        await other.close()
    strangers = type(ca)(tmp_path, "Strangers")
    said = await refusal_of(secured.uri(root, f"tls.ca_file={strangers.ca_file}"))
    assert secured.address in said
    assert "tls.ca_file" in said
    said = await refusal_of(secured.uri(root))
    assert secured.address in said
    assert "TLS" in said


async def test_a_certificate_made_for_another_host_is_refused(start, ca):
    secured = start(ca.issue("elsewhere", dns=["elsewhere.example"]))
    said = await refusal_of(secured.uri("/ledgers", f"tls.ca_file={ca.ca_file}"))
    assert "not made for this" in said
    if secured.scheme == "zk":
        options = (f"tls.ca_file={ca.ca_file}", "tls.verify_host=false")
        store = await open_store(secured.uri("/ledgers", *options))
        await store.close()


async def test_a_certificate_that_is_out_of_date_is_refused(start, ca):
    secured = start(ca.issue("old", ips=["127.0.0.1"], from_days=-9, to_days=-1))
    said = await refusal_of(secured.uri("/ledgers", f"tls.ca_file={ca.ca_file}"))
    assert "has expired" in said


async def test_a_store_that_demands_a_certificate_gets_ours(start, ca, good, tmp_path):
    secured = start(good, wants_certificate=True)
    mine = ca.issue("mine", usages=(CLIENT,))
    trust = f"tls.ca_file={ca.ca_file}"
    own = (f"tls.certificate_file={mine.certificate_file}", f"tls.key_file={mine.key_file}")
    store = await open_store(secured.uri("/ledgers", trust, *own))
    await store.create("/mine")
    await store.close()
    said = await refusal_of(secured.uri("/ledgers", trust))
    assert "tls.certificate_file" in said
    strangers = type(ca)(tmp_path, "Strangers").issue("theirs", usages=(CLIENT,))
    wrong = (f"tls.certificate_file={strangers.certificate_file}",)
    assert await refusal_of(
        secured.uri("/ledgers", trust, *wrong, f"tls.key_file={strangers.key_file}")
    )


async def test_files_that_cannot_be_used_are_named(ca, good, tmp_path):
    other = ca.issue("another", usages=(SERVER,))
    for scheme in ("zk", "etcd"):
        for options, says in (
            (["tls.ca_file=/nowhere.pem"], "tls.ca_file /nowhere.pem cannot be read"),
            ([f"tls.ca_file={good.key_file}"], "has no certificate in PEM form"),
            ([f"tls.key_file={good.key_file}"], "tls.certificate_file and tls.key_file, both"),
            (
                [f"tls.certificate_file={good.certificate_file}", f"tls.key_file={other.key_file}"],
                "is not the key of the first certificate",
            ),
            (["tls=perhaps"], "tls is true or false, not 'perhaps'"),
            (["tls=false", f"tls.ca_file={ca.ca_file}"], "tls=false goes with no other"),
            (["tls.ca=FILE"], "'tls.ca' is"),
        ):
            with pytest.raises(ConfigError, match=says):
                await open_store(f"{scheme}://127.0.0.1:1/ledgers?{'&'.join(options)}")


@pytest.mark.parametrize("option", ["tls.verify_host", "tls.crl_file", "tls.key_password_file"])
def test_what_connections_to_etcd_cannot_do_is_refused(option):
    with pytest.raises(ConfigError, match=f"'{option}' is not known here"):
        parse_uri(f"etcd://127.0.0.1:2379/ledgers?tls=true&{option}=false")
