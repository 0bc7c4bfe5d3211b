"""Seats of a train, sold by whichever of two servers leads, in a simulated cluster with mishaps.

    python examples/simulation.py 0..99           run seeds: no seat is ever sold twice
    python examples/simulation.py 0..99 --bug     a server that answers too early is found out
    python examples/simulation.py 17 --bug --trace     everything that happened in one seed

Sales are the commands of a ``StateMachine``.  Both servers want to lead now and then, and take the
stream from each other by force.  A passenger is told "yours" when the sale is safe.  With ``--bug``
the server says so as soon as it has sent the sale off: it is the only one who sells, it thinks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from quorumbook.streams import Command, StateMachine
from quorumbook.testing import SimulatedMachine, Simulation, simulate

SEATS = 60
STREAM = "sales"


class Seats:
    """Who has which seat."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}

    def apply(self, command: Command) -> str:
        """Sell a seat, unless it is sold; return who has it."""
        seat, passenger = command.payload.decode().split()
        return self.owners.setdefault(seat, passenger)

    def snapshot(self) -> bytes:
        """Return all owners."""
        return "\n".join(f"{seat} {owner}" for seat, owner in self.owners.items()).encode()

    def restore(self, data: bytes) -> None:
        """Take over all owners."""
        self.owners = dict(line.split() for line in data.decode().splitlines())


class Server:
    """One of the two; ``promises`` is what passengers were told, which outlives it."""

    def __init__(self, promises: dict[str, str], *, has_bug: bool) -> None:
        self._promises = promises
        self._has_bug = has_bug

    async def run(self, machine: SimulatedMachine) -> None:
        """Sell seats until there are none."""
        async with machine.namespace() as ns:
            await ns.create_stream(STREAM, exist_ok=True)
            async with StateMachine(ns.stream(STREAM), Seats()) as seats:
                while len(seats.state.owners) < SEATS:
                    await asyncio.sleep(machine.random.uniform(0.1, 3))
                    # If the other one takes over this raises, and the process is started again.
                    await self._lead(machine, seats)

    async def _lead(self, machine: SimulatedMachine, seats: StateMachine[Seats]) -> None:
        await seats.lead(takeover="force")
        for _ in range(machine.random.randrange(1, 20)):
            seat = f"seat{machine.random.randrange(SEATS)}"
            passenger = f"{machine.name}-{machine.random.getrandbits(32):08x}"
            owner = await self._sell(seats, seat, passenger)
            promised = self._promises.setdefault(seat, owner)
            assert promised == owner, f"{seat} was promised to {promised} and to {owner}"
            await asyncio.sleep(machine.random.uniform(0, 0.2))

    async def _sell(self, seats: StateMachine[Seats], seat: str, passenger: str) -> str:
        command = f"{seat} {passenger}".encode()
        if self._has_bug and seat not in seats.state.owners:
            sale = asyncio.ensure_future(seats.propose(command))
            sale.add_done_callback(lambda each: each.cancelled() or each.exception())
            return passenger
        owner: str = await seats.propose(command)
        return owner


async def sell_a_train(world: Simulation, *, has_bug: bool = False) -> int:
    """Have all seats sold while things go wrong; return how many promises there were."""
    promises: dict[str, str] = {}
    server = Server(promises, has_bug=has_bug)
    world.start("left", server.run)
    world.start("right", server.run)
    await asyncio.sleep(20)
    world.heal()
    await world.finished("left", "right")
    async with world.namespace() as ns, StateMachine(ns.stream(STREAM), Seats()) as seats:
        await seats.refresh()
        for seat, owner in promises.items():
            found = seats.state.owners.get(seat)
            assert found == owner, f"{seat} was promised to {owner} and belongs to {found}"
    return len(promises)


def main() -> int:
    """Run the seeds that were asked for."""
    parser = argparse.ArgumentParser(description="Seats of a train in a simulated cluster.")
    parser.add_argument("seeds", metavar="A..B", help="one seed, or some, both ends included")
    parser.add_argument("--bug", action="store_true", help="answer before a sale is safe")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    trace = sys.stdout if options.trace else None
    for seed in range(int(first), int(last or first) + 1):
        try:
            result = simulate(
                seed, lambda world: sell_a_train(world, has_bug=options.bug), trace=trace
            )
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return 1
        print(f"seed {seed}: {result.value} seats, {result.virtual_s:.0f} virtual seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
