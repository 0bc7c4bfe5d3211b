"""A writer whose ZooKeeper session ends while one of its writes is on its way.

The requests are counted, not listed: each sweep loses the session at the first, then at the
second, until there is none left; once before the server has the request, and once after it has
carried it out and before anybody hears of it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable

import pytest

from doubles.zookeeper import close_session, made_root
from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.client.context import client_store
from quorumbook.metadata.zookeeper.jute import Op
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.stream_context import namespace_store
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer
from streams.soundness import assert_sound, unnamed_ledgers

NAMESPACE = "/messaging/test"
#: `SESSIONS=all` loses them at every write, which takes some minutes.
LOSSES = {Op.MULTI}
if os.environ.get("SESSIONS") == "all":
    LOSSES |= {Op.CREATE, Op.SET, Op.DELETE}


class Losing:
    """Loses the session of a store at the n-th request of some kinds."""

    def __init__(
        self, proxy: Proxy, server: ZooKeeperServer, ns: Namespace, mishap: Mishap
    ) -> None:
        self._proxy = proxy
        self._server = server
        self._ns = ns
        self._mishap = mishap
        self.left = 0
        self.losing: asyncio.Task[None] | None = None
        proxy.on_request = self._on_request

    def _on_request(self, op: int) -> Mishap:
        if op not in LOSSES or not self.left:
            return Mishap.NONE
        self.left -= 1
        if self.left:
            return Mishap.NONE
        self.losing = asyncio.ensure_future(self._lose(self._proxy.deafen()))
        return self._mishap

    async def _lose(self, connections_ended: Awaitable[object]) -> None:
        """End the session as soon as what is to become of the request has."""
        proxy = self._proxy
        await connections_ended
        await close_session(client_store(self._ns.client), (self._server.host, self._server.port))
        proxy.is_deaf = False
        proxy.cut()


@pytest.fixture
async def proxied(zookeeper: ZooKeeperServer) -> AsyncIterator[tuple[Proxy, Namespace, Namespace]]:
    """Return a proxy, a namespace behind it, and the same one without it."""
    root = await made_root(zookeeper)
    direct = f"zk://{zookeeper.address}/ledgers?chroot={root}"
    async with (
        LocalCluster(bookies=3, metadata_uri=direct),
        Namespace.open(f"{direct}#{NAMESPACE}", bind=True) as other,
        Proxy(zookeeper.host, zookeeper.port) as proxy,
    ):
        behind = f"zk://127.0.0.1:{proxy.port}/ledgers?chroot={root}#{NAMESPACE}"
        async with Namespace.open(behind, client_id="behind") as ns:
            yield proxy, ns, other


async def test_the_session_of_a_namespace_in_java_s_form_has_the_timeout_that_was_asked_for(
    zookeeper: ZooKeeperServer,
) -> None:
    """Its locks are in it; the ledgers' client has a session of its own."""
    root = await made_root(zookeeper)
    async with LocalCluster(metadata_uri=f"zk://{zookeeper.address}{root}/ledgers") as cluster:
        await Namespace.bind(f"{cluster.metadata_uri}#{root}/messaging")
        address = f"distributedlog://{zookeeper.address}{root}/messaging"
        for wanted_s in 5.0, 7.0:
            async with Namespace.open(address, session_timeout_s=wanted_s) as ns:
                await ns.create_stream("s", exist_ok=True)
                async with ns.stream("s").writer():  # and so there is a session
                    assert namespace_store(ns).session_timeout_s == wanted_s
                    assert client_store(ns.client).session_timeout_s == wanted_s


@pytest.mark.parametrize("mishap", [Mishap.NOT_SENT, Mishap.NOT_ANSWERED], ids=lambda m: m.name)
async def test_a_session_lost_with_a_change_of_many_nodes_loses_and_doubles_nothing(
    proxied: tuple[Proxy, Namespace, Namespace], zookeeper: ZooKeeperServer, mishap: Mishap
) -> None:
    """Creation, takeover, roll, completion and truncation."""
    proxy, ns, other = proxied
    losing = Losing(proxy, zookeeper, ns, mishap)
    payloads = [b"%d" % number for number in range(8)]
    for number in itertools.count(1):
        name = f"s{number}"
        losing.left, losing.losing = number, None
        await ns.create_stream(name, policy=StreamPolicy(roll_entries=3))
        stream = ns.stream(name)
        crashed = await other.stream(name).writer()
        await crashed.append(b"crashed")
        async with stream.writer(takeover="force", producer="p", batch_bytes=1) as writer:
            found = [await writer.append(payload) for payload in payloads[:5]]
            await writer.truncate(found[1].position)
            await writer.roll()
            found += [await writer.append(payload) for payload in payloads[5:]]
            await stream.truncate(found[6].position)
        await crashed.abort()
        assert [each.sequence_id for each in found] == list(range(1, 9))
        assert not any(each.duplicate for each in found)
        async with other.stream(name).reader(tail=False) as reader:
            records = [(record.position, record.payload) async for record in reader]
        assert (
            records
            == [(each.position, payload) for each, payload in zip(found, payloads, strict=True)][6:]
        )
        await assert_sound(other.stream(name))
        if losing.losing is None:
            break
        await losing.losing
        assert await unnamed_ledgers(other.stream(name)) == set()
    assert number > 10
