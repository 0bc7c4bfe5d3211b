"""Garbage collection of real bookies while a third of their requests to ZooKeeper is lost."""

from __future__ import annotations

import random

import pytest

import quorumbook
from doubles.replicas import assert_fully_replicated
from doubles.waiting import until
from doubles.zookeeper import made_root
from doubles.zookeeper_proxy import Mishap, Proxy
from quorumbook.autorecovery.copying.verified_reads import listed_entries
from quorumbook.client.context import client_context
from quorumbook.metadata.zookeeper.jute import Op
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults

LEDGERS = 12
#: Lists that bookies ask for while requests get lost; each pass of garbage collection takes some.
LISTS = 60
PAYLOADS = [b"%03d" % n for n in range(20)]


class Lossy:
    """Loses a third of all requests, or their answers."""

    def __init__(self) -> None:
        self._dice = random.Random(58)
        self.lists = self.lost = 0

    def __call__(self, op: int) -> Mishap:
        self.lists += op == Op.CHILDREN
        if self._dice.random() > 0.3:
            return Mishap.NONE
        self.lost += 1
        return self._dice.choice((Mishap.NOT_SENT, Mishap.NOT_ANSWERED))


async def test_r27_s58_lost_packets_to_zookeeper_delete_no_live_ledger(zookeeper, monkeypatch):
    monkeypatch.setenv("QUORUMBOOK_GC_INTERVAL_S", "0.1")
    monkeypatch.setenv("QUORUMBOOK_GC_CONFIRM_INTERVAL_S", "0")
    root = await made_root(zookeeper)
    direct = f"zk://{zookeeper.address}/ledgers?chroot={root}"
    async with Proxy(zookeeper.host, zookeeper.port) as proxy:
        uri = f"zk://127.0.0.1:{proxy.port}/ledgers?chroot={root}"
        async with (
            LocalCluster(
                bookies=3, processes=True, metadata_uri=uri, storage={"flush_interval_s": 0.2}
            ),
            quorumbook.connect(direct) as bk,
        ):
            ledgers = []
            for _ in range(LEDGERS):
                async with bk.create_ledger() as ledger:
                    await ledger.append_batch_nowait(PAYLOADS)
                ledgers.append(ledger.id)
            lossy = proxy.on_request = Lossy()
            proxy.cut()
            dead = ledgers.pop()
            members = (await bk.ledger_metadata(dead)).ensemble
            await bk.delete_ledger(dead)

            async def many_passes() -> bool:
                return lossy.lists >= LISTS

            await until(many_passes)
            assert lossy.lost > 3
            proxy.on_request = lambda _op: Mishap.NONE

            async def is_collected() -> bool:
                lists = [
                    await listed_entries(client_context(bk), dead, member) for member in members
                ]
                return lists == [[], [], []]

            # Collection went on all the time: what is really dead goes.
            await until(is_collected)
            for ledger_id in ledgers:
                await assert_fully_replicated(bk, ledger_id, PAYLOADS)
