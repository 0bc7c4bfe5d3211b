"""SASL on a bookie's port: by name and password, and by Kerberos with a real KDC."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from security_harness import SOLO, RawConnection, add_frames, secure_cluster

from doubles.kdc import REALM, Kdc, need_kerberos
from quorumbook.auth.digest_md5 import DigestMd5Client, _secret
from quorumbook.auth.plugins import load_bookie_plugin, load_client_plugin
from quorumbook.errors import ConfigError, SecurityError
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

PASSWORD = "a canary of a password"


def secret_file(tmp_path: Path, name: str, *lines: str) -> str:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


def forms_of_secrets(*users: str) -> Iterator[str]:
    """Yield the password, and what is as good as it for each user, as they may be written."""
    digests = (_secret(user, "bookkeeper", PASSWORD, is_utf8=True) for user in users)
    for secret in (PASSWORD.encode(), *digests):
        yield from (repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode()[:-4])


def by_password(settings: str) -> dict[str, str]:
    return {"auth_plugin": "sasl-digest-md5", "auth_settings": settings}


def by_ticket(settings: str) -> dict[str, str]:
    return {"auth_plugin": "sasl-kerberos", "auth_settings": settings}


async def write_and_read(cluster: Any, **options: Any) -> None:
    async with cluster.connect(**options) as bk:
        async with bk.create_ledger(**SOLO) as ledger:
            assert await ledger.append(b"x") == 0
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read(0, 0)] == [b"x"]


async def test_whoever_knows_a_password_comes_in_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    known = secret_file(tmp_path, "known", f"writer:{PASSWORD}:write", f"жук:{PASSWORD}")
    async with secure_cluster(tmp_path, **by_password(known)) as cluster:
        for name in ("writer", "жук"):
            mine = secret_file(tmp_path, name, f"{name}:{PASSWORD}")
            await write_and_read(cluster, **by_password(mine))
        for line in ("writer:wrong", f"nobody:{PASSWORD}"):
            mine = secret_file(tmp_path, "wrong", line)
            with pytest.raises(SecurityError, match="let us in") as caught:
                await write_and_read(cluster, **by_password(mine))
            for form in forms_of_secrets("writer", "nobody"):
                assert form not in str(caught.value)
        with pytest.raises(SecurityError, match="wants TLS, a certificate or authentication"):
            other = {"auth_plugin": "security_toys:GoldenClient"}
            await write_and_read(cluster, **other)
    assert "wrong name or password" in caplog.text
    for form in forms_of_secrets("writer", "жук", "nobody"):
        assert form not in caplog.text


async def test_roles_stand_behind_the_password(tmp_path: Path) -> None:
    known = secret_file(tmp_path, "known", f"writer:{PASSWORD}:write", f"reader:{PASSWORD}:read")
    roles: Any = {"authorized_roles": ("write",)}
    async with secure_cluster(tmp_path, **by_password(known), **roles) as cluster:
        writer = secret_file(tmp_path, "writer", f"writer:{PASSWORD}")
        await write_and_read(cluster, **by_password(writer))
        reader = secret_file(tmp_path, "reader", f"reader:{PASSWORD}")
        with pytest.raises(SecurityError):
            await write_and_read(cluster, **by_password(reader))


async def test_somebody_is_added_and_shut_out_without_a_restart(tmp_path: Path) -> None:
    known = secret_file(tmp_path, "known", f"one:{PASSWORD}")
    mine = by_password(secret_file(tmp_path, "two", f"two:{PASSWORD}"))
    async with secure_cluster(tmp_path, **by_password(known)) as cluster:
        with pytest.raises(SecurityError):
            await write_and_read(cluster, **mine)
        secret_file(tmp_path, "known", f"one:{PASSWORD}", f"two:{PASSWORD}")
        await write_and_read(cluster, **mine)
        secret_file(tmp_path, "known", "")
        await write_and_read(cluster, **mine)
        secret_file(tmp_path, "known", f"one:{PASSWORD}")
        with pytest.raises(SecurityError):
            await write_and_read(cluster, **mine)


def frames(version: int, payload: bytes) -> bytes:
    return v2.encode_auth("sasl", payload) if version == 2 else v3.encode_auth(1, "sasl", payload)


async def ask(raw: RawConnection, version: int, payload: bytes) -> tuple[bool, bytes]:
    """Send a message of the client's; return whether the bookie goes on, and what it says."""
    answer = await raw.ask(frames(version, payload))
    if version == 2:
        decoded = v2.AnswerDecoder().feed(answer)[0]
        assert isinstance(decoded, v2.AuthAnswer)
        return True, decoded.payload
    response = v3.ResponseDecoder().feed(answer)[0]
    return response.status is Status.OK, response.auth_payload or b""


