"""The simulated store in memory keeps what stores promise about their sessions."""

from __future__ import annotations

from typing import Any

from quorumbook.errors import SessionExpiredError
from quorumbook.sim.kernel import SECOND, Kernel
from quorumbook.sim.metadata.memory import METADATA, SimStore, SimTree
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.process import Machine, Process


def test_who_lost_his_session_hears_of_it_before_a_write_is_refused():
    kernel = Kernel(1)
    network, tree = SimulatedNetwork(kernel), SimTree()
    seen: list[Any] = []

    def look() -> None:
        """Have the tree end the sessions that are over, as any other client does."""
        with tree.transaction(kernel.now_ns):
            pass

    async def main(process: Process) -> None:
        store = SimStore(tree, process, 2.0)
        store.on_session_expired(lambda: seen.append("over"))
        network.cut("c0", METADATA)
        kernel.after(3 * SECOND, network.heal, "c0", METADATA)
        kernel.after(int(2.5 * SECOND), look)
        try:
            await store.create("/a")
        except SessionExpiredError:
            seen.append("refused")

    machine = Machine(kernel, network, "c0", lambda who, context: seen.append(context))
    machine.start(main)
    kernel.run(lambda: len(seen) == 2, 10 * SECOND)
    machine.bury()
    assert seen == ["over", "refused"]
