"""The simulator's command keeps logs to itself, which must not outlive a test of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Give the level of our logs back."""
    root = logging.getLogger("quorumbook")
    before = root.level
    yield
    root.setLevel(before)
