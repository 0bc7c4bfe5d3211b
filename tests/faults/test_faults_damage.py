"""A hundred files damaged: found, refused, in limbo or harmless, and never silently wrong.

``make torture`` damages ten thousand.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults.damage import report, run, run_case

CASES = 100


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_s51_s61_s63_s76_no_damage_to_any_file_is_silently_wrong(tmp_path: Path) -> None:
    cases = await run(1, CASES, tmp_path)
    page = report(cases, 0)
    assert not [case for case in cases if case.problems], page
    outcomes = Counter(case.outcome for case in cases)
    assert set(outcomes) == {"refused", "found", "harmless"}
    kinds = {case.what.split(":")[0] for case in cases}
    assert {"journal", "entry log", "index.sqlite", "ledger-states", "lastMark"} <= kinds


async def test_the_catalogue_sees_what_is_silently_wrong(tmp_path: Path, monkeypatch) -> None:
    """Hold the judge to its task: bytes that changed on the way are noticed."""
    from faults import damage as catalogue

    async with catalogue.prepared(tmp_path) as (images, store):
        monkeypatch.setattr(catalogue, "damage", lambda root, rng: "nothing: at all")
        case = await run_case(1, images, store)
        assert case is not None
        assert (case.outcome, case.problems) == ("harmless", [])
        real = catalogue.payload
        monkeypatch.setattr(catalogue, "payload", lambda i, e: real(i, e) + b"!" * (e == 7))
        case = await run_case(2, images, store)
        assert case is not None
        assert "entry 7 of ledger 0 has other bytes" in case.problems
