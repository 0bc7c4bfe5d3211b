"""The simulated ZooKeeper keeps ZooKeeper's rules, and seeds find a driver that breaks its own."""

from __future__ import annotations

import pytest

from quorumbook.metadata.memory import MemoryTree
from quorumbook.metadata.store import Create, Delete, Operation, Set
from quorumbook.metadata.zookeeper import lost_writes
from quorumbook.metadata.zookeeper.jute import Code, EventKind
from quorumbook.metadata.zookeeper.lost_writes import Eyes, Fate
from quorumbook.sim.kernel import SECOND, Tape
from quorumbook.sim.life import run_seed
from quorumbook.sim.metadata.zookeeper_state import Ensemble, Event, Replica, ServerFailure, Stat
from quorumbook.sim.plan import draw


class World:
    def __init__(self) -> None:
        self.ensemble = Ensemble(MemoryTree())
        self.session = self.ensemble.begin_session("z0", 4 * SECOND, 0)

    def write(self, *operations: Operation, server: str = "z0") -> list[object] | ServerFailure:
        done = self.ensemble.write(self.session.id, server, operations, 0)
        return done if isinstance(done, ServerFailure) else list(done)

    def follower(self, steps: int) -> tuple[Replica, list[Event]]:
        replica, events = Replica(MemoryTree()), []
        for step in self.ensemble.log[:steps]:
            events += replica.apply(step)[1]
        return replica, events


def test_a_follower_sees_what_the_leader_did_only_as_far_as_it_has_come():
    world = World()
    world.write(Create("/a", b"1"))
    world.write(Set("/a", b"2", 0))
    early, _ = world.follower(2)
    late, events = world.follower(3)
    assert (early.find("/a").data, late.find("/a").data) == (b"1", b"2")
    assert [each.kind for each in events] == [
        EventKind.CREATED,
        EventKind.CHILDREN_CHANGED,
        EventKind.DATA_CHANGED,
    ]
    stat = late.stat("/a")
    assert (stat.czxid, stat.mzxid, stat.pzxid) == (2, 3, 2)
    assert late.stat("/").pzxid == 2


def test_what_comes_by_a_server_that_the_session_left_is_refused():
    world = World()
    world.ensemble.take_up(world.session.id, world.session.password, "z1", 0)
    assert world.write(Create("/a")) == ServerFailure(Code.SESSION_MOVED, 0)
    assert world.write(Create("/a"), server="z1") == ["/a"]


def test_a_session_takes_its_ephemeral_nodes_along_on_every_server():
    world = World()
    world.write(Create("/a"), Create("/a/b"))
    world.write(Create("/a/c", b"", ephemeral=True))
    world.ensemble.end_session(world.session.id, 0)
    replica, events = world.follower(len(world.ensemble.log))
    assert replica.children("/a") == ["b"]
    assert Event(EventKind.DELETED, "/a/c") in events
    assert world.write(Create("/d")) == ServerFailure(Code.SESSION_EXPIRED, 0)
    assert not world.ensemble.take_up(world.session.id, world.session.password, "z0", 0)


def test_a_step_that_fails_has_a_number_and_changes_nothing():
    world = World()
    done = world.write(Create("/a"), Create("/b/c"), Delete("/a"))
    assert done == ServerFailure(Code.NO_NODE, 1)
    assert world.ensemble.zxid == 2
    replica, _ = world.follower(2)
    assert (replica.children("/"), replica.zxid) == ([], 2)
    outcomes = world.write(Create("/a"), Set("/a", b"x", 0))
    assert isinstance(outcomes, list)
    assert isinstance(outcomes[1], Stat)


SEEDS = [
    seed
    for seed in range(400)
    if (plan := draw(Tape(seed))).zookeepers and plan.metadata_drops > 0.05
]


@pytest.mark.parametrize("mutant", ["asks again", "believes bytes"])
def test_seeds_find_a_driver_that_guesses_what_became_of_a_write(
    mutant: str, monkeypatch: pytest.MonkeyPatch
):
    async def ask_again(operations: object, eyes: Eyes) -> Fate:
        return Fate.NOT_DONE

    judge = lost_writes._of_one  # the judge of one operation

    def believe(operation: Operation, sight: object, eyes: Eyes) -> object:
        is_alike = sight is not None and getattr(operation, "data", None) == sight.node.data
        if is_alike and isinstance(operation, Create):
            return [operation.path]
        return [sight.node.version] if is_alike else judge(operation, sight, eyes)

    if mutant == "asks again":
        monkeypatch.setattr(lost_writes, "settle", ask_again)
    else:
        monkeypatch.setattr(lost_writes, "_of_one", believe)
    found = (violation for seed in SEEDS for violation in run_seed(seed).violations)
    assert "was told that" in next(found)
