"""Every driver does what a plain model of the tree does, operation for operation."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.etcd_server import EtcdServer
from quorumbook.errors import QuorumbookError
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.store import Check, Create, Delete, Set
from quorumbook.metadata.uri import open_store

_numbers = itertools.count()
NAMES = ("a", "b", "c")
PATHS = [
    *(f"/{one}" for one in NAMES),
    *(f"/{one}/{two}" for one in NAMES for two in NAMES),
    "/a/b/c",
]
paths = st.sampled_from(PATHS)
versions = st.sampled_from([-1, -1, 0, 1, 2])
data = st.binary(max_size=3)
creates = st.builds(Create, paths, data, st.booleans(), st.booleans())
sets = st.builds(Set, paths, data, versions)
deletes = st.builds(Delete, paths, versions)
checks = st.builds(Check, paths, versions)
single = st.one_of(creates, creates, sets, deletes)
multis = st.lists(st.one_of(creates, sets, deletes, checks), max_size=4)


@dataclass
class ModelNode:
    data: bytes
    owner: int | None
    version: int = 0
    created: int = 0


class Model:
    """The tree in the plainest form; a failing operation leaves it as it was."""

    def __init__(self):
        self.nodes = {"/": ModelNode(b"", None)}

    def names(self, path):
        prefix = path.rstrip("/") + "/"
        below = (other[len(prefix) :] for other in self.nodes if other.startswith(prefix))
        return sorted(name for name in below if name and "/" not in name)

    def apply(self, operations, owner):
        saved = {path: ModelNode(**vars(node)) for path, node in self.nodes.items()}
        results = []
        for operation in operations:
            result = self._one(operation, owner)
            if isinstance(result, str) and result.startswith("!"):
                self.nodes = saved
                return result
            results.append(result)
        return results

    def _one(self, operation, owner):
        path = operation.path
        if isinstance(operation, Create):
            parent = self.nodes.get(path.rpartition("/")[0] or "/")
            if parent is None:
                return "!NoSuchNodeError"
            if parent.owner is not None:
                return "!LocalProtocolError"
            if operation.sequential:
                path += f"{parent.created:010d}"
            if path in self.nodes:
                return "!NodeExistsError"
            self.nodes[path] = ModelNode(operation.data, owner if operation.ephemeral else None)
            parent.created += 1
            return path
        node = self.nodes.get(path)
        if node is None:
            return "!NoSuchNodeError"
        if operation.version not in (-1, node.version):
            return "!MetadataVersionConflict"
        if isinstance(operation, Set):
            node.data = operation.data
            node.version += 1
            return node.version
        if isinstance(operation, Delete):
            if self.names(path):
                return "!NodeNotEmptyError"
            del self.nodes[path]
        return None

    def end(self, owner):
        self.nodes = {path: node for path, node in self.nodes.items() if node.owner != owner}

    def dump(self):
        return {
            path: (node.data, node.version, node.owner, self.names(path))
            for path, node in self.nodes.items()
        }


async def dump(store, owners, path="/"):
    node = await store.get(path)
    names = await store.children(path)
    found = {path: (node.data, node.version, owners.get(node.owner), names)}
    assert node.children_count == len(names)
    for name in names:
        found |= await dump(store, owners, f"{path.rstrip('/')}/{name}")
    return found


async def outcome(operation):
    try:
        return await operation
    except QuorumbookError as error:
        return f"!{type(error).__name__}"


async def carry_out(store, step):
    """Do one step on a real store; return what ``Model.apply`` returns for it."""
    if isinstance(step, list):
        return await outcome(store.multi(step))
    if isinstance(step, Create):
        options = {"ephemeral": step.ephemeral, "sequential": step.sequential}
        result = await outcome(store.create(step.path, step.data, **options))
    elif isinstance(step, Set):
        result = await outcome(store.set(step.path, step.data, step.version))
    else:
        result = await outcome(store.delete(step.path, step.version))
    return result if isinstance(result, str) and result.startswith("!") else [result]


async def check_step(model, store, who, step):
    """Do one step on model and store; exactly the watches ring whose node changed."""
    before = model.dump()
    rung = []
    bells = {path: partial(rung.append, path) for path in before}
    for path, bell in bells.items():
        await store.get(path, bell)
    operations = step if isinstance(step, list) else [step]
    assert await carry_out(store, step) == model.apply(operations, who)
    await store.exists("/")
    after = model.dump()
    changed = {path for path in before if before[path][:3] != after.get(path, ())[:3]}
    assert changed <= set(rung)
    assert len(rung) == len(set(rung))
    # A node deleted and created again in one multi looks the same in the model, but rings.
    again = {each.path for each in operations} if len(operations) > 1 else set()
    assert set(rung) <= changed | again
    for bell in bells.values():
        store.unwatch(bell)


async def compare(uri, steps):
    model = Model()
    stores = [await open_store(uri, create=True) for _ in range(2)]
    try:
        for who, step in steps:
            if step == "close":
                await stores[who].close()
                model.end(who)
                stores[who] = await open_store(uri)
            else:
                await check_step(model, stores[who], who, step)
            owners = {store.session_id: number for number, store in enumerate(stores)}
            for store in stores:
                assert await dump(store, owners) == model.dump()
    finally:
        for store in stores:
            await store.close()


steps = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(single, single, multis, st.just("close"))), max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_the_memory_store_does_what_the_model_does(steps):
    name = f"property-{next(_numbers)}"
    try:
        asyncio.run(compare(f"memory://{name}", steps))
    finally:
        forget_memory_tree(name)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_the_sqlite_store_does_what_the_model_does(steps):
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(compare(f"sqlite:///{directory}/metadata.db", steps))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), "--unsafe-no-fsync")
    yield server
    server.kill()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_the_etcd_store_does_what_the_model_does(etcd, steps):
    etcd.wipe()
    asyncio.run(compare(etcd.uri(), steps))
