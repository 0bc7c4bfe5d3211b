"""From a seed that breaks a promise to a short story that breaks the same one.

Three passes, each of which keeps a change if the same violation still appears after no more
events: mishaps and people are left out of the plan, one kind at a time; the tape is calm from
some draw on; and stretches of it, halves first, are calm.  What is left is a ``Case``: a seed,
fields of its plan, and the calm stretches of its tape.  It is small enough to be kept, and it is
run again as it is.

The same violation is one with the same words: which ledger and which entry may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from quorumbook.sim.kernel import Calm
from quorumbook.sim.life import Outcome, Variation, run_seed

_NUMBERS = re.compile(r"[0-9]+")
#: Stretches are not cut finer than one in this many.
_FINEST = 64


@dataclass(frozen=True, slots=True)
class Case:
    """A run that can be kept."""

    seed: int
    plan: dict[str, Any] = field(default_factory=dict)
    phase: str | None = None
    calm: tuple[tuple[int, int], ...] = ()

    def run(self, *, keep_trace: bool = False) -> tuple[Outcome, int]:
        """Run it; return what came of it, and how many draws it took."""
        calm = Calm(self.calm)
        plan = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.plan.items()
        }
        variation = Variation(plan=plan, phase=self.phase, calm=calm)
        return run_seed(self.seed, keep_trace=keep_trace, variation=variation), calm.draws

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Case:
        """Read what ``encode`` wrote."""
        found = json.loads(text)
        calm = tuple((first, last) for first, last in found.get("calm", ()))
        return cls(found["seed"], found.get("plan", {}), found.get("phase"), calm)


def kind_of(violation: str) -> str:
    """Return a violation without its numbers."""
    return _NUMBERS.sub("N", violation.partition("\n")[0])


class Shrinker:
    """Makes a case shorter.

    Args:
        case: It breaks a promise.
        runs: How many runs it may take.
        tell: Gets a line for each step.
    """

    def __init__(self, case: Case, *, runs: int, tell: Callable[[str], None]) -> None:
        self._left = runs
        self._tell = tell
        outcome, self._draws = case.run()
        if not outcome.violations:
            raise ValueError(f"seed {case.seed} breaks no promise")
        self._kind = kind_of(outcome.violations[0])
        self._outcome = outcome
        self.case = case

    def shrink(self) -> Case:
        """Return the shortest case found."""
        for change in self._simpler_plans():
            self._try(replace(self.case, plan={**self.case.plan, **change}), f"plan: {change}")
        self._calm_the_end()
        self._calm_stretches()
        return self.case

    def _try(self, case: Case, what: str) -> bool:
        if not self._left:
            return False
        self._left -= 1
        outcome, draws = case.run()
        if not outcome.violations or kind_of(outcome.violations[0]) != self._kind:
            return False
        if outcome.events > self._outcome.events:
            return False
        self._tell(f"{outcome.events} events: {what}")
        self.case, self._outcome, self._draws = case, outcome, draws
        return True

    def _simpler_plans(self) -> Iterator[dict[str, Any]]:
        for mishap in self._outcome.plan.mishaps:
            left = [each for each in self._outcome.plan.mishaps if each != mishap]
            yield {"mishaps": left}
        for name in ("tail", "rechunk", "slow_syncs", "metadata_drops"):
            if getattr(self._outcome.plan, name):
                yield {name: 0.0}
        for name, least in (("tailers", 0), ("recoverers", 0), ("writers", 1)):
            if getattr(self._outcome.plan, name) > least:
                yield {name: least}
        if self._outcome.plan.has_auto_recovery:
            yield {"has_auto_recovery": False}
        yield {"ledgers_max": 1}
        yield {"burst_max": 1}
        yield {"payload_size_max": 1}

    def _calm_the_end(self) -> None:
        """Find from where on nothing needs to be special."""
        low, high = 0, self._draws
        while high - low > max(1, self._draws // _FINEST):
            middle = (low + high) // 2
            if self._try(replace(self.case, calm=((middle, 1 << 62),)), f"calm from {middle} on"):
                high = middle
            else:
                low = middle

    def _calm_stretches(self) -> None:
        end = self.case.calm[0][0] if self.case.calm else self._draws
        tail = self.case.calm
        size = end // 2
        kept: list[tuple[int, int]] = []
        while size > max(1, end // _FINEST):
            for first in range(0, end, size):
                stretch = (first, min(first + size, end))
                if any(low <= stretch[0] and stretch[1] <= high for low, high in kept):
                    continue
                calm = _joined([*kept, stretch])
                if self._try(replace(self.case, calm=(*calm, *tail)), f"calm in {stretch}"):
                    kept = calm
            size //= 2


def _joined(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches ascending, those that touch as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(stretches):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined
