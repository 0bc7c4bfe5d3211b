"""The slowest adds, reads and syncs of the last minutes, and where their time went.

Of each kind the ``KEPT`` slowest of this window and of the one before it are kept; a window is ten
minutes.  How long an operation took is known anyway, so one that is quicker than those kept costs
one comparison; only for one that is kept the stages are worked out, from times that are taken once
for a journal group and once for a job of the read worker.

    add     admission       it waited for room in the write cache, or for the metadata
            journal_wait    the journal was writing and syncing the group before
            journal_write   its group was written
            journal_sync    its group was synced
            loop            the event loop had other things to do
            memory          its group, up to this add, went into the write cache
            answer          the answer was handed to the connection
    read    admission       it waited for its turn on the connection, or for adds on their way
            worker_wait     the read worker had other jobs
            index           look-ups in the index, and what is not one of the others in the job
            disk            reads from entry logs
            loop            the event loop had other things to do, and the answers before it
    sync    journal_write, journal_sync

Times are monotonic nanoseconds; stages that took nothing are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop
from itertools import count
from typing import NamedTuple

from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.times import GroupTimes, JobTimes

KINDS = ("add", "read", "sync")
KEPT = 20
_WINDOW_NS = 600 * 1_000_000_000
#: What is quicker than this is never kept.
_LEAST_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOperation:
    """One that was slow."""

    kind: str
    ended_ns: int
    took_ns: int
    #: In their order; a sum that is less than the whole leaves the rest to what is not measured.
    stages_ns: dict[str, int]
    entries: int
    bytes: int
    #: Of a sync nobody.
    asked: Asked | None = None

    def row(self, now_ns: int, now_ms: int) -> dict[str, object]:
        """Return what is shown: milliseconds, and the time of day at which it ended."""
        row: dict[str, object] = {
            "kind": self.kind,
            "at_ms": now_ms - (now_ns - self.ended_ns) // 1_000_000,
            "took_ms": _ms(self.took_ns),
            "stages_ms": {name: _ms(took) for name, took in self.stages_ns.items() if took > 0},
            "entries": self.entries,
            "bytes": self.bytes,
        }
        return row if self.asked is None else row | self.asked._asdict()


class Asked(NamedTuple):
    """Who asked for what, and what was answered."""

    client: str
    ledger_id: LedgerId
    #: The first of several.
    first_entry_id: EntryId
    outcome: str = "OK"


class Slowest:
    """Those of one kind; compare with ``floor_ns`` before the rest of an operation is worked out.

    A window ends when ``turn`` is called behind its end: with every journal group, and when
    somebody looks.
    """

    __slots__ = ("_last", "_now", "_order", "_turn_ns", "floor_ns")

    def __init__(self) -> None:
        #: What took no longer is not wanted.
        self.floor_ns = _LEAST_NS
        self._turn_ns = 0
        # Heaps of (took, number, operation): the quickest is at the top.
        self._now: list[tuple[int, int, SlowOperation]] = []
        self._last: list[tuple[int, int, SlowOperation]] = []
        self._order = count()

    def turn(self, now_ns: int) -> None:
        """Begin a new window if this one is over."""
        if now_ns > self._turn_ns:
            is_stale = now_ns - self._turn_ns > _WINDOW_NS
            self._last = [] if is_stale else self._now
            self._now = []
            self._turn_ns = now_ns + _WINDOW_NS
            self.floor_ns = _LEAST_NS

    def keep(self, operation: SlowOperation) -> None:
        """Keep one that was wanted."""
        item = (operation.took_ns, next(self._order), operation)
        if len(self._now) < KEPT:
            heappush(self._now, item)
        else:
            heappushpop(self._now, item)
        if len(self._now) == KEPT:
            self.floor_ns = max(_LEAST_NS, self._now[0][0])

    def all(self, now_ns: int) -> Iterator[SlowOperation]:
        """Give those that are kept, in no order."""
        self.turn(now_ns)
        return (item[2] for items in (self._now, self._last) for item in items)


class SlowOperations:
    """Those of a bookie; used on its event loop."""

    def __init__(self) -> None:
        self.adds = Slowest()
        self.reads = Slowest()
        self.syncs = Slowest()
        #: Of the group whose waiters are being called.
        self.group: GroupTimes | None = None

    def journal_group(self, group: GroupTimes) -> None:
        """Take note of a group that was written or synced; its waiters are called next."""
        self.group = group
        for kind in (self.adds, self.reads, self.syncs):
            kind.turn(group.told_ns)
        took_ns = group.synced_ns - group.began_ns
        if group.synced_ns and took_ns > self.syncs.floor_ns:
            self.syncs.keep(
                SlowOperation(
                    kind="sync",
                    ended_ns=group.synced_ns,
                    took_ns=took_ns,
                    stages_ns={
                        "journal_write": group.written_ns - group.began_ns,
                        "journal_sync": group.synced_ns - group.written_ns,
                    },
                    entries=group.requests,
                    bytes=group.size_bytes,
                )
            )

    def note_add(
        self,
        asked: Asked,
        at_ns: tuple[int, int | None, int, int],
        *,
        entries: int,
        size_bytes: int,
    ) -> None:
        """Keep adds that came and were answered together.

        Args:
            asked: The first, and who sent them.
            at_ns: When they arrived, were handed to the journal, were about to be answered, and
                were; what was refused before the journal only waited to be admitted.
            entries: How many.
            size_bytes: How large together.
        """
        arrived_ns, admitted_ns, now_ns, answered_ns = at_ns
        stages = {"admission": now_ns - arrived_ns}
        if admitted_ns is not None:
            stages = add_stages(arrived_ns, admitted_ns, self.group, now_ns, answered_ns)
        took_ns = answered_ns - arrived_ns
        self.adds.keep(_slow("add", asked, answered_ns, took_ns, stages, entries, size_bytes))

    def note_read(
        self,
        asked: Asked,
        at_ns: tuple[int, int, int],
        job: JobTimes | None,
        *,
        entries: int,
        size_bytes: int,
    ) -> None:
        """Keep reads that were answered together.

        Args:
            asked: The first, and who sent them.
            at_ns: When it arrived, was begun, and was answered.
            job: What brought them from disk; None if memory had them.
            entries: How many.
            size_bytes: How large together.
        """
        arrived_ns, begun_ns, now_ns = at_ns
        stages = read_stages(arrived_ns, begun_ns, job, now_ns)
        took_ns = now_ns - arrived_ns
        self.reads.keep(_slow("read", asked, now_ns, took_ns, stages, entries, size_bytes))

    def rows(self, now_ns: int, now_ms: int) -> list[dict[str, object]]:
        """Return all that are kept, the slowest first."""
        kept = [each for kind in (self.adds, self.reads, self.syncs) for each in kind.all(now_ns)]
        kept.sort(key=lambda each: each.took_ns, reverse=True)
        return [each.row(now_ns, now_ms) for each in kept]


def add_stages(
    arrived_ns: int, admitted_ns: int, group: GroupTimes | None, now_ns: int, answered_ns: int
) -> dict[str, int]:
    """Return where the time of an add went; a group of before its admission was not its own."""
    stages = {"admission": admitted_ns - arrived_ns}
    if group is not None and group.began_ns >= admitted_ns:
        stages["journal_wait"] = group.began_ns - admitted_ns
        stages["journal_write"] = group.written_ns - group.began_ns
        durable_ns = group.synced_ns or group.written_ns
        stages["journal_sync"] = durable_ns - group.written_ns
        stages["loop"] = group.told_ns - durable_ns
        stages["memory"] = now_ns - group.told_ns
    stages["answer"] = answered_ns - now_ns
    return stages


def read_stages(
    arrived_ns: int, begun_ns: int, job: JobTimes | None, now_ns: int
) -> dict[str, int]:
    """Return where the time of a read went; without a job it was answered from memory."""
    stages = {"admission": begun_ns - arrived_ns}
    if job is not None:
        stages["worker_wait"] = job.began_ns - begun_ns
        stages["index"] = job.ended_ns - job.began_ns - job.disk_ns
        stages["disk"] = job.disk_ns
        stages["loop"] = now_ns - job.ended_ns
    return stages


def _slow(
    kind: str,
    asked: Asked,
    ended_ns: int,
    took_ns: int,
    stages: dict[str, int],
    entries: int,
    size_bytes: int,
) -> SlowOperation:
    return SlowOperation(
        kind=kind, asked=asked, ended_ns=ended_ns, took_ns=took_ns, stages_ns=stages,
        entries=entries, bytes=size_bytes,
    )  # fmt: skip


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
