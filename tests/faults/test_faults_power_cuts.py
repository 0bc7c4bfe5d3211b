"""Bookies lose power, one, two or all at once: nothing acknowledged is lost or changed.

And the method is good: bookies that do not sync lose entries by it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from faults.power_cuts import run, why_impossible
from quorumbook.errors import QuorumbookError

CUTS = 20


@pytest.fixture
def power() -> None:
    reason = why_impossible()
    if reason is not None:
        if "CI" in os.environ and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("power")
async def test_r07_twenty_power_cuts_lose_and_change_no_acknowledged_entry(
    tmp_path: Path,
) -> None:
    account = await run(CUTS, tmp_path, seed=20130102)
    assert account.cycles >= CUTS
    assert account.verified_entries > sum(account.acknowledged.values())


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("power")
async def test_power_cuts_are_found_out_where_nothing_is_synced(
    tmp_path: Path,
) -> None:
    with pytest.raises((AssertionError, QuorumbookError)) as caught:
        await run(CUTS, tmp_path, seed=20130102, machine="without_sync")
    lost = "was acknowledged|is missing|holds other bytes|did not start|cannot be recovered"
    assert re.search(lost, str(caught.value))
