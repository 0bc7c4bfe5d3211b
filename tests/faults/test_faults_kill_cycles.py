"""Some cycles of the torture: real processes, killed, paused, cut off, over a losing ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.torture.run import report, run

CYCLES = 8
SEED = 20130101


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_r07_kills_pauses_cuts_and_lost_answers_break_no_promise(
    tmp_path: Path, zookeeper_classpath: str
) -> None:
    outcome = await run(CYCLES, tmp_path / "run", SEED, classpath=zookeeper_classpath)
    assert not outcome.violations, report(outcome, SEED)
    assert outcome.counts.cycles == CYCLES
    assert outcome.acknowledged > 0
    assert outcome.read >= outcome.acknowledged