@pytest.mark.parametrize("version", [2, 3])
async def test_the_peers_client_says_one_empty_thing_more_and_is_in(
    tmp_path: Path, version: int
) -> None:
    known = secret_file(tmp_path, "known", f"hd:{PASSWORD}")
    async with secure_cluster(tmp_path, **by_password(known)) as cluster:
        raw = await cluster.raw()
        client = DigestMd5Client("hd", PASSWORD, "bookkeeper/bookkeeper", "nonce")
        _, challenge = await ask(raw, version, b"")
        _, proof = await ask(raw, version, client.respond(challenge))
        client.verify(proof)
        await raw.ask(frames(version, b""))
        assert (await raw.ask_v2(add_frames(7, 1))).code == 0
        raw.close()


@pytest.mark.parametrize("version", [2, 3])
async def test_an_answer_that_was_recorded_lets_nobody_in(tmp_path: Path, version: int) -> None:
    known = secret_file(tmp_path, "known", f"hd:{PASSWORD}")
    async with secure_cluster(tmp_path, **by_password(known)) as cluster:
        raw = await cluster.raw()
        client = DigestMd5Client("hd", PASSWORD, "bookkeeper/bookkeeper", "nonce")
        recorded = client.respond((await ask(raw, version, b""))[1])
        raw.close()
        for turn in range(2):
            raw = await cluster.raw()
            if turn:
                await ask(raw, version, b"")
            raw.send(frames(version, recorded))
            if turn:
                if version == 3:
                    assert v3.ResponseDecoder().feed(await raw.frame())[0].status is (
                        Status.UNAUTHORIZED
                    )
                assert await raw.is_closed()
            else:
                assert b"realm" in await raw.frame()
            raw.close()
        assert cluster.bookie.storage.handle(7) is None


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("cut", [None, 40_000])
async def test_a_large_frame_right_behind_the_last_message_is_judged_when_it_has_let_one_in(
    tmp_path: Path, version: int, cut: int | None
) -> None:
    def auth(payload: bytes) -> bytes:
        name = "GoldenAuth"
        return v2.encode_auth(name, payload) if version == 2 else v3.encode_auth(1, name, payload)

    async with secure_cluster(tmp_path, auth_plugin="security_toys:GoldenBookie") as cluster:
        for last in (b"response", b"wrong"):
            raw = await cluster.raw()
            await raw.ask(auth(b"hello"))
            frames = auth(last) + add_frames(7, 1, bytes(100_000))
            raw.send(frames[:cut])
            if last == b"response":
                await raw.frame()
                raw.send(frames[cut or len(frames) :])
                assert v2.AnswerDecoder().feed(await raw.frame())[0].code == 0
                assert cluster.bookie.storage.handle(7) is not None
            else:
                if version == 3:
                    await raw.frame()
                assert await raw.is_closed()
            raw.close()
        strange = await cluster.raw()
        strange.send(add_frames(8, 1, bytes(100_000)))
        assert await strange.is_closed()
        assert cluster.bookie.storage.handle(8) is None


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Any:
    need_kerberos()
    kdc = Kdc(tmp_path_factory.mktemp("kdc"))
    yield kdc
    kdc.stop()


