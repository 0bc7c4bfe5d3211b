"""The members of a simulated etcd: who answers, and who of them leads.

    down    its connections end, and nobody is let in
    still   what arrives is looked at when it goes on, however long ago it was sent
    apart   it does not reach the others

A member that is none of that passes on what it is asked to the leader.  A leader that does not
answer is replaced after a while by one that two members reach; until then nothing is carried out.
What the members hold is elsewhere (``etcd_state``), and is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.sim.kernel import SECOND, Kernel

NAMES = ("e0", "e1", "e2")
_QUORUM = 2
_ELECTION_S = (0.3, 2.0)


class Members:
    """All three.

    Args:
        kernel: Time and chance.
        on_down: Called with a member whose connections end.
        on_leader: Called when another member begins to lead.
    """

    def __init__(
        self, kernel: Kernel, on_down: Callable[[str], None], on_leader: Callable[[], None]
    ) -> None:
        self._kernel = kernel
        self._on_down = on_down
        self._on_leader = on_leader
        self._leader = NAMES[0]
        self._is_electing = False
        self._down: set[str] = set()
        self._still_until_ns = dict.fromkeys(NAMES, 0)
        self._apart_until_ns = dict.fromkeys(NAMES, 0)

    def kill(self, name: str) -> None:
        """End a member."""
        self._kernel.trace.note(name, "ends")
        self._down.add(name)
        self._on_down(name)
        self._look()

    def boot_up(self, name: str) -> None:
        """Start a member again."""
        self._down.discard(name)

    def stand_still(self, name: str, duration_ns: int) -> None:
        """Have a member do nothing for a time."""
        self._kernel.trace.note(name, "stands still", duration_ns)
        self._still_until_ns[name] = self._kernel.now_ns + duration_ns
        self._look()

    def part(self, name: str, duration_ns: int) -> None:
        """Keep a member from the others for a time."""
        self._kernel.trace.note(name, "is apart", duration_ns)
        self._apart_until_ns[name] = self._kernel.now_ns + duration_ns
        self._look()

    def heal(self) -> None:
        """Have all of them work."""
        self._down.clear()
        self._still_until_ns |= dict.fromkeys(NAMES, 0)
        self._apart_until_ns |= dict.fromkeys(NAMES, 0)

    def is_down(self, name: str) -> bool:
        """Tell whether a member has ended."""
        return name in self._down

    def looks_at_ns(self, name: str) -> int:
        """Return from when on a member looks at what arrives."""
        return self._still_until_ns[name]

    def serves(self, name: str) -> bool:
        """Tell whether a member can have carried out now what it is asked for."""
        well = self._well
        return len(well) >= _QUORUM and {name, self._leader} <= set(well)

    @property
    def _well(self) -> list[str]:
        return [each for each in NAMES if self._is_well(each)]

    def _is_well(self, name: str) -> bool:
        now_ns = self._kernel.now_ns
        ends_ns = max(self._still_until_ns[name], self._apart_until_ns[name])
        return name not in self._down and ends_ns <= now_ns

    def _look(self) -> None:
        """Have another one elected if the leader does not answer."""
        if not self._is_well(self._leader) and not self._is_electing:
            self._is_electing = True
            self._kernel.after(int(self._kernel.tape.between(*_ELECTION_S) * SECOND), self._elect)

    def _elect(self) -> None:
        self._is_electing = False
        if self._is_well(self._leader):
            return
        well = self._well
        if len(well) >= _QUORUM:
            self._leader = self._kernel.tape.pick(well)
            self._kernel.trace.note(self._leader, "leads")
            self._on_leader()
        else:
            self._look()
