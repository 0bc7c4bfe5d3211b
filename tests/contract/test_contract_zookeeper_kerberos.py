"""Kerberos against a real ZooKeeper and a real KDC."""

from __future__ import annotations

import pytest

from doubles.kdc import REALM, Kdc, need_kerberos
from doubles.zookeeper import fresh_root, start_zookeeper
from quorumbook.errors import ConfigError, MetadataUnauthorizedError
from quorumbook.metadata.cluster import init_cluster, read_instance_id
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper.address import parse_address

PROVIDER = "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory):
    need_kerberos()
    kdc = Kdc(tmp_path_factory.mktemp("kdc"))
    yield kdc
    kdc.stop()


@pytest.fixture(scope="module")
def kerberos_zookeeper(kdc, zookeeper_classpath, tmp_path_factory):
    """Return a server that knows its clients by their tickets."""
    directory = tmp_path_factory.mktemp("kerberos")
    jaas = directory / "jaas.conf"
    jaas.write_text(
        "Server {\n  com.sun.security.auth.module.Krb5LoginModule required\n"
        f'  useKeyTab=true keyTab="{kdc.keytab("zookeeper/localhost")}"\n'
        f'  storeKey=true useTicketCache=false principal="zookeeper/localhost@{REALM}";\n}};\n'
    )
    options = [
        PROVIDER,
        f"-Djava.security.auth.login.config={jaas}",
        f"-Djava.security.krb5.conf={kdc.config}",
    ]
    server = start_zookeeper(str(directory / "zk"), zookeeper_classpath, java_options=options)
    yield server
    server.kill()


@pytest.fixture
def uri_of(kerberos_zookeeper, kdc, monkeypatch):
    """Return what makes the URI of a principal; in this process Kerberos looks at our KDC."""
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    root = fresh_root()

    def make(name, *more):
        port = kerberos_zookeeper.address.rpartition(":")[2]
        words = (f"kerberos.principal={name}", f"kerberos.keytab={kdc.keytab(name)}", *more)
        return f"zk://localhost:{port}{root}/ledgers?kerberos=true&{'&'.join(words)}"

    return make


async def test_what_a_principal_creates_for_itself_is_closed_to_others(uri_of):
    store = await open_store(uri_of("writer", "acl=creator"))
    instance_id = await init_cluster(store)
    friend = await open_store(uri_of("writer"))
    assert await read_instance_id(friend) == instance_id
    stranger = await open_store(uri_of("stranger"))
    with pytest.raises(MetadataUnauthorizedError, match="kerberos=true"):
        await read_instance_id(stranger)
    for each in (store, friend, stranger):
        await each.close()


async def test_a_service_that_the_kdc_does_not_know_is_named(uri_of):
    with pytest.raises(MetadataUnauthorizedError, match=r"Kerberos: Server .*another.* not found"):
        await open_store(uri_of("writer", "kerberos.service=another"), session_timeout_s=3600)


@pytest.mark.parametrize(
    "words",
    ["kerberos=yes", "kerberos.principal=a", "kerberos=false&kerberos.keytab=a"],
)
def test_words_that_contradict_each_other_are_refused(words):
    with pytest.raises(ConfigError, match="go with kerberos=true"):
        parse_address(f"zk://h/l?{words}")


def test_kerberos_and_a_password_are_one_too_many(tmp_path):
    file = tmp_path / "sasl"
    file.write_text("a:b\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="name one of auth_file, sasl_file and kerberos=true"):
        parse_address(f"zk://h/l?kerberos=true&sasl_file={file}")