@pytest.fixture
def keytabs(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes keytabs; in this process Kerberos looks at our KDC."""
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    return kdc.keytab


async def test_whoever_has_a_ticket_comes_in_if_allowed(
    tmp_path: Path, keytabs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = keytabs("bookkeeper/127.0.0.1")
    writer, stranger = keytabs("writer/h"), keytabs("stranger/h")
    bookie = by_ticket(f"principal=bookkeeper/127.0.0.1 keytab={served} allowed=writer.*")
    async with secure_cluster(tmp_path, **bookie) as cluster:
        await write_and_read(cluster, **by_ticket(f"principal=writer/h keytab={writer}"))
        assert f"is writer/h@{REALM}'s" in caplog.text
        with pytest.raises(SecurityError):
            await write_and_read(cluster, **by_ticket(f"principal=stranger/h keytab={stranger}"))
        assert f"stranger/h@{REALM} is not one of allowed=writer.*" in caplog.text


async def test_a_principals_first_part_is_its_role(tmp_path: Path, keytabs: Any) -> None:
    served = keytabs("bookkeeper/127.0.0.1")
    bookie = by_ticket(f"keytab={served} allowed=.*")
    role: Any = {"authorized_roles": ("writing",)}
    async with secure_cluster(tmp_path, **bookie, **role) as cluster:
        await write_and_read(cluster, **by_ticket(f"principal=writing keytab={keytabs('writing')}"))
        with pytest.raises(SecurityError):
            await write_and_read(
                cluster, **by_ticket(f"principal=reading keytab={keytabs('reading')}")
            )


async def test_a_client_without_a_ticket_is_told_what_is_missing(
    tmp_path: Path, keytabs: Any, kdc: Kdc
) -> None:
    bookie = by_ticket(f"keytab={keytabs('bookkeeper/127.0.0.1')}")
    async with secure_cluster(tmp_path, **bookie) as cluster:
        with pytest.raises(SecurityError, match=r"Kerberos: No .*credential"):
            await write_and_read(cluster, **by_ticket(""))
        gone = keytabs("bookkeeper-gone")
        kdc.delete("bookkeeper-gone")
        with pytest.raises(SecurityError, match=r"Kerberos: .*not found in Kerberos database"):
            await write_and_read(cluster, **by_ticket(f"principal=bookkeeper-gone keytab={gone}"))


async def test_a_bookie_that_does_not_hold_the_services_key_gets_nothing(
    tmp_path: Path, keytabs: Any
) -> None:
    keytabs("bookkeeper/127.0.0.1")
    impostor = by_ticket(f"keytab={keytabs('impostor/127.0.0.1')} allowed=.*")
    async with secure_cluster(tmp_path, **impostor) as cluster:
        with pytest.raises(SecurityError):
            await write_and_read(
                cluster, **by_ticket(f"principal=writer keytab={keytabs('writer')}")
            )


@pytest.mark.parametrize("side", [load_bookie_plugin, load_client_plugin])
@pytest.mark.parametrize(
    "settings",
    ["principal", "principal=", "principal=a principal=b", "pasword=x", "keytab='", "/a/file"],
)
def test_settings_of_kerberos_that_are_not_of_the_form_are_refused(
    side: Any, settings: str
) -> None:
    with pytest.raises(ConfigError, match=r"sasl-kerberos: auth_settings"):
        side("sasl-kerberos", settings)


def test_a_keytab_that_everybody_can_read_is_refused(tmp_path: Path, keytabs: Any) -> None:
    path = Path(keytabs("readable/localhost"))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may read it"):
        load_bookie_plugin("sasl-kerberos", f"keytab={path}")


def test_an_expression_that_is_none_is_refused(keytabs: Any) -> None:
    with contextlib.suppress(ImportError), pytest.raises(ConfigError, match=r"allowed=\("):
        load_bookie_plugin("sasl-kerberos", "allowed=(")
