"""The peer's own check of a ledger right behind its last adds, as its SlowBookieTest does it."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from interop.sides import JavaSide, Shape

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

ROUNDS = 2
SIZES = [20_000] * 300


@pytest.mark.parametrize("side", ["java-v2", "java-v3"])
async def test_r09_nothing_is_missing_of_a_ledger_whose_bookies_have_just_woken_up(
    connect: Any, new_cluster: Any, side: str
) -> None:
    cluster = await (await new_cluster()).start(own=4)
    java: JavaSide = await connect(side, cluster.uri)
    # One copy will do while two bookies are away: each has hundreds to take when it wakes up.
    shape = Shape(ensemble=4, write=3, ack=1)
    for _ in range(ROUNDS):
        ledger = await java.create(shape)
        await ledger.append("checked", SIZES[:10])
        sleepers = [cluster.pid(name) for name in list(cluster.own)[:2]]
        for pid in sleepers:
            os.kill(pid, signal.SIGSTOP)
        try:
            await ledger.append("checked", SIZES)
        finally:
            for pid in sleepers:
                os.kill(pid, signal.SIGCONT)
        await ledger.close()
        opened = await java.open(ledger.id, shape)
        checked = await java.call("check", handle=opened.handle)
        assert checked["missing"] == 0
        await opened.close()
