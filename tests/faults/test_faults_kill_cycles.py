"""Fifty bookies killed at random moments under load: nothing acknowledged is lost or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.kill_cycles import run

CYCLES = 50


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_r07_fifty_kills_lose_and_change_no_acknowledged_entry(tmp_path: Path) -> None:
    account = await run(CYCLES, tmp_path, seed=20130101)
    assert account.cycles == CYCLES
    assert account.adds_during_outage >= CYCLES
    assert account.verified_entries > sum(account.acknowledged.values())
