"""State changes through its owner's methods: who stores into attributes of other objects, and why.

What is left out of the count is listed here by name, so that each more is seen in a review.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

from sources import tree_of

SOURCE = Path(__file__).parents[2] / "src" / "quorumbook"

#: Objects of Python and of libraries, which have no method for it: dunder attributes of errors
#: and functions aside, which need no line here.
NOT_OURS = {
    ("admin/console/web.py", "self._templates"),
    ("admin/server.py", "self._server"),
    ("cli/command.py", "ctx"),
    ("env/log.py", "record"),
    ("env/tls.py", "context"),
    ("metadata/etcd/calls.py", "request"),
    ("metadata/etcd/watch.py", "request"),
    ("protocol/answers.py", "header"),
    ("protocol/answers.py", "nested"),
    ("protocol/messages.py", "field"),
    ("protocol/messages.py", "message.options"),
    ("sim/loop.py", "task"),
    ("storage/adoption/rocksdb.py", "message"),
}
#: What happens once for each request, record, run or group.  A method that adds to two fields
#: costs 67 ns where the two stores cost 41 (CPython 3.11, timeit, medians of five), and a record
#: that joins others costs its writer 1.17 to 1.29 us in all (docs/reports/record-path.md).
HOT = {
    ("bookie/requests/adds.py", "metrics"),
    ("bookie/requests/adds.py", "self._metrics"),
    ("bookie/requests/long_poll.py", "self._metrics"),
    ("bookie/requests/operations.py", "connection"),
    ("bookie/requests/reads.py", "connection"),
    ("bookie/requests/reads.py", "metrics"),
    ("bookie/requests/reads.py", "self._metrics"),
    ("client/writing/adds.py", "group"),
    ("client/writing/explicit_ids.py", "window"),
    ("client/writing/writer.py", "self._window"),
    ("client/writing/writer.py", "window"),
    ("ledger/machines/read.py", "piece"),
    ("storage/entrylog/writer.py", "log"),
    ("storage/entrylog/writer.py", "self._log"),
    ("storage/journal/group_commit.py", "self._statistics"),
    ("storage/journal/group_commit.py", "statistics"),
    ("storage/reading/loading.py", "self._statistics"),
    ("storage/reading/reads.py", "handle"),
    ("storage/reading/reads.py", "self.statistics"),
    ("storage/writes.py", "handle"),
    ("streams/writing/intake.py", "self.window"),
    ("streams/writing/packing.py", "pending"),
    ("streams/writing/packing.py", "self.tail"),
    ("streams/writing/packing.py", "tail"),
    ("sync/streams/writer.py", "run"),
    ("sync/writer.py", "batch"),
}


def stores_into_others(tree: ast.AST) -> list[tuple[str, str]]:
    """Return object and attribute of each store into another object than ``self`` or ``cls``."""
    return [
        (ast.unparse(node.value), node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        if not node.attr.startswith("__")
    ]


@functools.cache
def counted() -> tuple[int, Counter[tuple[str, str]]]:
    """Return how many functions there are, and how many stores by file and object."""
    functions, stores = 0, Counter[tuple[str, str]]()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = tree_of(path)
        functions += sum(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in ast.walk(tree)
        )
        file = path.relative_to(SOURCE).as_posix()
        stores.update((file, there) for there, _ in stores_into_others(tree))
    return functions, stores


def test_state_is_changed_by_its_owner() -> None:
    functions, stores = counted()
    left = {place: count for place, count in stores.items() if place not in NOT_OURS | HOT}
    assert 1000 * sum(left.values()) / functions < 50, sorted(left.items(), key=lambda it: -it[1])


def test_what_is_listed_is_there() -> None:
    _, stores = counted()
    assert (NOT_OURS | HOT) - stores.keys() == set()
    assert not NOT_OURS & HOT


def test_the_hot_list_does_not_grow_unseen() -> None:
    functions, stores = counted()
    assert 1000 * sum(stores[place] for place in HOT) / functions < 17


def test_stores_are_told_from_what_an_object_does_to_itself() -> None:
    text = "self.a = other.b = self.c.d = 1\nother.e += 1\nerror.__cause__ = self.f\nother.g[0] = 1"
    found = [("other", "b"), ("other", "e"), ("self.c", "d")]
    assert sorted(stores_into_others(ast.parse(text))) == found
