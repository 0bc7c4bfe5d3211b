"""SASL against a real ZooKeeper with a JAAS file, and against those who pretend to be one."""

from __future__ import annotations

import pytest

from doubles.zookeeper import end_session, fresh_root, start_zookeeper
from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.errors import MetadataUnauthorizedError
from quorumbook.metadata.cluster import init_cluster, read_instance_id
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper.jute import Op

USERS = {"writer": "hush", "other": "quiet", "grün": "straße", "жук": "пароль€"}
STRANGER = "other"
PROVIDER = "-Dzookeeper.authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"


@pytest.fixture(scope="module", params=["asked", "required"])
def sasl_zookeeper(request, zookeeper_classpath, tmp_path_factory):
    """Return a server that knows users by its JAAS file; one of the two serves nobody else."""
    directory = tmp_path_factory.mktemp("sasl")
    jaas = directory / "jaas.conf"
    users = "\n".join(f'  user_{name}="{password}"' for name, password in USERS.items())
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    jaas.write_text(f"Server {{\n  {module}\n{users};\n}};\n", encoding="utf-8")
    options = [PROVIDER, "-Dfile.encoding=UTF-8", f"-Djava.security.auth.login.config={jaas}"]
    if request.param == "required":
        options.append("-Dzookeeper.sessionRequireClientSASLAuth=true")
    server = start_zookeeper(str(directory / "zk"), zookeeper_classpath, java_options=options)
    server.is_required = request.param == "required"
    yield server
    server.kill()


@pytest.fixture
def file_of(tmp_path):
    def write(name, password=None):
        file = tmp_path / f"sasl-{name}"
        file.write_text(f"{name}:{password or USERS[name]}\n", encoding="utf-8")
        file.chmod(0o600)
        return file

    return write


@pytest.fixture
async def proxy(sasl_zookeeper):
    async with Proxy(sasl_zookeeper.host, sasl_zookeeper.port) as proxy:
        yield proxy


@pytest.mark.parametrize("name", [each for each in USERS if each != STRANGER])
async def test_what_a_user_creates_for_himself_is_closed_to_others(sasl_zookeeper, file_of, name):
    uri = f"zk://{sasl_zookeeper.address}{fresh_root()}/ledgers"
    store = await open_store(f"{uri}?acl=creator&sasl_file={file_of(name)}")
    instance_id = await init_cluster(store)
    friend = await open_store(f"{uri}?sasl_file={file_of(name)}")
    assert await read_instance_id(friend) == instance_id
    stranger = await open_store(f"{uri}?sasl_file={file_of(STRANGER)}")
    with pytest.raises(MetadataUnauthorizedError, match="sasl_file=FILE"):
        await read_instance_id(stranger)
    for each in (store, friend, stranger):
        await each.close()


async def test_a_wrong_password_is_said_at_once_and_not_shown(sasl_zookeeper, file_of):
    uri = f"zk://{sasl_zookeeper.address}/ledgers"
    for file in (file_of("writer", "wrong!"), file_of("nobody", "wrong!")):
        with pytest.raises(MetadataUnauthorizedError, match="refuses our SASL") as caught:
            await open_store(f"{uri}?sasl_file={file}", session_timeout_s=3600)
        assert "\n" not in str(caught.value)
        assert "wrong!" not in str(caught.value)


async def test_without_sasl_a_server_that_wants_it_is_named(sasl_zookeeper):
    uri = f"zk://{sasl_zookeeper.address}/ledgers"
    if sasl_zookeeper.is_required:
        with pytest.raises(MetadataUnauthorizedError, match=r"wants SASL: .*sasl_file=FILE"):
            await open_store(uri, session_timeout_s=3600)
    else:
        await (await open_store(uri)).close()


async def test_a_server_without_a_jaas_file_is_refused(zookeeper, file_of):
    with pytest.raises(MetadataUnauthorizedError, match="JAAS file needs a section Server"):
        await open_store(
            f"zk://{zookeeper.address}/l?sasl_file={file_of('writer')}", session_timeout_s=3600
        )


async def test_every_connection_and_session_begins_with_sasl(sasl_zookeeper, proxy, file_of):
    asked = []

    def note(number):
        asked.append(number)
        return Mishap.NONE

    proxy.on_request = note
    uri = f"zk://127.0.0.1:{proxy.port}/ledgers?acl=creator&sasl_file={file_of('writer')}"
    store = await open_store(uri)
    path = fresh_root()
    await store.create(path, b"1")
    assert asked == [Op.SASL, Op.SASL, Op.SYNC, Op.CREATE]
    asked.clear()
    proxy.cut()
    assert (await store.get(path)).data == b"1"
    assert asked == [Op.SASL, Op.SASL, Op.SYNC, Op.GET]
    # Ending a session from elsewhere is a request that has not proven anything.
    if not sasl_zookeeper.is_required:
        await end_session(store)
        asked.clear()
        proxy.cut()
        await store.renew_session()
        assert (await store.get(path)).data == b"1"
        assert asked[:3] == [Op.SASL, Op.SASL, Op.SYNC]
    await store.close()


async def test_a_server_that_proves_nothing_gets_nothing(proxy, file_of):
    proxy.change = lambda frame: frame.replace(b"rspauth=", b"rspauth=0")
    with pytest.raises(MetadataUnauthorizedError, match="does not prove"):
        await open_store(
            f"zk://127.0.0.1:{proxy.port}/l?sasl_file={file_of('writer')}", session_timeout_s=3600
        )


async def test_a_server_that_repeats_what_was_recorded_gets_nothing(proxy, file_of):
    uri = f"zk://127.0.0.1:{proxy.port}/l?sasl_file={file_of('writer')}"
    recorded = []

    def record(frame):
        recorded.append(frame)
        return frame

    proxy.change = record
    await (await open_store(uri)).close()
    _greeting, challenge, proof, *_ = recorded
    assert b"nonce=" in challenge
    assert b"rspauth=" in proof

    def repeat(frame):
        if b"nonce=" in frame:
            return challenge
        # The server refuses the answer to a nonce that is not its own; this one would not.
        return proof if frame[4:8] == proof[4:8] else frame

    proxy.change = repeat
    with pytest.raises(MetadataUnauthorizedError, match="does not prove"):
        await open_store(uri, session_timeout_s=3600)
