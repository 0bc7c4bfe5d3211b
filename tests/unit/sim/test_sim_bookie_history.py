"""What the judge of bookies takes for a broken promise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.ids import INVALID_ENTRY_ID
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.protocol.requests import AddRun, Read
from quorumbook.protocol.status import Status
from quorumbook.sim.histories.bookies import Around, BookieHistory
from quorumbook.sim.histories.ledgers import PASSWORD, History
from quorumbook.sim.kernel import Kernel

QUIET = Around(tasks=6, connections=2, handles=3, handles_of_nothing=0)


class _Operations:
    """A bookie's, as far as they are listened to."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        #: The last entry of the ledger that its storage has.
        self.last_entry_id = -1
        self.storage: Any = SimpleNamespace(
            gc=SimpleNamespace(forget_ledgers=lambda ledger_ids, _: [*ledger_ids]),
            flush=self._flush,
            last_entry_id=lambda _: self.last_entry_id,
        )
        self.adds: Any = SimpleNamespace(
            run=self._run, _finish_chunk=self._finish, _storage=self.storage
        )
        self.denied: list[Any] = []
        self.reads: Any = SimpleNamespace(_on_fenced=self.begun.append, _count=self._count)

    def _run(self, connection: Any, group: Any, now_ns: int) -> None:
        self.begun += group

    async def _flush(self) -> None:
        """Have everything on disk."""

    def _finish(self, connection: Any, group: Any, status: Status, *times_ns: int) -> None:
        for each in group:
            self.begun.remove(each)

    def _count(self, request: Any, woken: bool | None, status: Status, arrived_ns: int) -> None:
        self.denied.append(request)

    def read(self, entry_id: int, status: Status, arrived_ns: int) -> None:
        # Likewise.
        self.reads._count(Read(3, 0, 7, entry_id), None, status, arrived_ns)

    def answer(self, add: Any, status: Status) -> None:
        # What is listened to has been exchanged.
        self.adds._finish_chunk(None, [add], status, 0, 10)

    def answer_fence(self, ledger_id: int) -> None:
        # Likewise.
        self.reads._on_fenced(ledger_id)


@pytest.fixture
def history() -> History:
    history = History(Kernel(1))
    history.created(7, "w0", 2, lambda: -1)
    return history


def _add(*, is_recovery: bool = False, is_deferred_sync: bool = False) -> Any:
    run: Any = SimpleNamespace(ledger_id=7, first_entry_id=3, entry_ids=lambda: [3])
    return SimpleNamespace(run=run, is_recovery=is_recovery, is_deferred_sync=is_deferred_sync)


def _answered(operations: _Operations, add: AddRun, status: Status = Status.OK) -> None:
    operations.adds.run(None, [add], 0)
    operations.answer(add, status)
    assert add not in operations.begun


def test_an_add_that_was_there_before_the_fence_may_be_taken(history: History):
    bookies, operations, add = BookieHistory(history), _Operations(), _add()
    bookies.watch("b0", operations)  # type: ignore[arg-type]
    operations.adds.run(None, [add], 0)
    operations.answer_fence(7)
    operations.answer(add, Status.OK)
    _answered(operations, _add(), Status.FENCED)
    _answered(operations, _add(is_recovery=True))
    assert history.violations == []


def test_no_life_of_a_bookie_takes_an_add_behind_a_fence(history: History):
    bookies = BookieHistory(history)
    before, after = _Operations(), _Operations()
    bookies.watch("b0", before)  # type: ignore[arg-type]
    bookies.watch("b0", after)  # type: ignore[arg-type]
    before.answer_fence(7)
    assert before.begun == [7]
    _answered(after, _add())
    assert "b0 has answered a fence, and takes entry 3" in history.violations[0]


def test_another_bookie_and_one_that_begins_anew_know_of_no_fence(history: History):
    bookies, operations = BookieHistory(history), _Operations()
    bookies.watch("b0", operations)  # type: ignore[arg-type]
    bookies.fenced("b1", 7)
    bookies.fenced("b0", 7)
    bookies.begins_anew("b0")
    _answered(operations, _add())
    assert history.violations == []


