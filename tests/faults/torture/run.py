"""A run of the torture from its seed to its page."""

from __future__ import annotations

import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from doubles.zookeeper import find_zookeeper
from faults.torture.checker import Violation, check
from faults.torture.cycles import Counts, Cycles
from faults.torture.history import Fact, recorded
from faults.torture.world import World


@dataclass
class Outcome:
    """What a run came to."""

    counts: Counts
    facts: Counter[str]
    acknowledged: int
    read: int
    ledgers: int
    starts: int
    mishaps_of_metadata: int
    violations: list[Violation]
    took_s: float


async def run(
    cycles: int,
    directory: Path,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    classpath: str | None = None,
) -> Outcome:
    """Run the cycles in an empty directory, and judge what was recorded."""
    began = time.monotonic()
    world = World(directory, classpath or find_zookeeper(), random.Random(seed))
    async with world:
        torture = Cycles(world, seed)
        await torture.run(cycles, say)
        lost = sum(proxy.mishaps for proxy in world.metadata.values())
        starts = sum(bookie.starts for bookie in world.bookies)
    facts = list(recorded(world.history))
    return Outcome(
        counts=torture.counts,
        facts=Counter(fact["what"] for fact in facts),
        acknowledged=_entries(facts, "acked"),
        read=_entries(facts, "read"),
        ledgers=len({fact["ledger"] for fact in facts if "ledger" in fact}),
        starts=starts,
        mishaps_of_metadata=lost,
        violations=check(facts),
        took_s=time.monotonic() - began,
    )


def _entries(facts: Iterable[Fact], what: str) -> int:
    return sum(fact["last"] - fact["first"] + 1 for fact in facts if fact["what"] == what)


def report(outcome: Outcome, seed: int) -> str:
    """Describe a run in a page."""
    found = Counter(violation.rule for violation in outcome.violations)
    broken = sum(found.values()) - found["stuck"] - found["limbo"]
    rows = [
        ("cycles", outcome.counts.cycles),
        *sorted(outcome.counts.mishaps.items()),
        ("bookies started", outcome.starts),
        ("requests and answers to ZooKeeper lost", outcome.mishaps_of_metadata),
        ("ledgers", outcome.ledgers),
        ("entries acknowledged", outcome.acknowledged),
        ("entries read and compared", outcome.read),
        ("writers told that they created a ledger", outcome.facts["created"]),
        ("writers told that they claimed a ledger", outcome.facts["claimed"]),
        ("violations of the history", broken),
        ("ledgers stuck", found["stuck"]),
        ("starts of bookies with ledgers in limbo", found["limbo"]),
    ]  # fmt: skip
    return (
        "\n".join(
            [
                "# Torture",
                "",
                f"`make torture` with seed {seed} on Linux {platform.release()}, "
                f"Python {platform.python_version()}, {outcome.took_s:.0f} s.",
                "",
                "| what | count |",
                "|---|---|",
                *(f"| {what} | {count:,} |" for what, count in rows),
                "",
                *(f"- {v.rule}: ledger {v.ledger_id}: {v.why}" for v in outcome.violations),
            ]
        ).rstrip()
        + "\n"
    )
