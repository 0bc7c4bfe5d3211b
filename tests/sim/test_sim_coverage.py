"""Which lines seeds run is told, for functions only."""

from __future__ import annotations

import sys

from quorumbook.ledger.placement import schedule
from sim.coverage import Lines


def test_lines_that_ran_are_told_apart_from_those_that_did_not():
    lines = Lines(("ledger/placement",))
    before = sys.gettrace()
    sys.settrace(lines.trace)
    try:
        schedule.write_set(1, 3, 2)
    finally:
        sys.settrace(before)
    (ran,) = [path for path, found in lines.ran.items() if found]
    assert ran == schedule.__file__
    assert lines.ran[ran] < lines.there[ran]
    first = schedule.write_set.__code__.co_firstlineno
    assert first not in lines.there[ran]