def _bookie(**counts: int) -> Any:
    known = {"adds_in_progress": 0, "adds_delayed": 0, "reads_in_progress": 0, **counts}
    connections = SimpleNamespace(
        adds=SimpleNamespace(used_bytes=counts.get("used_bytes", 0)),
        answer_budget=SimpleNamespace(reserved_bytes=0),
        partial_bytes=0,
    )
    return SimpleNamespace(metrics=SimpleNamespace(**known), connections=connections)


@pytest.mark.parametrize(
    ("bookie", "around", "held"),
    [
        (_bookie(), QUIET, {}),
        (_bookie(reads_in_progress=2), QUIET, {"reads under way": 2}),
        (_bookie(used_bytes=9), QUIET, {"bytes of adds": 9}),
        (_bookie(), Around(17, 2, 3, 0), {"tasks": 17}),
        (_bookie(), Around(6, 9, 3, 0), {"connections": 9}),
        (_bookie(), Around(6, 8, 5, 0), {"handles of a file": 5}),
        (_bookie(), Around(6, 8, 4, 1), {"handles of what is gone": 1}),
    ],
)
def test_what_a_quiet_bookie_holds_is_told(bookie: Any, around: Around, held: dict[str, int]):
    assert BookieHistory.held(bookie, around, clients=2) == held


def _named(history: History, *bookies: str) -> None:
    history.ledgers[7].metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=len(bookies),
        write_quorum_size=len(bookies),
        ack_quorum_size=2,
        fragments=(Fragment(0, bookies),),
        password=PASSWORD,
    )


@pytest.mark.parametrize("asked", [3, INVALID_ENTRY_ID])
@pytest.mark.parametrize("status", [Status.NO_ENTRY, Status.NO_LEDGER])
def test_no_life_of_a_bookie_denies_what_it_acknowledged(
    history: History, asked: int, status: Status
):
    bookies = BookieHistory(history)
    before, after = _Operations(), _Operations()
    bookies.watch("b0", before)  # type: ignore[arg-type]
    bookies.watch("b0", after)  # type: ignore[arg-type]
    _named(history, "b0", "b1")
    _answered(before, _add())
    after.read(asked, status, 11)
    assert len(after.denied) == 1
    assert "b0 acknowledged entry 3, and denies it" in history.violations[0]


def test_a_bookie_may_deny_what_it_has_not_any_more_or_not_yet(history: History):
    bookies, operations = BookieHistory(history), _Operations()
    bookies.watch("b0", operations)  # type: ignore[arg-type]
    _named(history, "b0", "b1")
    _answered(operations, _add(is_deferred_sync=True))
    operations.read(3, Status.NO_ENTRY, 11)
    _answered(operations, _add())
    operations.read(4, Status.NO_ENTRY, 11)
    operations.read(3, Status.UNKNOWN_LEDGER_STATE, 11)
    # It came before the entry did.
    operations.read(3, Status.NO_ENTRY, 9)
    _named(history, "b2", "b1")
    operations.read(3, Status.NO_ENTRY, 11)
    _named(history, "b0", "b1")
    bookies.victim = lambda: "b0"
    operations.read(3, Status.NO_ENTRY, 11)
    bookies.victim = lambda: None
    bookies.begins_anew("b0")
    operations.read(3, Status.NO_ENTRY, 11)
    assert history.violations == []


def test_a_bookie_that_collects_a_ledger_nobody_deleted_is_seen(history: History):
    forgotten: list[int] = []
    storage: Any = SimpleNamespace(gc=SimpleNamespace(_forget=forgotten.extend))
    judge = BookieHistory(history)
    judge.watch_garbage("b0", storage)
    # What storages are told to forget is what is listened to.
    forget = storage.gc._forget
    forget([7])
    assert history.violations == []
    _named(history, "b0", "b1")
    forget([7])
    assert "b0 collects a ledger that nobody deleted" in history.violations[0]
    assert forgotten == [7, 7]


async def test_a_ledger_that_was_deleted_is_not_there_again_unless_somebody_adds_to_it(
    history: History,
):
    operations = _Operations()
    BookieHistory(history).watch("b0", operations)  # type: ignore[arg-type]
    storage = operations.storage
    assert storage.gc.forget_ledgers([7], 0) == [7]
    await storage.flush()
    assert not history.violations
    operations.last_entry_id = 3
    await storage.flush()
    assert "b0 has ledger 7 again" in history.violations[0]
    operations.adds.run(None, [_add()], 0)
    await storage.flush()
    assert len(history.violations) == 1
