"""What those who commit batches were told, and whether it can all be true.

all or nothing  a batch is in all of its streams, with all of its rows in their order, or in none
once            it is there once, from one of those who tried it
in order        batches follow each other in every stream
nothing lost    a batch whose commit was reported is there, and it is that one's
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History

#: A batch, and who tried it.
_Try = tuple[int, str]


class TransactionHistory:
    """One application of a run."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: Called with who is about to commit a batch.
        self.on_try: Callable[[str], None] = lambda _: None
        self._tried: dict[_Try, dict[str, list[bytes]]] = {}
        self._committed: dict[int, str] = {}
        self._there: set[int] = set()

    def tried(self, batch: int, who: str, rows: dict[str, list[bytes]]) -> None:
        """Somebody is about to commit these rows of each stream."""
        self._tried[batch, who] = rows
        self.on_try(who)

    def committed(self, batch: int, who: str) -> None:
        """Somebody was told that his commit is done."""
        self._history.operations += 1
        other = self._committed.setdefault(batch, who)
        if other != who:
            text = f"batch {batch} was committed by {other} and by {who}"
            self._violation(Invariant.BATCH_IS_THERE_ONCE, text)

    def found(self, batch: int) -> None:
        """Somebody was told that a batch had been committed."""
        self._history.operations += 1
        self._there.add(batch)

    def read_all(self, rows: dict[str, list[bytes]]) -> None:
        """All streams were read when all was well again."""
        owners: dict[int, set[str]] = {}
        for stream, payloads in rows.items():
            last = -1
            for (batch, who), group in groupby(payloads, key=_try_of):
                if batch <= last:
                    text = f"{stream} has batch {batch} behind batch {last}"
                    self._violation(Invariant.BATCHES_KEEP_ORDER, text)
                last = batch
                owners.setdefault(batch, set()).add(who)
                wanted = self._tried.get((batch, who), {}).get(stream, [])
                if list(group) != wanted:
                    text = f"{stream} has other rows of batch {batch} than {who} wrote"
                    self._violation(Invariant.BATCH_IS_WHOLE, text)
        for batch, names in sorted(owners.items()):
            if len(names) > 1:
                text = f"batch {batch} is there from {sorted(names)}"
                self._violation(Invariant.BATCH_IS_THERE_ONCE, text)
            wanted_in = {s for s, r in self._tried[batch, min(names)].items() if r}
            has = {s for s, p in rows.items() if any(_try_of(each)[0] == batch for each in p)}
            if has != wanted_in:
                text = f"batch {batch} is in {sorted(has)}, not in {sorted(wanted_in)}"
                self._violation(Invariant.BATCH_IS_WHOLE, text)
        for batch, who in sorted(self._committed.items()):
            if any(self._tried[batch, who].values()) and owners.get(batch) != {who}:
                text = f"batch {batch} was committed by {who}, and is not there"
                self._violation(Invariant.BATCHES_ARE_KEPT, text)
        tried = {batch for (batch, _), of in self._tried.items() if any(of.values())}
        for batch in sorted(self._there & tried - set(owners)):
            if all(any(of.values()) for (b, _), of in self._tried.items() if b == batch):
                text = f"batch {batch} was said to be there, and is not"
                self._violation(Invariant.BATCHES_ARE_KEPT, text)

    def _violation(self, broken: Invariant, text: str) -> None:
        self._history.violation(broken, text)


def _try_of(payload: bytes) -> _Try:
    batch, who = payload.decode().split(" ")[:2]
    return int(batch), who
