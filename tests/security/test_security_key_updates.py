"""A stranger over TLS whose records are all work and no data: given up, said once, others go on."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
from security_harness import RawConnection, bookie_tls, secure_cluster

from doubles.certificates import Authority
from doubles.key_updates import ask_for_new_keys
from doubles.waiting import until
from quorumbook.protocol.v3 import client as v3


class _Stranger:
    """TLS over a raw connection; what is encrypted may be changed before it is sent."""

    def __init__(self, raw: RawConnection, ca: Authority) -> None:
        self._raw = raw
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=ca.ca_file)
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    async def shake(self) -> None:
        await self._raw.ask_v3(v3.encode_start_tls(1))
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send()
                self._in.write(await self._raw.reader.read(65536))
            else:
                return self.send()

    def send(self) -> None:
        self._raw.send(self._out.read())


@pytest.fixture(name="ca")
def _ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_who_asks_for_new_keys_without_end_is_given_up_and_others_go_on(
    ca: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quorumbook")
    tls = bookie_tls(ca, ca.issue("bookie", ips=["127.0.0.1"]), require=True)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        raw, honest = await cluster.raw(), await cluster.raw()
        await honest.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        stranger = _Stranger(raw, ca)
        await stranger.shake()
        ask_for_new_keys(stranger.tls, 5000)
        stranger.send()
        # The answers are not looked at: a stranger need not read.
        assert await raw.is_closed()
        await until(lambda: cluster.bookie.metrics.connections_broken_protocol == 1)
        assert "its TLS records hold nothing" in caplog.text
        await asyncio.wait_for(honest.ask_v3(v3.encode_bookie_info(2)), 20)
        honest.close()
