"""What the model of an etcd cluster answers."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.sim.kernel import SECOND, Kernel

pytest.importorskip("grpc", reason="pip install 'quorumbook[etcd]'")

from quorumbook.metadata.etcd.client import GRANT, KEEP_ALIVE, REVOKE, TXN, messages
from quorumbook.sim.metadata.etcd_members import NAMES, Members
from quorumbook.sim.metadata.etcd_state import (
    EtcdState,
    KeyChange,
    NotThereError,
    OldRevisionError,
    Watched,
)


class Server:
    def __init__(self) -> None:
        self.kernel = Kernel(0)
        self.told: list[list[KeyChange]] = []
        self.state = EtcdState(self.kernel, self.told.append)

    def txn(self, compare: dict[bytes, int], success: list[Any], failure: tuple[Any, ...] = ()):
        compares = [messages["Compare"](key=k, mod_revision=r) for k, r in compare.items()]
        request = messages["TxnRequest"](compare=compares, success=success, failure=failure)
        return self.state.carry_out(TXN, request)

    def lease(self, ttl_s: int) -> int:
        return int(self.state.carry_out(GRANT, messages["LeaseGrantRequest"](TTL=ttl_s)).ID)

    def pass_s(self, seconds: float) -> None:
        self.kernel.run(lambda: False, self.kernel.now_ns + int(seconds * SECOND))


def put(key: bytes, value: bytes = b"v", lease: int = 0) -> Any:
    return messages["RequestOp"](
        request_put=messages["PutRequest"](key=key, value=value, lease=lease)
    )


def drop(key: bytes) -> Any:
    return messages["RequestOp"](request_delete_range=messages["DeleteRangeRequest"](key=key))


def look(key: bytes, **options: Any) -> Any:
    return messages["RequestOp"](request_range=messages["RangeRequest"](key=key, **options))


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_transaction_takes_one_revision_and_compares(server: Server):
    assert server.txn({b"a": 0}, [put(b"a"), put(b"b")]).header.revision == 2
    answer = server.txn({b"a": 0}, [put(b"a", b"w")], (look(b"a"), look(b"c")))
    assert (answer.succeeded, answer.header.revision) == (0, 2)
    found = answer.responses[0].response_range
    assert [(kv.value, kv.create_revision, kv.mod_revision) for kv in found.kvs] == [(b"v", 2, 2)]
    assert answer.responses[1].response_range.count == 0
    assert server.txn({b"a": 2}, [put(b"a", b"w")]).succeeded == 1
    found = server.txn({}, [look(b"a", range_end=b"c", keys_only=1)]).responses[0].response_range
    keys = [(kv.key, kv.value, kv.mod_revision) for kv in found.kvs]
    assert keys == [(b"a", b"", 3), (b"b", b"", 2)]
    found = server.txn({}, [look(b"a", range_end=b"c", count_only=1)]).responses[0].response_range
    assert (found.count, len(found.kvs)) == (2, 0)
    assert [[(c.key, c.revision) for c in each] for each in server.told] == [
        [(b"a", 2), (b"b", 2)],
        [(b"a", 3)],
    ]


def test_the_past_is_not_kept(server: Server):
    server.txn({}, [put(b"a")])
    with pytest.raises(OldRevisionError):
        server.txn({}, [look(b"a", revision=1)])


def test_a_lease_takes_its_keys_with_it_unless_it_is_kept_alive(server: Server):
    lease = server.lease(3)
    server.txn({}, [put(b"a", lease=lease), put(b"b", lease=lease), put(b"c", lease=lease)])
    server.txn({}, [put(b"c")])
    server.pass_s(2)
    request = messages["LeaseKeepAliveRequest"](ID=lease)
    assert server.state.carry_out(KEEP_ALIVE, request).TTL == 3
    server.pass_s(2)
    assert set(server.state.entries) == {b"a", b"b", b"c"}
    server.pass_s(2)
    assert set(server.state.entries) == {b"c"}
    assert [(c.key, c.entry) for c in server.told[-1]] == [(b"a", None), (b"b", None)]
    assert server.state.carry_out(KEEP_ALIVE, request).TTL == 0
    with pytest.raises(NotThereError):
        server.txn({}, [put(b"a", lease=lease)])
    with pytest.raises(NotThereError):
        server.state.carry_out(REVOKE, messages["LeaseRevokeRequest"](ID=lease))


def test_a_watch_hears_of_its_range(server: Server):
    server.txn({}, [put(b"a/x"), put(b"b")])
    server.txn({}, [drop(b"a/x"), drop(b"none")])
    request = messages["WatchCreateRequest"](key=b"a/", range_end=b"a0", watch_id=7)
    watched = Watched.of(request)
    assert [(e.type, e.kv.key) for e in watched.events(server.state.changes)] == [
        (0, b"a/x"),
        (1, b"a/x"),
    ]
    request.filters.append(0)
    assert [e.type for e in Watched.of(request).events(server.state.changes)] == [1]


class Cluster:
    """Members alone, and what they told."""

    def __init__(self) -> None:
        self.kernel = Kernel(0)
        self.ended: list[str] = []
        self.leaders = 0
        self.members = Members(self.kernel, self.ended.append, self._elected)

    def _elected(self) -> None:
        self.leaders += 1

    def pass_s(self, seconds: float) -> None:
        self.kernel.run(lambda: False, self.kernel.now_ns + int(seconds * SECOND))

    @property
    def serving(self) -> list[str]:
        return [each for each in NAMES if self.members.serves(each)]


@pytest.fixture
def trio() -> Cluster:
    return Cluster()


def test_while_there_is_no_leader_nobody_serves_and_then_those_who_are_left(trio: Cluster):
    trio.members.kill("e0")
    assert (trio.ended, trio.serving, trio.leaders) == (["e0"], [], 0)
    trio.pass_s(3)
    assert (trio.serving, trio.leaders) == (["e1", "e2"], 1)
    trio.members.boot_up("e0")
    assert trio.serving == [*NAMES]


def test_a_member_that_follows_may_end_without_an_election(trio: Cluster):
    trio.members.kill("e1")
    assert trio.serving == ["e0", "e2"]
    trio.pass_s(10)
    assert not trio.leaders


def test_a_leader_without_the_others_serves_nobody(trio: Cluster):
    trio.members.kill("e1")
    trio.members.part("e2", SECOND)
    assert not trio.serving
    trio.pass_s(2)
    assert (trio.serving, trio.leaders) == (["e0", "e2"], 0)


def test_one_member_alone_elects_nobody(trio: Cluster):
    trio.members.kill("e0")
    trio.members.part("e1", 20 * SECOND)
    trio.pass_s(19)
    assert not trio.serving
    trio.pass_s(4)
    assert (trio.serving, trio.leaders) == (["e1", "e2"], 1)


def test_a_leader_that_stands_still_for_a_moment_goes_on_leading(trio: Cluster):
    trio.members.stand_still("e0", SECOND // 10)
    assert not trio.serving
    assert trio.members.looks_at_ns("e0") == SECOND // 10
    trio.pass_s(3)
    assert (trio.serving, trio.leaders) == ([*NAMES], 0)


def test_when_all_is_well_again_all_serve(trio: Cluster):
    for act in (trio.members.kill, lambda name: trio.members.part(name, 100 * SECOND)):
        act("e0")
        trio.members.heal()
        assert trio.serving == [*NAMES]
        assert not trio.members.is_down("e0")


def test_another_leader_renews_every_lease(server: Server):
    lease = server.lease(5)
    server.txn({}, [put(b"k", lease=lease)])
    server.pass_s(4)
    server.state.renew_leases()
    server.pass_s(4)
    assert b"k" in server.state.entries
    server.pass_s(2)
    assert b"k" not in server.state.entries
