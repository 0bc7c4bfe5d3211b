"""A walk over very many ledgers: in order, in portions, the next read while one is looked at."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from quorumbook.errors import MetadataFormatError, MetadataUnavailableError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.ledgers import walk


def _metadata(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
        fragments=(Fragment(0, ("a:1",)),),
    )  # fmt: skip


async def _ids(count: int):
    for number in range(count):
        yield number


class Reader:
    """Reads portions, and knows how many were under way together."""

    def __init__(self, wrong: dict[int, object]) -> None:
        self.wrong = wrong
        self.sizes: list[int] = []
        self.under_way = self.most_under_way = 0

    async def read(self, ids: list[int]) -> list[object]:
        self.sizes.append(len(ids))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return [self.wrong.get(each, _metadata(each)) for each in ids]


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 350])
async def test_all_ledgers_come_in_order_two_portions_at_a_time(count):
    reader = Reader({})
    found = [each.ledger_id async for each in walk(_ids(count), reader.read, [])]
    assert found == list(range(count))
    assert sum(reader.sizes) == count
    assert max(reader.sizes, default=0) <= 100
    assert reader.most_under_way == min(2, len(reader.sizes))


async def test_deleted_ledgers_are_left_out_and_damaged_ones_told():
    error = MetadataFormatError("damaged")
    errors: list[MetadataFormatError] = []
    found = walk(_ids(150), Reader({3: None, 120: error}).read, errors)
    assert [each.ledger_id async for each in found] == [n for n in range(150) if n not in (3, 120)]
    assert errors == [error]


async def test_whoever_has_enough_leaves_nothing_under_way():
    reader = Reader({})
    async with contextlib.aclosing(walk(_ids(1000), reader.read, [])) as found:
        assert (await anext(found)).ledger_id == 0
    assert len(reader.sizes) == 2
    assert len(asyncio.all_tasks()) == 1


async def test_a_store_that_does_not_answer_ends_the_walk():
    async def read(_ids: list[int]) -> list[object]:
        raise MetadataUnavailableError("away")

    with pytest.raises(MetadataUnavailableError):
        await anext(walk(_ids(1000), read, []))
    assert len(asyncio.all_tasks()) == 1
