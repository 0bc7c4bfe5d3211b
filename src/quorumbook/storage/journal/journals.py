"""The journals of a bookie, one for each journal directory, each with a thread of its own.

    journal of a ledger     ledger id modulo the number of journals, as the peer's

So everything of one ledger lies in one journal, in order; of different ledgers nothing is in
order, and a batch of several is done when all its journals are.  Each journal has its own mark;
a checkpoint takes one of each.  The directories' order is part of the cookie: another number of
them would look for ledgers in the wrong journals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from quorumbook.env import Env
from quorumbook.ids import LedgerId
from quorumbook.storage.journal.group_commit import Done, Journal
from quorumbook.storage.journal.marks import Marks
from quorumbook.storage.times import GroupTimes


class Journals:
    """All journals of a bookie; called on the loop's thread.

    Args:
        env: The outside world.
        directories: Where they lie.
        marks: The end of what replay found in each.
        file_size_bytes: A new file is begun when a group would exceed this.
        group_size_bytes_max: What waits beyond this many bytes goes into a later group.
        on_failed: Called with the error of each that has failed for good.
        on_group: Called with the times of each group just before those who wait for it are.
        on_told: Called right behind those.
    """

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        *,
        marks: Marks,
        file_size_bytes: int,
        group_size_bytes_max: int,
        on_failed: Callable[[BaseException], None],
        on_group: Callable[[GroupTimes], None],
        on_told: Callable[[], None],
    ) -> None:
        self._journals = [
            Journal(
                env,
                directory,
                mark=mark,
                file_size_bytes=file_size_bytes,
                group_size_bytes_max=group_size_bytes_max,
                on_failed=on_failed,
                on_group=on_group,
                on_told=on_told,
                name=f"journal-{index}" if index else "journal",
            )
            for index, (directory, mark) in enumerate(zip(directories, marks, strict=True))
        ]

    @property
    def is_one(self) -> bool:
        """Tell whether there is only one."""
        return len(self._journals) == 1

    def of(self, ledger_id: LedgerId) -> Journal:
        """Return the journal of a ledger."""
        return self._journals[ledger_id % len(self._journals)]

    def durable_marks(self) -> Marks:
        """Return each journal's ``durable_mark``."""
        return tuple(journal.durable_mark() for journal in self._journals)

    def force(self, done: Done) -> None:
        """Call ``done`` when everything enqueued so far is durable, in all journals."""
        done = joined(done, len(self._journals))
        for journal in self._journals:
            journal.enqueue((), done)

    async def stop(self) -> None:
        """Wait for what is enqueued, then end the threads."""
        for journal in self._journals:
            await journal.stop()

    def statistics(self) -> list[dict[str, int]]:
        """Return the counters of each."""
        return [asdict(journal.statistics()) for journal in self._journals]


def joined(done: Done, count: int) -> Done:
    """Return what is called so many times, and calls ``done`` at the last, with the first error."""
    if count == 1:
        return done
    first_error: BaseException | None = None

    def part_done(error: BaseException | None) -> None:
        nonlocal count, first_error
        count -= 1
        first_error = first_error or error
        if not count:
            done(first_error)

    return part_done
