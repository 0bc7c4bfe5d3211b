"""What of TLS is not offered, and what of a session comes back: as docs/security.md says it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from security_harness import PATIENCE_S, bookie_tls, secure_cluster

from doubles.certificates import Authority, Issued
from quorumbook.env.machine import RealClock
from quorumbook.env.tls import TlsContexts
from quorumbook.protocol.v3 import client as v3

TWO_HOURS_S = 7200


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "CA")


class _Ends:
    """A client's end and a bookie's, that talk through memory."""

    def __init__(
        self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> None:
        one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(one, other, session=session)
        self.server = server.wrap_bio(other, one, server_side=True)
        for _ in range(4):
            for end in (self.client, self.server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        # Tickets would be ahead of it.
        self.server.write(b"a word")
        assert self.client.read(6) == b"a word"

    def is_taken_up(self) -> bool:
        assert self.client.session_reused == self.server.session_reused
        return bool(self.server.session_reused)

    def shown(self) -> int:
        """Return the number of the certificate that the bookie believes its client to have."""
        found = self.server.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def _client(version: ssl.TLSVersion, issued: Issued) -> ssl.SSLContext:
    """Return somebody else's client, who takes a session up again where it can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context


def _served(ca: Authority) -> TlsContexts:
    options = bookie_tls(ca, ca.issue("bookie", ips=["127.0.0.1"]), client_authentication=True)
    return TlsContexts(options, RealClock(), server_side=True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_taken_up_again_in_tls_1_2_alone(
    ca: Authority, version: ssl.TLSVersion
) -> None:
    mine = ca.issue("mine")
    served, client = _served(ca).current(), _client(version, mine)
    first = _Ends(served, client)
    assert not first.is_taken_up()
    assert first.client.compression() is None
    second = _Ends(served, client, first.client.session)
    assert second.is_taken_up() is (version is ssl.TLSVersion.TLSv1_2)
    assert second.shown() == first.shown() == mine.certificate.serial_number
    assert first.client.session is not None
    assert first.client.session.timeout <= TWO_HOURS_S


def test_no_session_of_before_is_taken_up_when_a_file_has_changed(ca: Authority) -> None:
    served, client = _served(ca), _client(ssl.TLSVersion.TLSv1_2, ca.issue("mine"))
    first = _Ends(served.current(), client)
    Path(ca.ca_file).write_bytes(Path(ca.ca_file).read_bytes() + b"\n")
    assert served.refresh()
    assert not _Ends(served.current(), client, first.client.session).is_taken_up()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(65536):
            target.write(piece)
    target.close()


async def test_nobody_negotiates_again(ca: Authority, tmp_path: Path) -> None:
    """OpenSSL's own client asks for it: a bookie refuses, and goes on with others."""
    tls = bookie_tls(ca, ca.issue("bookie", ips=["127.0.0.1"]))
    async with secure_cluster(tmp_path, tls=tls) as cluster:

        async def after_start_tls(
            theirs: asyncio.StreamReader, to_them: asyncio.StreamWriter
        ) -> None:
            raw = await cluster.raw()
            assert not int((await raw.ask_v3(v3.encode_start_tls(1))).status)
            await asyncio.gather(_pass_on(theirs, raw.writer), _pass_on(raw.reader, to_them))

        proxy = await asyncio.start_server(after_start_tls, "127.0.0.1", 0)
        at = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        client: Any = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", at, "-tls1_2", "-CAfile", ca.ca_file,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            said = await client.stdout.readuntil(b"Verify return code: 0 (ok)")
            client.stdin.write(b"R\n")
            said += await client.stdout.read()
            await client.wait()
        assert b"RENEGOTIATING" in said
        assert b"no renegotiation" in said
        fresh = await cluster.raw()
        await fresh.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        fresh.close()
        proxy.close()
