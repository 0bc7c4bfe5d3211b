"""Bytes of requests to ZooKeeper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumbook.env import Env
from quorumbook.errors import LocalProtocolError
from quorumbook.metadata.store import Create, Delete, Operation
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.store import ZooKeeperOptions, ZooKeeperStore


def test_operations_that_come_again_are_asked_for_as_often() -> None:
    """As ids are taken: one that is named, and a row of steps that are the same two objects."""
    acl = jute.acls(jute.OPEN_ACL)
    first, step = Create("/ids/ID-", b"", True, True), [Create("/ids/step"), Delete("/ids/step")]
    operations: list[Operation] = [first, *step * 3]
    apart = [replace(each) for each in operations]
    assert jute.multi_record(operations, "/root", acl) == jute.multi_record(apart, "/root", acl)


async def test_each_of_different_operations_is_checked() -> None:
    options = ZooKeeperOptions([("127.0.0.1", 1)])
    store = ZooKeeperStore(options, Env(), uri="zk://127.0.0.1:1/ledgers", session_timeout_s=1)
    try:
        with pytest.raises(LocalProtocolError, match="empty or relative"):
            await store.multi([*[Create("/a")] * 3, Delete("/a//b")])
    finally:
        await store.close()
