"""What the checks of documents share: which tests exist, and which a line of a document names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def existing_tests() -> frozenset[str]:
    """Return the names of all test functions of the project, alone and behind their file."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)
        found.update(names, (f"{path.name}::{name}" for name in names))
    return frozenset(found)


def named_tests(line: str) -> list[str]:
    """Return the tests that a line names, with their file where it says that."""
    return re.findall(r"`((?:\w+\.py::)?test_\w+)`", line)


def problem_of(name: str, existing: frozenset[str]) -> str:
    """Say what is wrong with a test that a document names; "" if nothing is."""
    if "::" not in name:
        return f"{name} is named without its file"
    return "" if name in existing else f"{name} does not exist"
