"""The directed phases ``members``, ``batches`` and ``rivals``: streams that processes share.

members   a consumer group of three, whose partitions go from one to the other
batches   two who commit batches of one application
rivals    two producers who take a stream from each other, and some who follow it and look for
          records in it; a segment may end before its first entry

Those who share stand still, for a moment or for longer than their sessions last, die, and lose
answers of the metadata store, mostly in the few milliseconds in which something is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from quorumbook.sim.actors import streams
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.phase import SearchPhase
from quorumbook.sim.process import Machine

_ALIKE: Mapping[str, Any] = {
    "quorums": (3, 3, 2),
    "bookies": 3,
    "writers": 0,
    "recoverers": 0,
    "tailers": 0,
    "has_auto_recovery": False,
    "burst_max": 4,
    "payload_size_max": 100,
    "rough_s": 10.0,
    "mishaps": ("kill_metadata_server", "pause_metadata_server", "part_metadata_server"),
    "mishap_interval_s": 2.0,
    "tail": 0.005,
    "rechunk": 0.0,
    "metadata_drops": 0.02,
    "slow_syncs": 0.0,
    "flush_interval_s": 2.0,
    "session_timeout_s": 2.0,
}
#: What they want of the plan.
MEMBERS: Mapping[str, Any] = {**_ALIKE, "ways": ("groups",)}
BATCHES: Mapping[str, Any] = {**_ALIKE, "ways": ("transactions",)}
RIVALS: Mapping[str, Any] = {**_ALIKE, "ways": ("streams",), "writers": 2, "ledgers_max": 2}


class Sharers(SearchPhase):
    """One after the other stands still or dies."""

    def begin(self) -> None:
        """Begin."""
        self._life.transactions.on_try = partial(self._hold, 0.3, (0.3, 1.0))
        self._life.groups.on_handed = partial(self._hold, 0.05, (2.5, 3.5))
        if self._life.plan.has("streams"):
            self._life.history.on_segment = self._leave_empty
            seeker = self._life.cluster.add_client("f1")
            seeker.start(lambda process: streams.seek(self._life, process))
        super().begin()

    def _leave_empty(self) -> None:
        """Have the producers die around the first entry of a segment (S93)."""
        if self._life.is_rough and self._tape.chance(0.3):
            for machine in self._life.cluster.clients:
                if machine.name[0] == "p":
                    self._later(0.0, 0.002, partial(self._kill, machine))

    def _hold(self, probability: float, durations_s: tuple[float, ...], who: str) -> None:
        """Have somebody stand still around his commit, while others come by."""
        if self._life.is_rough and self._tape.chance(probability):
            name = who.partition(".")[0]
            (machine,) = [each for each in self._life.cluster.clients if each.name == name]
            pause = partial(self._pause, machine, self._tape.pick(durations_s))
            self._later(0.0, self._tape.pick((0.0, 0.03)), pause)

    def _act(self) -> None:
        tape = self._tape
        sharers = [each for each in self._life.cluster.clients if each.name[0] in "mxp"]
        machine = tape.pick(sharers)
        acts = (self._stand_still, self._kill, self._cut_off, self._lose, self._lose)
        tape.pick(acts)(machine)
        self._later(0.1, 0.8, self._act)

    def _pause(self, machine: Machine, duration_s: float) -> None:
        if machine.process is not None and not machine.process.loop.is_paused:
            machine.process.pause(int(duration_s * SECOND))

    def _stand_still(self, machine: Machine) -> None:
        self._pause(machine, self._tape.pick((0.01, 0.3, 2.5)))

    def _kill(self, machine: Machine) -> None:
        machine.kill()
        self._later(0.0, 1.0, partial(self._life.start_client, machine))

    def _cut_off(self, machine: Machine) -> None:
        """Let requests get to the metadata store, and no answer back, for a while."""
        network = self._life.cluster.network
        for name in self._life.cluster.metadata_names:
            network.cut(name, machine.name)
            self._later(0.0, 0.5, partial(network.heal, name, machine.name))

    def _lose(self, machine: Machine) -> None:
        """Lose some request to the metadata store, or its answer."""
        tape, network = self._tape, self._life.cluster.network
        for name in self._life.cluster.metadata_names:
            ends = (machine.name, name) if tape.chance(0.5) else (name, machine.name)
            # Not in the middle of what the network does with its connections.
            reset = partial(network.reset_between, *ends)
            network.at_piece(*ends, 1 + tape.below(12), partial(self._kernel.after, 0, reset))
