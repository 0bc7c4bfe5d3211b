"""What tests share exists once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sources import lines_of, tree_of

TESTS = Path(__file__).parents[1]
#: What a test module takes from here instead of writing it again.
SHARED = {"until": "doubles/waiting.py", "cluster": "doubles/clusters.py"}


def defined(path: Path) -> set[str]:
    """Return the functions of a module that tests could take for shared ones."""
    return {
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (isinstance(node, ast.AsyncFunctionDef) and node.name == "until")
        or any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def test_what_tests_share_exists_once() -> None:
    again = {
        (name, path.relative_to(TESTS).as_posix())
        for path in sorted(TESTS.rglob("*.py"))
        for name in defined(path) & SHARED.keys()
    }
    assert again == set(SHARED.items())


def test_a_fixture_is_called_by_what_it_is() -> None:
    """Seventeen were a `world`, each another one."""
    worlds = [path.name for path in sorted(TESTS.rglob("*.py")) if "world" in defined(path)]
    assert worlds == []


@pytest.mark.xdist_group("named")
def test_workers_are_told_which_tests_are_a_group(request: pytest.FixtureRequest) -> None:
    """Else each worker makes what a group shares: a Spark session, a cluster of Java bookies."""
    is_asked = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@named") is is_asked


#: Of Python's own named tuples and processes.
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}


def reached_into(lines: list[str], tree: ast.Module) -> set[int]:
    """Return the lines that use private attributes of other objects without a comment.

    One beside the line or above it says why, also for such lines right behind.
    """
    found = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
        if node.attr not in PUBLIC and ast.unparse(node.value) not in ("self", "cls", "super()")
    }
    silent: set[int] = set()
    for n in sorted(found):
        is_told = "#" in lines[n - 1] or lines[n - 2].lstrip().startswith("#")
        if not is_told and (n - 1 not in found or n - 1 in silent):
            silent.add(n)
    return silent


def test_tests_say_why_they_reach_into_an_object() -> None:
    places = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if "doubles" not in path.parts
        for line in reached_into(lines_of(path), tree_of(path))
    ]
    assert places == []


def test_what_is_explained_is_told_from_what_is_not() -> None:
    text = "a._b = 1\n\n# why\na._b = 2\na._b = 3\n\na._b = 4  # why\na.c = 5\na._b = 6\na._b = 7\n"
    assert reached_into(text.splitlines(), ast.parse(text)) == {1, 9, 10}
    text = "self._b = point._replace(x=1)\n"
    assert reached_into(text.splitlines(), ast.parse(text)) == set()
