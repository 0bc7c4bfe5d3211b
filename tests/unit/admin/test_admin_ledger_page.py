"""A page of ledgers: as many as are wanted, or as were found in time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quorumbook.admin.facts import ledgers
from quorumbook.admin.facts.ledgers import LedgerFilter, ledger_page
from quorumbook.ledger.metadata import Fragment, LedgerMetadata


@pytest.fixture
def store(monkeypatch):
    """A store of the ledgers 0 to 9, of which each takes a second to look at."""
    clock = SimpleNamespace(now=0.0, now_ns=lambda: int(clock.now * 1e9))

    async def all_ledgers(_store: object, _damaged: object, *, after: int | None):
        for number in range(0 if after is None else after + 1, 10):
            clock.now += 1.0
            yield LedgerMetadata(
                ledger_id=number, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
                fragments=(Fragment(0, ("a:1",)),), custom_metadata={"odd": b"%d" % (number % 2)},
            )  # fmt: skip

    monkeypatch.setattr(ledgers, "all_ledgers", all_ledgers)
    return SimpleNamespace(env=SimpleNamespace(clock=clock))


ODD = LedgerFilter(custom={"odd": b"1"})


@pytest.mark.parametrize(
    ("wanted", "limit", "within_s", "ids", "next_after", "is_cut"),
    [
        (ODD, 5, None, [1, 3, 5, 7, 9], None, False),
        (ODD, 2, None, [1, 3], 3, False),
        (ODD, 5, 20.0, [1, 3, 5, 7, 9], None, False),
        (ODD, 2, 20.0, [1, 3], 3, False),
        (ODD, 5, 4.0, [1, 3], 3, True),
        (ODD, 5, 5.0, [1, 3], 4, True),
        (LedgerFilter(text="nowhere"), 5, 7.0, [], 6, True),
        (LedgerFilter(text="nowhere", after=6), 5, 7.0, [], None, False),
    ],
)
async def test_a_page_ends_when_it_is_full_or_its_time_is_over(
    store, wanted, limit, within_s, ids, next_after, is_cut
):
    page = await ledger_page(store, wanted, limit, within_s)
    assert [each.ledger_id for each in page.ledgers] == ids
    assert (page.next_after, page.is_cut) == (next_after, is_cut)
