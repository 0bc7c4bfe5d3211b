"""The shared secret: who is let in, what a stranger and an impostor learn, and SCRAM's messages."""

from __future__ import annotations

import base64
import pathlib
from typing import Any

import pytest
from security_harness import SOLO, secure_cluster

from quorumbook.auth.plugins import Peer, load_bookie_plugin, load_client_plugin
from quorumbook.auth.scram import ScramClient, ScramServer
from quorumbook.auth.shared_secret import BookieSharedSecret
from quorumbook.errors import ConfigError, SecurityError
from quorumbook.protocol.status import Status
from quorumbook.protocol.v3 import client as v3


def secret_file(tmp_path: Any, name: str, *lines: str) -> str:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


async def test_a_shared_secret_lets_in_who_knows_it(tmp_path: Any) -> None:
    theirs = secret_file(tmp_path, "theirs", "# who may", "", "ann:" + "a" * 16, "bob:" + "b" * 16)
    served = {"auth_plugin": "shared-secret", "auth_settings": theirs}
    async with secure_cluster(tmp_path, **served) as cluster:
        for line, is_in in (
            ("ann:" + "a" * 16, True),
            ("bob:" + "b" * 16, True),
            ("bob:" + "a" * 16, False),
            ("eve:" + "a" * 16, False),
        ):
            ours = secret_file(tmp_path, "ours", line)
            used = {"auth_plugin": "shared-secret", "auth_settings": ours, "quarantine_s": 0}
            async with cluster.connect(**used) as bk:
                if is_in:
                    async with bk.create_ledger(**SOLO) as ledger:
                        assert await ledger.append(b"x") == 0
                else:
                    with pytest.raises(SecurityError, match="does not know the secret of"):
                        await bk.create_ledger(**SOLO)


async def test_a_recorded_login_opens_no_second_connection(tmp_path: Any) -> None:
    secrets = secret_file(tmp_path, "secrets", "ann:" + "a" * 16)
    plugin = load_client_plugin("shared-secret", secrets)
    assert plugin is not None
    session = plugin.session(None)  # type: ignore[arg-type]
    served = {"auth_plugin": "shared-secret", "auth_settings": secrets}
    async with secure_cluster(tmp_path, **served) as cluster:
        raw = await cluster.raw()
        first = v3.encode_auth(1, plugin.name, session.start())
        challenge = (await raw.ask_v3(first)).auth_payload
        second = v3.encode_auth(2, plugin.name, session.answer(challenge or b"") or b"")
        assert (await raw.ask_v3(second)).status is Status.OK
        assert (await raw.ask_v3(v3.encode_bookie_info(3, 0))).status is Status.OK
        raw.close()
        raw = await cluster.raw()
        assert (await raw.ask_v3(first)).status is Status.OK
        assert (await raw.ask_v3(second)).status is Status.UNAUTHORIZED
        assert await raw.is_closed()


async def test_a_bookie_that_does_not_know_the_secret_is_not_believed(tmp_path: Any) -> None:
    ours = load_client_plugin("shared-secret", secret_file(tmp_path, "a", "ann:" + "a" * 16))
    false = load_bookie_plugin("shared-secret", secret_file(tmp_path, "b", "ann:" + "b" * 16))
    assert ours is not None
    assert false is not None
    session = ours.session(None)  # type: ignore[arg-type]
    theirs = false.session(None)  # type: ignore[arg-type]
    challenge = theirs.answer(session.start()).payload or b""
    for junk in (b"", b"x" * 63, b"r=,s=,i=", challenge.replace(b"r=", b"r=x"),
                 challenge.replace(b"i=4096", b"i=1"),
                 challenge.replace(b"i=4096", b"i=1000000000")):  # fmt: skip
        with pytest.raises(SecurityError):
            session.answer(junk)
    step = theirs.answer(session.answer(challenge) or b"")
    assert (step.principal, step.refusal) == (None, "wrong name or secret")
    for junk in (step.payload or b"", b"", b"v=", b"v=" + b"A" * 43 + b"=", b"v=A", b"\xff"):
        with pytest.raises(SecurityError, match="does not know the secret of ann"):
            session.answer(junk)


