"""Known security failures of this kind of system, by their numbers."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import pathlib
import shutil
import ssl
from typing import Any

import pytest
from security_harness import (
    KEY,
    PATIENCE_S,
    SOLO,
    add_frames,
    add_v3,
    bookie_tls,
    client_tls,
    secure_cluster,
)

from doubles.certificates import Authority, Issued
from doubles.inside import connections_of
from doubles.waiting import until
from quorumbook.auth.plugins import AUTH_DISABLED, Peer, Step
from quorumbook.auth.shared_secret import BookieSharedSecret, ClientSharedSecret
from quorumbook.client.context import client_context
from quorumbook.client.options import ClientOptions
from quorumbook.env import TlsOptions
from quorumbook.errors import (
    QuorumbookError,
    SecurityError,
    UnauthorizedError,
)
from quorumbook.protocol.answers import auth_answer, start_tls_answer
from quorumbook.protocol.digest import mac_key, master_key
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import Auth, StartTLS
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3


def write_secrets(tmp_path: Any, name: str, *lines: str) -> str:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


class FakeBookie:
    """Answers as its test says and keeps every byte that came."""

    def __init__(self, answer: Any) -> None:
        self.received = bytearray()
        self.requests: list[Any] = []
        self._answer = answer
        self.port = 0

    async def __aenter__(self) -> FakeBookie:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RequestDecoder()
        try:
            while data := await reader.read(65536):
                self.received += data
                for request in decoder.feed(data):
                    self.requests.append(request)
                    await self._answer(request, writer)
        except (QuorumbookError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


async def use(cluster: Any, port: int, **options: Any) -> None:
    """Create a ledger on a fake bookie, which must fail."""

    async def elsewhere(_: str) -> tuple[str, int]:
        return "127.0.0.1", port

    async with cluster.connect(**options) as bk, asyncio.timeout(PATIENCE_S):
        client_context(bk).bookies._resolve = elsewhere  # a name that leads elsewhere
        await bk.create_ledger(**SOLO)


async def test_s96_a_wrong_host_ends_the_connection_before_any_byte_of_ours(
    ca: Authority, tmp_path: Any
) -> None:
    wrong = ca.issue("wrong", ips=["127.0.0.9"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(wrong.certificate_file, wrong.key_file)
    plain = bytearray()

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        if isinstance(request, StartTLS):
            writer.write(start_tls_answer(request, Status.OK))
            await writer.start_tls(context)
        else:
            plain.extend(b"a request got through")

    async with secure_cluster(tmp_path) as cluster, FakeBookie(answer) as fake:
        with pytest.raises(SecurityError, match="not made for this address"):
            await use(cluster, fake.port, tls=client_tls(ca))
        assert [type(request) for request in fake.requests] == [StartTLS]
        assert not plain


async def test_s97_a_bookie_that_requires_tls_does_nothing_in_the_clear(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    tls = bookie_tls(ca, good, require=True)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        requests = {
            "add": add_v3(1, 7),
            "read": v3.encode_read(2, 7, 0),
            "fence": v3.encode_read(3, 7, master_key=KEY),
            "long poll": v3.encode_read(4, 7, -1, previous_lac=-1, timeout_ms=1),
            "write lac": v3.encode_write_lac(5, 7, 0, KEY, b"p" * 40),
            "read lac": v3.encode_read_lac(6, 7),
            "force": v3.encode_force(7, 7),
            "info": v3.encode_bookie_info(8, 3),
            "list": v3.encode_list_entries(9, 7),
        }
        raw = await cluster.raw()
        for number, (name, request) in enumerate(requests.items(), 1):
            response = await raw.ask_v3(request)
            assert (response.txn_id, response.status) == (number, Status.UNAUTHORIZED), name
            assert not response.has_details, name
        raw.send(b"".join(v3.encode_read(txn_id, 7, txn_id) for txn_id in range(50)))
        for txn_id in range(50):
            (response,) = v3.ResponseDecoder().feed(await raw.frame())
            assert (response.txn_id, response.status) == (txn_id, Status.UNAUTHORIZED)
        raw.close()

        raw = await cluster.raw()
        assert await raw.ask_v2(add_frames(7, 1)) == v2.AddAnswers(7, 0, 0, 102)
        assert await raw.ask_v2(v2.encode_read(7, 0)) == v2.ReadAnswer(7, 0, 102, b"")
        fence = v2.encode_read(7, -1, master_key=KEY)
        assert await raw.ask_v2(fence) == v2.ReadAnswer(7, -1, 102, b"")
        batch = await raw.ask_v2(v2.encode_batch_read(7, 0, 5, 10, 1000))
        assert isinstance(batch, v2.BatchReadAnswer)
        assert (batch.request_id, batch.code, batch.data) == (5, 102, b"")
        raw.send(add_frames(7, 100, first=1))
        for entry_id in range(1, 101):
            answer = v2.AnswerDecoder().feed(await raw.frame())[0]
            assert answer == v2.AddAnswers(7, entry_id, entry_id, 102)
        raw.send(v2.encode_reads(7, range(50)))
        for entry_id in range(50):
            answer = v2.AnswerDecoder().feed(await raw.frame())[0]
            assert answer == v2.ReadAnswer(7, entry_id, 102, b"")
        raw.close()

        bookie = cluster.bookie
        assert bookie.storage.handle(7) is None
        assert bookie.metrics.requests_refused == 9 + 1 + 4 + 1 + 1
        for operation in bookie.metrics.operations.values():
            assert operation.succeeded.count == operation.failed.count == 0
        async with cluster.connect(tls=client_tls(ca)) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


async def test_s97_a_plain_client_is_told_what_the_bookie_wants(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good, require=True)) as cluster:
        async with cluster.connect() as bk, asyncio.timeout(PATIENCE_S):
            ledger = await bk.create_ledger(**SOLO)
            with pytest.raises(UnauthorizedError, match="wants TLS or authentication"):
                await ledger.append(b"x")


async def test_a_bookie_that_merely_offers_tls_serves_both(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        for tls in (None, client_tls(ca)):
            async with cluster.connect(tls=tls) as bk:
                async with bk.create_ledger(**SOLO) as ledger:
                    assert await ledger.append(b"x") == 0
                async with bk.open_ledger(ledger.id) as reader:
                    assert [bytes(e.payload) async for e in reader.read()] == [b"x"]


async def test_a_client_that_is_told_to_use_tls_does_not_go_on_without(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path) as cluster:
        async with cluster.connect(tls=client_tls(ca)) as bk:
            with pytest.raises(SecurityError, match=r"offers no TLS; set tls\.enabled"):
                await bk.create_ledger(**SOLO)


@pytest.mark.parametrize("over_tls", [False, True])
async def test_s98_a_bookie_that_says_authentication_is_off_is_not_believed(
    ca: Authority, good: Issued, tmp_path: Any, over_tls: bool
) -> None:
    secrets = write_secrets(tmp_path, "secrets", "writer:0123456789abcdef")
    options = {"auth_plugin": "shared-secret", "auth_settings": secrets}
    tls = {"tls": client_tls(ca)} if over_tls else {}
    served = {"tls": bookie_tls(ca, good)} if over_tls else {}
    async with secure_cluster(tmp_path, **served) as cluster:
        # Without authentication our own bookie gives just that answer, in both protocols.
        async with cluster.connect(**options, **tls) as bk:
            with pytest.raises(SecurityError, match="has authentication turned off"):
                await bk.create_ledger(**SOLO)
            control = client_context(bk).bookies.control(cluster.bookie.bookie_id)
            with pytest.raises(SecurityError, match="has authentication turned off"):
                await control.connected()
        assert cluster.bookie.metrics.adds_in_progress == 0
        assert cluster.bookie.metrics.add.succeeded.count == 0


async def test_s98_somebody_between_cannot_strip_authentication(tmp_path: Any) -> None:
    secrets = write_secrets(tmp_path, "secrets", "writer:0123456789abcdef")

    async def answer(request: Any, writer: asyncio.StreamWriter) -> None:
        if isinstance(request, Auth):
            writer.write(auth_answer(request, Status.OK, AUTH_DISABLED, b""))

    async with secure_cluster(tmp_path) as cluster, FakeBookie(answer) as fake:
        with pytest.raises(SecurityError, match="turned off"):
            await use(cluster, fake.port, auth_plugin="shared-secret", auth_settings=secrets)
        assert [type(request) for request in fake.requests] == [Auth]


async def heard_of(work: Any) -> list[str]:
    """Return everything that a failure says, its causes included."""
    try:
        await work
    except QuorumbookError as error:
        said: list[str] = []
        chain: BaseException | None = error
        while chain is not None:
            said += [str(chain), repr(chain), repr(vars(chain))]
            chain = chain.__cause__
        return said
    raise AssertionError("it did not fail")


def forms_of(secret: bytes) -> list[str]:
    """Return the ways in which a secret may end up in a text."""
    return [
        secret.decode("latin-1"),
        repr(secret)[2:-1],
        secret.hex(),
        base64.b64encode(secret).decode().rstrip("="),
        str(list(secret)),
    ]


def shown_by_objects(ours: str, theirs: str, message: bytes) -> list[str]:
    """Return how objects that hold secrets print themselves."""
    plugin, client = BookieSharedSecret(theirs), ClientSharedSecret(ours)
    return [
        *(repr(plugin), repr(vars(plugin)), repr(client), repr(vars(client))),
        *(repr(Auth(3, 1, "P", message)), repr(Step(message)), repr(v2.AuthAnswer("P", message))),
        repr(ClientOptions(tls=TlsOptions())),
    ]


async def test_s99_keys_and_secrets_are_in_no_log_repr_message_or_metric(
    ca: Authority, good: Issued, tmp_path: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    canary, other, password = "canary-1234-secret", "another-5678-secret", b"canary-password"
    ours = write_secrets(tmp_path, "ours", f"writer:{canary}")
    theirs = write_secrets(tmp_path, "theirs", f"writer:{canary}:admin", f"b:{other}")
    wrong = write_secrets(tmp_path, "wrong", f"writer:{other}")
    key_line = pathlib.Path(good.key_file).read_bytes().splitlines()[1]
    said: list[str] = []

    served = {
        "tls": bookie_tls(ca, good),
        "auth_plugin": "shared-secret",
        "auth_settings": theirs,
    }
    async with secure_cluster(tmp_path, **served) as cluster:
        mine: Any = {"auth_plugin": "shared-secret", "tls": client_tls(ca, good)}
        async with cluster.connect(**mine, auth_settings=ours) as bk:
            ledger = await bk.create_ledger(**SOLO, password=password)
            await ledger.append(b"x")
            said += [repr(bk), repr(bk.options), repr(ledger), repr(ledger.metadata)]
            said += await heard_of(bk.open_ledger(ledger.id, password=b"not the password"))
            async with cluster.connect(**mine, auth_settings=ours) as second:
                async with second.open_ledger(ledger.id, password=password):
                    pass
            said += await heard_of(ledger.append(b"y"))
            # A wrong key on the wire: the peer logs it, and the right one.
            channel = client_context(bk).bookies.control(cluster.bookie.bookie_id)
            bad_key = master_key(b"canary-bad")
            response = await channel.request(
                "a fence", lambda n: v3.encode_read(n, ledger.id, master_key=bad_key)
            )
            said.append(repr(response))
        async with cluster.connect(**mine, auth_settings=wrong) as bk:
            said += await heard_of(bk.create_ledger(**SOLO))
        raw = await cluster.raw()
        for payload in (b"", b"n,,n=writer,r=nonce", canary.encode()):
            raw.send(v3.encode_auth(1, "QuorumbookSharedSecret", payload))
        raw.send(v3.encode_auth(1, "QuorumbookSharedSecret\n" + canary, b""))
        assert await raw.is_closed()
        said.append(cluster.bookie.render_metrics().decode())

    proof = ClientSharedSecret(ours).session(Peer("x")).start()
    said += [*shown_by_objects(ours, theirs, proof), caplog.text]

    everything = "\n".join(said)
    assert "wrong password" in everything
    for secret in (
        canary.encode(),
        other.encode(),
        password,
        master_key(password),
        mac_key(password),
        master_key(b"canary-bad"),
        proof[-32:],
        key_line,
    ):
        for form in forms_of(secret):
            assert form not in everything, form


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_s102_a_client_without_a_certificate_is_told_so_and_nothing_hangs(
    ca: Authority, good: Issued, tmp_path: Any, version: str, caplog: Any
) -> None:
    tls = bookie_tls(ca, good, client_authentication=True)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        mine = client_tls(ca, protocols=(version,))
        async with cluster.connect(tls=mine) as bk, asyncio.timeout(PATIENCE_S):
            channel = client_context(bk).bookies.control(cluster.bookie.bookie_id)
            # Sent before there is a connection: it waits, and must not wait for ever.
            pending = channel.request("a read", lambda number: v3.encode_read(number, 1))
            with pytest.raises(SecurityError, match="certificate"):
                await pending
            with pytest.raises(SecurityError, match="certificate"):
                await bk.create_ledger(**SOLO)
    assert "is not let in: it shows no certificate" in caplog.text
    assert "accept our certificate" not in caplog.text


async def test_s102_a_refusal_that_comes_late_fails_what_is_pending(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    """A bookie that lets us in and then sends an alert, as after a late look at a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(good.certificate_file, good.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca.ca_file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    stranger = Authority(ca.directory, "Another CA").issue("stranger")
    held: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = RequestDecoder().feed(await reader.read(65536))[0]
        assert isinstance(request, StartTLS)
        writer.write(start_tls_answer(request, Status.OK))
        while True:
            incoming.write(await reader.read(65536))
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
            except ssl.SSLError:
                # The refusal is held until the client believes to be connected.
                held.append(outgoing.read())
                await until(lambda: bool(waiting))
                writer.write(held[0])
                return

    waiting: list[Any] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with secure_cluster(tmp_path) as cluster:
        async with cluster.connect(tls=client_tls(ca, stranger)) as bk:

            async def elsewhere(_: str) -> tuple[str, int]:
                return "127.0.0.1", port

            client_context(bk).bookies._resolve = elsewhere  # a name that leads elsewhere
            channel = client_context(bk).bookies.control(cluster.bookie.bookie_id)
            pending = channel.request("a read", lambda number: v3.encode_read(number, 1))
            waiting.append(pending)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(SecurityError, match="who signed our certificate"):
                    await pending
    server.close()


async def test_s102_a_writer_in_the_middle_of_its_work_gets_a_security_error(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    """The bookie comes back with other rules: what is pending, and what comes, is told."""
    tls = bookie_tls(ca, good, client_authentication=True)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        mine = ca.issue("mine")
        async with cluster.connect(tls=client_tls(ca, mine)) as bk, asyncio.timeout(PATIENCE_S):
            ledger = await bk.create_ledger(**SOLO)
            await ledger.append(b"x")
            other = Authority(ca.directory, "Another CA")
            shutil.copy(other.ca_file, ca.ca_file)
            for connection in connections_of(cluster.bookie):
                connection.give_up("the test wants it to come again")
            channel = client_context(bk).bookies.fast(cluster.bookie.bookie_id)
            await until(lambda: not channel.is_connected)
            with pytest.raises(SecurityError, match="who signed our certificate"):
                await ledger.append(b"y")
            with pytest.raises(SecurityError):
                await ledger.append(b"z")


async def test_a_bookies_new_certificate_is_used_and_a_bad_one_is_not(
    ca: Authority, good: Issued, tmp_path: Any, caplog: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        metrics = cluster.bookie.metrics
        raw = await cluster.raw()
        context = ssl.create_default_context(cafile=ca.ca_file)
        await raw.start_tls(context)

        async def serial() -> int:
            fresh = await cluster.raw()
            await fresh.start_tls(context)
            shown = fresh.writer.get_extra_info("peercert")
            fresh.close()
            return int(shown["serialNumber"], 16)

        assert await serial() == good.certificate.serial_number
        new = ca.issue("new", ips=["127.0.0.1"])
        os.replace(new.key_file, good.key_file)
        # Half of the change: the key does not fit, and the old pair goes on.
        assert await serial() == good.certificate.serial_number
        assert metrics.certificate_errors == 1
        assert "the certificates stay as they were" in caplog.text
        assert await serial() == good.certificate.serial_number
        assert metrics.certificate_errors == 1  # said once
        shown = cluster.bookie.render_metrics().decode().splitlines()
        assert "bookkeeper_server_CERTIFICATE_ERRORS 1.0" in shown
        os.replace(new.certificate_file, good.certificate_file)
        assert await serial() == new.certificate.serial_number
        # The connection from before has its keys, and goes on.
        assert (await raw.ask_v3(v3.encode_bookie_info(9, 1))).status is Status.OK
        raw.close()


async def test_a_clients_new_certificate_is_used_without_a_restart(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    tls = bookie_tls(
        ca, good, client_authentication=True,
    )  # fmt: skip
    mine = ca.issue("mine", to_days=-0.5, from_days=-1)
    shown = client_tls(ca, mine, reload_interval_s=1e-9)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        async with cluster.connect(tls=shown, quarantine_s=0) as bk:
            with pytest.raises(SecurityError, match="our certificate has expired"):
                await bk.create_ledger(**SOLO)
            ca.issue("mine")
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


def test_an_error_about_security_is_no_reason_to_try_the_same_again() -> None:
    assert not SecurityError("x").retriable
    assert SecurityError("x").code == -24
