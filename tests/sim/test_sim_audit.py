"""The writer of the admin server's audit stream in the simulator: each change is one record.

Two servers write one stream, which they take from each other; they stand still while they write,
for longer than their sessions last, and what bookies answer meanwhile is lost; half of the runs
have mishaps as well.  What a server that is killed had not written is lost with it; nothing is
there twice.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from quorumbook.admin.access.audit import AuditedChange
from quorumbook.admin.http import audit_stream
from quorumbook.admin.http.audit_stream import AuditStream
from quorumbook.admin.http.streams_held import HeldStreams
from quorumbook.errors import QuorumbookError
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.program import SimulatedMachine, Simulation
from quorumbook.streams.errors import StreamNotFoundError
from quorumbook.testing import simulate

_SERVERS = ("one", "other")
_CHANGES = 16
_ROUGH_S = 40.0
#: For a moment, for about as long as a request may take, and longer than any session lasts.
_STANDS_STILL_S = (0.01, 1.0, 8.0)


class _Servers:
    """What servers had to write, by life: a life that has ended well wrote all of it."""

    def __init__(self) -> None:
        self.put: dict[str, list[str]] = {}
        self.ended_well: set[str] = set()
        self.audits: dict[str, AuditStream] = {}

    def has_work(self, name: str) -> bool:
        """Tell whether a server writes now, or is about to."""
        # Nobody else wants to know.
        return name in self.audits and bool(self.audits[name]._waiting)

    async def serve(self, machine: SimulatedMachine) -> None:
        life = f"{machine.name} {len(self.put)}"
        changes = self.put[life] = []
        async with machine.connect() as client:

            async def connected() -> Any:
                return client

            audit = AuditStream(HeldStreams(connected, "memory://simulated"), "audit", life)
            self.audits[machine.name] = audit
            while len(changes) < _CHANGES or self.has_work(machine.name):
                if len(changes) < _CHANGES:
                    changes.append(f"{life}: {len(changes)}")
                    audit.put(AuditedChange(0, "somebody", "here", changes[-1], "done"))
                await asyncio.sleep(machine.random.choice((0.0, 0.002, 0.3, 1.0)))
            self.ended_well.add(life)


async def _stop_them(sim: Simulation, servers: _Servers) -> None:
    """Have servers stand still while they write, and what bookies answered meanwhile get lost."""
    # Programs of users have no such hold on machines.
    cluster, random = sim._world.cluster, sim.random
    network, bookies = cluster.network, [each.name for each in cluster.bookies]
    while len(servers.ended_well) < len(_SERVERS):
        await asyncio.sleep(random.choice((0.0002, 0.0004, 0.002)))
        for machine in cluster.clients:
            is_there = machine.process is not None and not machine.process.loop.is_paused
            if not is_there or not servers.has_work(machine.name) or random.random() < 0.5:
                continue
            await asyncio.sleep(random.choice((0.0, 0.0003, 0.001)))
            if machine.process is None:
                continue
            machine.process.pause(int(random.choice(_STANDS_STILL_S) * SECOND))
            if random.random() < 0.7:
                for name in bookies:
                    network.cut(name, machine.name)
                await asyncio.sleep(0.005)
                for name in bookies:
                    network.reset_between(name, machine.name)
                    network.heal(name, machine.name)
            # They get on, too.
            await asyncio.sleep(random.choice((0.3, 3.0)))


async def _records(sim: Simulation) -> list[str]:
    async with sim.namespace() as namespace:
        stream = namespace.stream("audit")
        while True:
            try:
                await stream.recover()
                break
            except StreamNotFoundError:
                return []
            except QuorumbookError:
                # Bookies begin to start when all is healed; the simulation ends if none gets on.
                await asyncio.sleep(1)
        async with stream.reader(tail=False) as reader:
            return [json.loads(record.payload)["what"] async for record in reader]


async def _program(sim: Simulation) -> int:
    servers = _Servers()
    for name in _SERVERS:
        sim.start(name, servers.serve)
    stops = asyncio.create_task(_stop_them(sim, servers))
    await asyncio.sleep(_ROUGH_S)
    stops.cancel()
    sim.heal()
    await sim.finished(*_SERVERS)
    found = await _records(sim)
    assert [what for what, count in Counter(found).items() if count > 1] == []
    for life, changes in servers.put.items():
        written = [what for what in found if what in changes]
        assert written == changes[: len(written)]
        assert len(written) == len(changes) or life not in servers.ended_well
    return len(found)


@pytest.mark.parametrize("has_mishaps", [False, True], ids=["healthy", "mishaps"])
@pytest.mark.parametrize("seed", range(5))
def test_servers_that_stand_still_write_each_change_once(
    seed: int, has_mishaps: bool, monkeypatch: pytest.MonkeyPatch
):
    numbers = iter(range(1_000_000))
    monkeypatch.setattr(audit_stream.uuid, "uuid4", lambda: UUID(int=next(numbers)))
    assert simulate(seed, _program, bookies=3, faults=has_mishaps).value >= len(_SERVERS) * _CHANGES
