"""Attacks by volume on real bookies: none ends them, none takes more memory than is promised.

How long they hold the loop up and what they cost an honest writer's latency is measured, not
asserted: ``make limits`` does, and writes docs/reports/limits.md.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from pathlib import Path

import pytest

from security.limits import run
from security.limits.attacks import ATTACKS, Attack, Target
from security.limits.measure import MB, MEMORY_BYTES_MAX, Outcome, measure

#: Each sends all that it has within a few seconds, also where four of them share the machine.
SECONDS = 16


async def check(attack: str, seconds: float) -> None:
    outcome = await measure(attack, seconds, quiet_s=0)
    assert not outcome.has_ended
    assert outcome.peak_bytes <= MEMORY_BYTES_MAX
    assert outcome.appended > 0


async def test_an_attack_ends_no_bookie_and_takes_no_more_memory_than_is_promised() -> None:
    """Each has a bookie of its own."""
    async with asyncio.TaskGroup() as group:
        for attack in ("handshakes", "hellos", "large-adds", "half-frames", "batches"):
            group.create_task(check(attack, SECONDS), name=attack)


async def test_an_attack_that_breaks_off_has_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended early, so that the bookie withstood less than its row would say."""

    async def breaks_off(_: Target) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    attack = Attack("stranger", "connections until there are no more", breaks_off)
    monkeypatch.setitem(ATTACKS, "broken", attack)
    with pytest.raises(OSError, match="too many open files"):
        await measure("broken", 1, quiet_s=0)


def _outcome(name: str) -> Outcome:
    return Outcome(
        name, "client", 10**9, 40 * MB, 400 * MB, 0.01, 0.02, [2.0] * 2, [3.0] * 2,
        [8.9] * 2, False, [(100 + minute) * MB for minute in range(60)],
    )  # fmt: skip


def test_an_attack_that_cannot_be_measured_costs_its_own_row_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []
    report = tmp_path / "limits.md"

    async def measured(name: str, seconds: float, **_: object) -> Outcome:
        # What was measured before is there, whatever comes now.
        seen.append(report.read_text() if report.exists() else "")
        if name == "fences":
            raise OSError("no room | for\nit")
        assert seconds == (40 if name == "mixed" else 8)
        return _outcome(name)

    monkeypatch.setattr(run, "measure", measured)
    words = ["run", "--only", "small,fences,mixed", "--report", str(report)]
    monkeypatch.setattr(sys, "argv", words)
    assert run.main() == 1
    text = report.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and ": " in line]
    assert [line.split(":")[0] for line in rows] == ["| small", "| fences", "| mixed"]
    assert rows[1].endswith("| not run: OSError no room / for it |")
    assert {line.count("|") for line in rows} == {run.HEAD.splitlines()[0].count("|")}
    assert "| small" in seen[3]
    assert "| fences" in seen[-1]


def test_rounds_of_an_attack_are_one_outcome() -> None:
    one, other = _outcome("small"), _outcome("small")
    other.peak_bytes, other.stall_s, other.has_ended = 500 * MB, 0.06, True
    one.attacked_ms, other.attacked_ms = [9.1] * 2, [1.0] * 398
    both = one.with_round(other)
    assert (both.peak_bytes, both.stall_s, both.has_ended) == (500 * MB, 0.06, True)
    assert (both.appended, len(both.quiet_ms), len(both.control_ms)) == (400, 4, 4)
    assert run.misses(one) == ["p99"]
    assert run.misses(both) == run.misses(other.with_round(one)) == ["exit", "stall"]


def test_the_hour_has_a_page_and_what_stands_below_it_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = tmp_path / "hour.md"
    report.write_text("# Old\n\n## By hand\n\nkept\n")

    async def measured(name: str, seconds: float, **_: object) -> Outcome:
        assert (name, seconds) == ("mixed", 3600)
        return _outcome(name)

    monkeypatch.setattr(run, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["run", "--hour", "--report", str(report)])
    assert run.main() == 0
    text = report.read_text()
    assert "# Old" not in text
    assert text.endswith("\n## By hand\n\nkept\n")
    assert "3 times the larger of quiet (2.0 ms) and control (3.0 ms): 9 ms | 9 ms |" in text
    assert " 57 to  60   159  ###############" in text
