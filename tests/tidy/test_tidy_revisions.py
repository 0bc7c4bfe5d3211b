"""Changes of metadata that go by a version name the node's creation too.

Versions begin anew with a node, so a version alone takes a node that was deleted and made again
for the one that was read.
"""

from __future__ import annotations

import ast
from pathlib import Path

from sources import tree_of

SOURCES = Path(__file__).parents[2] / "src" / "quorumbook"
#: How many arguments name a version as the last one; each store is asked the same way.
OPERATIONS = {"Set": 3, "Delete": 2, "Check": 2}
METHODS = {"set": 3, "delete": 2}


def _arguments(call: ast.Call) -> tuple[ast.expr, list[ast.expr]]:
    """Return what is called and with what, also where that is done later."""
    if isinstance(call.func, ast.Name) and call.func.id == "partial" and call.args:
        return call.args[0], call.args[1:]
    return call.func, call.args


def bare_versions(tree: ast.AST) -> list[int]:
    """Return the lines in which a change names a version, and not whose it is."""
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function, arguments = _arguments(call)
        count = None
        if isinstance(function, ast.Name):
            count = OPERATIONS.get(function.id)
        elif isinstance(function, ast.Attribute) and ast.unparse(function.value).endswith("store"):
            count = METHODS.get(function.attr)
        is_named = any(isinstance(each, ast.Starred) for each in arguments)
        is_any = any(ast.unparse(each) == "ANY_VERSION" for each in arguments)
        names = {keyword.arg for keyword in call.keywords}
        has_version = len(arguments) == count or "version" in names
        if count is not None and has_version and not (is_named or is_any or "creation_id" in names):
            found.append(call.lineno)
    return found


def test_a_change_that_goes_by_a_version_says_of_which_node() -> None:
    found = {str(path): bare_versions(tree_of(path)) for path in SOURCES.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_rule_about_versions_finds_what_it_bans() -> None:
    for text in (
        "Set(path, data, version)",
        "Delete(path, node.version)",
        "self._store.set(path, data, 3)",
        "store.delete(path, version=3)",
        "partial(self._store.set, path, data, node.version)",
    ):
        assert bare_versions(ast.parse(text)) == [1], text
    for text in (
        "Set(path, data)",
        "Set(path, data, *node.revision)",
        "Delete(path, version, creation_id)",
        "store.set(path, data, version, creation_id=found)",
        "self._store.delete(path)",
        "event.set()",
    ):
        assert bare_versions(ast.parse(text)) == [], text
