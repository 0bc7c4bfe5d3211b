"""One position of a writer's ensemble: the bookie there, and what it was sent and has answered.

Answers are counted, not remembered by entry: a mark says how many entries had been sent at a
time, so that silence is noticed with a few numbers for each bookie, however many entries are on
their way.  The writer looks at the oldest unconfirmed entry besides, because a single lost answer
among others that arrive is not noticed by counting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress, cycle

from quorumbook.client.transport.connection import AddListener, Channel
from quorumbook.ids import BookieId, EntryId, LedgerId

#: Marks are this far apart at least: a time-out is that much late at most.
_MARK_DISTANCE_NS = 50_000_000


class EnsemblePosition:
    """Adds under way to the bookie at one position."""

    __slots__ = (
        "_answered",
        "_listener",
        "_marks",
        "_sent",
        "bookie_id",
        "channel",
        "index",
        "ledger_id",
        "since_ns",
    )

    def __init__(
        self,
        index: int,
        bookie_id: BookieId,
        channel: Channel,
        ledger_id: LedgerId,
        listener: AddListener,
    ) -> None:
        self.index = index
        self.bookie_id = bookie_id
        self.channel = channel
        self.ledger_id = ledger_id
        #: When the bookie was last sent everything it may have missed.
        self.since_ns = 0
        self._listener = listener
        self._sent = 0
        self._answered = 0
        self._marks: deque[list[int]] = deque()
        channel.attach(ledger_id, listener)

    @property
    def outstanding(self) -> int:
        """Return how many entries the bookie has not answered."""
        return self._sent - self._answered

    def send(self, data: bytes, count: int, now_ns: int) -> None:
        """Send frames and remember when."""
        self._sent += count
        marks = self._marks
        if marks and now_ns - marks[-1][0] < _MARK_DISTANCE_NS:
            marks[-1][1] = self._sent
        else:
            marks.append([now_ns, self._sent])
        self.channel.write(data)

    def on_answers(self, count: int) -> None:
        """Count answers."""
        # Late answers of what was given up must not count for what is sent now.
        answered = self._answered = min(self._answered + count, self._sent)
        marks = self._marks
        while marks and marks[0][1] <= answered:
            marks.popleft()

    def silent_since_ns(self) -> int | None:
        """Return when the oldest unanswered entry was sent, or None if there is none."""
        return self._marks[0][0] if self._marks else None

    def forget(self) -> None:
        """Expect no answer any more: the connection is gone, or given up."""
        self._answered = self._sent
        self._marks.clear()

    def detach(self) -> None:
        """Take no more answers."""
        self.forget()
        self.channel.detach(self.ledger_id, self._listener)


def stripe_of(
    frames: Sequence[bytes],
    first_entry_id: EntryId,
    index: int,
    ensemble_size: int,
    write_quorum_size: int,
) -> Sequence[bytes]:
    """Return those of consecutive entries' frames that a position stores."""
    if write_quorum_size == ensemble_size:
        return frames
    pattern = [
        (index - first_entry_id - i) % ensemble_size < write_quorum_size
        for i in range(ensemble_size)
    ]
    return list(compress(frames, cycle(pattern)))
