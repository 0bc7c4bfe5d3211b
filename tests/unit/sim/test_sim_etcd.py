"""What the model of an etcd cluster answers."""

from __future__ import annotations

from typing import Any

import pytest

from quorumbook.sim.kernel import SECOND, Kernel

pytest.importorskip("grpc", reason="pip install 'quorumbook[etcd]'")

from quorumbook.metadata.etcd.client import GRANT, KEEP_ALIVE, REVOKE, TXN, messages
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
