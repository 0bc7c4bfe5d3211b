"""What the checks of documents share: which tests exist, and which a line of a document names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def existing_tests() -> frozenset[str]:
    """Return the names of all test functions of the project."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return frozenset(
        name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.M)
    )


def named_tests(line: str) -> list[str]:
    """Return the tests that a line names."""
    return re.findall(r"`(test_\w+)`", line)
