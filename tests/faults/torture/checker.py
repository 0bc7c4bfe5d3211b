"""Whether a recorded history breaks a promise; pure: facts in, violations out.

    lost       an acknowledged entry is beyond the end of its ledger
    changed    an entry id of a ledger has two contents, or one that nobody wrote
    back       a reader was shown less than it was shown before, or anybody something beyond the end
    ends       a ledger was closed at two ends
    winners    two were told that they made or took a ledger, or two writers got acknowledgements
    unread     a ledger with acknowledgements was never read whole
    stuck, limbo, hung   as the harness found them

The facts are those of ``history``; only the order within one process means anything, so nothing
depends on clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from faults.torture.history import Fact

#: What the harness itself calls a violation.
FOUND = ("stuck", "limbo", "hung")


class Violation(NamedTuple):
    """A promise that was broken."""

    rule: str
    ledger_id: int
    why: str


class Stretch(NamedTuple):
    """Entries of one writer that somebody was shown or had acknowledged."""

    first: int
    last: int
    writer: int
    by: str


@dataclass
class _Ledger:
    stretches: list[Stretch] = field(default_factory=list)
    highest_acked: int = -1
    writers: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    winners: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    wholes: set[int] = field(default_factory=set)
    highest_seen: tuple[int, str] = (-1, "")
    #: By reader and its handle: the last add confirmed it was told last.
    confirmed: dict[tuple[str, int], int] = field(default_factory=dict)
    found: list[Violation] = field(default_factory=list)


def check(facts: Iterable[Fact]) -> list[Violation]:
    """Return every violation, ledger by ledger."""
    ledgers: dict[int, _Ledger] = defaultdict(_Ledger)
    for fact in facts:
        _take(ledgers[fact.get("ledger", -1)], fact)
    return [
        violation
        for ledger_id, ledger in sorted(ledgers.items())
        for violation in (*ledger.found, *_judge(ledger_id, ledger))
    ]


def _take(ledger: _Ledger, fact: Fact) -> None:
    ledger_id, what, by = fact.get("ledger", -1), fact["what"], fact["by"]
    if what in ("acked", "read"):
        stretch = Stretch(fact["first"], fact["last"], fact["writer"], by)
        ledger.stretches.append(stretch)
        if what == "acked":
            ledger.highest_acked = max(ledger.highest_acked, stretch.last)
            ledger.writers.add(stretch.writer)
        else:
            _see(ledger, stretch.last, by)
    elif what == "lac":
        reader = (by, fact["handle"])
        before = ledger.confirmed.get(reader, -1)
        if fact["last"] < before:
            why = f"{by} was told {before}, then {fact['last']}"
            ledger.found.append(Violation("back", ledger_id, why))
        ledger.confirmed[reader] = fact["last"]
        _see(ledger, fact["last"], by)
    elif what == "closed":
        ledger.ends.setdefault(fact["last"], by)
    elif what == "whole":
        ledger.wholes.add(fact["last"])
    elif what in ("created", "claimed"):
        ledger.winners[what].add(by)
    elif what == "alien":
        why = f"entry {fact['entry']} read by {by} is nobody's"
        ledger.found.append(Violation("changed", ledger_id, why))
    elif what in FOUND:
        ledger.found.append(Violation(what, ledger_id, fact["why"]))


def _see(ledger: _Ledger, entry_id: int, by: str) -> None:
    ledger.highest_seen = max(ledger.highest_seen, (entry_id, by))


def _judge(ledger_id: int, ledger: _Ledger) -> Iterator[Violation]:
    if len(ledger.ends) > 1:
        why = ", ".join(f"{last} by {by}" for last, by in sorted(ledger.ends.items()))
        yield Violation("ends", ledger_id, f"closed at {why}")
    for what, names in ledger.winners.items():
        if len(names) > 1:
            yield Violation("winners", ledger_id, f"{what} by {', '.join(sorted(names))}")
    if len(ledger.writers) > 1:
        yield Violation(
            "winners", ledger_id, f"writers {sorted(ledger.writers)} all got acknowledgements"
        )
    yield from _overlaps(ledger_id, ledger.stretches)
    if ledger.ends:
        end = min(ledger.ends)
        if ledger.highest_acked > end:
            why = f"closed at {end}, but {ledger.highest_acked} was acknowledged"
            yield Violation("lost", ledger_id, why)
        seen, by = ledger.highest_seen
        if seen > end:
            yield Violation("back", ledger_id, f"closed at {end}, but {by} was shown {seen}")
    if ledger.highest_acked >= 0 and not ledger.wholes & ledger.ends.keys():
        why = f"{ledger.highest_acked + 1} entries acknowledged, never read to an end"
        yield Violation("unread", ledger_id, why)


def _overlaps(ledger_id: int, stretches: list[Stretch]) -> Iterator[Violation]:
    """Yield where two writers' entries have the same id."""
    furthest: dict[int, Stretch] = {}
    for stretch in sorted(stretches):
        for writer, other in furthest.items():
            if writer != stretch.writer and other.last >= stretch.first:
                yield Violation(
                    "changed",
                    ledger_id,
                    f"entry {stretch.first} is of writer {other.writer} to {other.by}, and of "
                    f"writer {stretch.writer} to {stretch.by}",
                )
                return
        known = furthest.get(stretch.writer)
        if known is None or stretch.last > known.last:
            furthest[stretch.writer] = stretch