def test_a_stranger_learns_nothing_of_a_bookie_to_guess_a_secret_by(tmp_path: Any) -> None:
    """What it says before the proof would be the same whatever the secret is."""
    said = []
    for secret in ("a" * 16, "b" * 16):
        plugin = BookieSharedSecret(secret_file(tmp_path, "s", f"ann:{secret}", "bob:" + "c" * 16))
        plugin._salt_key = b"k" * 32  # the salt is what a vector has
        for name in ("ann", "eve"):
            session = plugin.session(Peer("x"))
            first = ScramClient(name, "no secret", "nonce").first()
            challenge = session.answer(first).payload or b""
            said.append((name, challenge.split(b",", 1)[1]))
            last = session.answer(b"c=biws,r=nonce,p=" + b"A" * 43 + b"=")
            assert (last.payload, last.principal) == (b"e=invalid-proof", None)
    assert said[:2] == said[2:]


async def test_a_secret_that_was_changed_counts_without_a_restart(tmp_path: Any) -> None:
    theirs = secret_file(tmp_path, "theirs", "ann:" + "a" * 16)
    ours = secret_file(tmp_path, "ours", "ann:" + "a" * 16)
    served = {"auth_plugin": "shared-secret", "auth_settings": theirs}
    used = {"auth_plugin": "shared-secret", "auth_settings": ours, "quarantine_s": 0}

    async def is_let_in() -> bool:
        async with cluster.connect(**used) as bk:
            try:
                await (await bk.create_ledger(**SOLO)).append(b"x")
            except SecurityError:
                return False
        return True

    async with secure_cluster(tmp_path, **served) as cluster, cluster.connect(**used) as kept:
        async with kept.create_ledger(**SOLO) as ledger:
            await ledger.append(b"x")
            secret_file(tmp_path, "theirs", "ann:" + "b" * 17)
            assert not await is_let_in()
            secret_file(tmp_path, "ours", "ann:" + "b" * 17)
            assert await is_let_in()
            secret_file(tmp_path, "theirs", "rubbish")
            assert await is_let_in()
            await ledger.append(b"y")


def test_the_messages_are_those_of_the_standard() -> None:
    """The example of RFC 7677, section 3."""
    nonce, salt = "rOprNGfwEbeRWgbNEkqO", "W22ZaJ0SNY7soEsUEjb6gQ=="
    theirs = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = f"r={nonce}{theirs},s={salt},i=4096".encode()
    final = (f"c=biws,r={nonce}{theirs},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").encode()
    last = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client, server = ScramClient("user", "pencil", nonce), ScramServer(first, theirs)
    assert client.first() == first
    assert server.name == "user"
    assert server.challenge(base64.b64decode(salt)) == challenge
    assert client.respond(challenge) == final
    assert server.verify(final, "pencil", base64.b64decode(salt)) == last
    client.verify(last)


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", "ü,=3D", "n=x,r=y"])
def test_a_name_may_have_any_characters(name: str) -> None:
    server = ScramServer(ScramClient(name, "secret", "c").first(), "s")
    assert server.name == name


@pytest.mark.parametrize(
    ("lines", "mode", "why"),
    [
        (["ann:short"], 0o600, "line 1 is not name:secret with a secret of at least 16"),
        (["no colon in here at all"], 0o600, "line 1 is not name:secret"),
        (["# nothing"], 0o600, "names nobody; write a line name:secret"),
        (["ann:" + "a" * 16], 0o644, "everybody may read it; chmod o-r"),
    ],
)
def test_a_file_of_secrets_is_refused_with_what_to_do(
    tmp_path: Any, lines: list[str], mode: int, why: str
) -> None:
    path = secret_file(tmp_path, "secrets", *lines)
    pathlib.Path(path).chmod(mode)
    for load in (load_bookie_plugin, load_client_plugin):
        with pytest.raises(ConfigError, match=why) as caught:
            load("shared-secret", path)
        assert "aaaa" not in str(caught.value)
