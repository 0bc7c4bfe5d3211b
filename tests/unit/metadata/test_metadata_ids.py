"""Ledger ids: never given twice, in the peer's nodes, over the border to long ids."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.errors import (
    LedgerIdOverflowError,
    LocalProtocolError,
    MetadataFateUnknownError,
    MetadataUnavailableError,
)
from quorumbook.metadata.cluster import Layout, init_cluster
from quorumbook.metadata.ids import IdCounters, LedgerIdGenerator, created_count
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.store import Node


def set_counter(store, path, count):
    # A number that took two thousand million creations.
    store._shared._rows._rows[path].created_count = count


async def take(generator, count):
    ids = [await generator.next_id() for _ in range(count)]
    await generator.close()
    return ids


async def test_the_first_id_is_zero_and_the_others_follow(initialised):
    assert await take(LedgerIdGenerator(initialised), 4) == [0, 1, 2, 3]
    assert await initialised.children("/ledgers/idgen") == []
    assert await take(LedgerIdGenerator(initialised), 2) == [4, 5]


async def test_generators_at_the_same_time_give_different_ids(open_memory, initialised):
    generators = [LedgerIdGenerator(await open_memory()) for _ in range(4)]
    ids = await asyncio.gather(*(each.next_id() for each in generators * 25))
    assert sorted(ids) == list(range(100))
    for each in generators:
        await each.close()
    assert await initialised.children("/ledgers/idgen") == []


async def test_the_border_to_long_ids(initialised):
    generator = LedgerIdGenerator(initialised)
    await take(generator, 1)
    set_counter(initialised, "/ledgers/idgen", 2**31 - 3)
    # 2147483647 already has a long path and is not given.
    assert await take(generator, 2) == [2**31 - 3, 2**31 - 2]
    assert await initialised.exists("/ledgers/idgen-long") is None
    assert await take(generator, 3) == [2**32, 2**32 + 1, 2**32 + 2]
    assert await initialised.children("/ledgers/idgen-long") == ["HOB-0000000001"]


async def test_the_switch_to_long_ids_is_for_ever_and_for_everybody(initialised):
    await initialised.create("/ledgers/idgen-long")
    assert await take(LedgerIdGenerator(initialised), 1) == [2**32]
    assert await initialised.exists("/ledgers/idgen") is None
    assert await take(LedgerIdGenerator(initialised), 1) == [2**32 + 1]


async def test_a_counter_that_overflowed_gives_no_negative_ids(initialised):
    generator = LedgerIdGenerator(initialised)
    await take(generator, 1)
    set_counter(initialised, "/ledgers/idgen", 2**31 + 5)
    assert await take(generator, 1) == [2**32]


async def test_the_high_bits_go_up_when_the_low_ones_are_used_up(initialised):
    await initialised.create("/ledgers/idgen-long")
    generator = LedgerIdGenerator(initialised)
    for high in range(1, 6):
        assert await take(generator, 1) == [high << 32]
        set_counter(initialised, f"/ledgers/idgen-long/HOB-{high:010d}", 2**31 - 1)
    # The three newest are kept.
    assert await take(generator, 1) == [6 << 32]
    assert await initialised.children("/ledgers/idgen-long") == [
        f"HOB-{high:010d}" for high in (4, 5, 6)
    ]


async def test_the_largest_high_bits_count_by_number(initialised):
    for path in ("", "/HOB-0000000009", "/HOB-0000000010", "/HOB-odd"):
        await initialised.create(f"/ledgers/idgen-long{path}")
    assert await take(LedgerIdGenerator(initialised), 1) == [10 << 32]


async def test_the_last_long_id_is_the_last(initialised):
    await initialised.create("/ledgers/idgen-long")
    await initialised.create(f"/ledgers/idgen-long/HOB-{2**31 - 1}")
    generator = LedgerIdGenerator(initialised)
    assert await take(generator, 1) == [(2**31 - 1) << 32]
    set_counter(initialised, f"/ledgers/idgen-long/HOB-{2**31 - 1}", 2**31 - 1)
    with pytest.raises(LedgerIdOverflowError):
        await generator.next_id()
    await generator.close()


@pytest.mark.parametrize(
    ("kind", "parent"),
    [(LayoutKind.FLAT, "/ledgers"), (LayoutKind.LEGACY_HIERARCHICAL, "/ledgers/idgen")],
)
async def test_layouts_of_short_ids_end_with_them(store, kind, parent):
    await init_cluster(store, layout=Layout(kind))
    generator = LedgerIdGenerator(store)
    first, second = await take(generator, 2)
    assert second > first
    set_counter(store, parent, 2**31 - 1)
    with pytest.raises(LedgerIdOverflowError):
        await generator.next_id()
    with pytest.raises(LedgerIdOverflowError):
        await generator.next_id()
    await generator.close()
    assert await store.exists("/ledgers/idgen-long") is None


async def test_ids_are_given_in_a_new_session_when_the_old_one_is_over(initialised, clock):
    generator = LedgerIdGenerator(initialised)
    assert await take(generator, 1) == [0]
    clock.advance(100)
    assert await take(generator, 1) == [1]


@pytest.mark.parametrize("created", [0, 5, 2**30 - 1, 2**30, 2**31 - 2])
@pytest.mark.parametrize("deleted", [0, 5])
def test_a_counter_is_read_from_a_child_version_of_32_bits(created, deleted):
    both = created + min(deleted, created)
    wrapped = (both + 2**31) % 2**32 - 2**31
    for child_version in {both, wrapped}:
        node = Node(b"", 0, child_version, 1, 0, 0, 0, created - min(deleted, created))
        assert created_count(node) == created


def test_a_layout_of_short_ids_cannot_leap_and_ends_where_they_end():
    for kind in (LayoutKind.FLAT, LayoutKind.LEGACY_HIERARCHICAL):
        assert IdCounters(7, None).steps(kind, leap=False) == 7
        with pytest.raises(LocalProtocolError, match="cannot leap"):
            IdCounters(7, None).steps(kind, leap=True)
        with pytest.raises(LedgerIdOverflowError):
            IdCounters(2**31, None).steps(kind, leap=False)


class CountingStore:
    """Counts the writes of another store; loses the answer to a ``multi`` when it is told to."""

    def __init__(self, store) -> None:
        self._store = store
        self.writes: list[str] = []
        self.loses = False

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name in ("create", "multi"):

            async def call(*arguments, **named):
                self.writes.append(name)
                result = await found(*arguments, **named)
                if name == "multi" and self.loses:
                    raise MetadataFateUnknownError("nobody answers")
                return result

            return call
        return found


async def test_ids_that_are_asked_for_together_are_taken_together(initialised):
    store = CountingStore(initialised)
    generator = LedgerIdGenerator(store)
    assert await generator.next_id() == 0
    store.writes.clear()
    ids = await asyncio.gather(*(generator.next_id() for _ in range(50)))
    assert ids == list(range(1, 51))
    assert store.writes == ["multi"]
    assert await generator.next_id() == 51
    await generator.close()
    assert await initialised.children("/ledgers/idgen") == []


async def test_runs_of_ids_of_several_programs_do_not_overlap(open_memory, initialised):
    generators = [LedgerIdGenerator(await open_memory()) for _ in range(3)]
    found = await asyncio.gather(*(g.next_id() for _ in range(20) for g in generators))
    assert sorted(found) == list(range(60))
    for generator in generators:
        await generator.close()


async def test_more_ids_than_one_step_takes_come_in_several(initialised, monkeypatch):
    monkeypatch.setattr(initialised, "multi_limit", 10)
    generator = LedgerIdGenerator(initialised)
    ids = await asyncio.gather(*(generator.next_id() for _ in range(23)))
    assert ids == list(range(23))
    await generator.close()


@pytest.mark.parametrize("left", [1, 3])
async def test_a_run_ends_with_its_counter_and_the_others_follow(initialised, left):
    generator = LedgerIdGenerator(initialised)
    await take(generator, 1)
    set_counter(initialised, "/ledgers/idgen", 2**31 - 1 - left)
    ids = await asyncio.gather(*(generator.next_id() for _ in range(5)))
    short = [2**31 - 1 - left + i for i in range(left)]
    assert ids == [*short, *((1 << 32) + i for i in range(5 - left))]
    set_counter(initialised, f"/ledgers/idgen-long/HOB-{1:010d}", 2**31 - 1 - left)
    ids = await asyncio.gather(*(generator.next_id() for _ in range(5)))
    short = [(1 << 32) + 2**31 - 1 - left + i for i in range(left)]
    assert ids == [*short, *((2 << 32) + i for i in range(5 - left))]
    await generator.close()


async def test_after_a_lost_answer_other_ids_are_taken(initialised):
    store = CountingStore(initialised)
    store.loses = True
    generator = LedgerIdGenerator(store)
    ids = await asyncio.gather(*(generator.next_id() for _ in range(4)))
    assert len(set(ids)) == 4
    store.loses = False
    more = await asyncio.gather(*(generator.next_id() for _ in range(4)))
    assert not set(ids) & set(more)
    await generator.close()


async def test_each_that_waits_is_told_of_an_error_and_later_ids_come(initialised, monkeypatch):
    generator = LedgerIdGenerator(initialised)
    await take(generator, 1)

    async def away(*_, **__):
        raise MetadataUnavailableError("no server answers")

    with monkeypatch.context() as patch:
        patch.setattr(initialised, "multi", away)
        errors = await asyncio.gather(
            *(generator.next_id() for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in errors] == [MetadataUnavailableError] * 3
        assert len({id(error) for error in errors}) == 3
    cancelled = asyncio.ensure_future(generator.next_id())
    others = [asyncio.ensure_future(generator.next_id()) for _ in range(2)]
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await asyncio.gather(*others) == [2, 3]
    await generator.close()


async def ask_quickly(generator, count=40):
    """Ask as a program that creates one ledger after the other; return what it got."""
    found = []
    for _ in range(count):
        found.append(await generator.next_id())
        for _ in range(20):  # the ledger is created
            await asyncio.sleep(0)
    return found


async def test_who_asks_quickly_has_ids_taken_ahead_without_a_gap(initialised):
    store = CountingStore(initialised)
    generator = LedgerIdGenerator(store)
    assert await ask_quickly(generator) == list(range(40))
    store.writes.clear()
    # It is there: nobody waits for the store, and what is taken for it is a successor.
    before = await generator.next_id()
    assert not store.writes
    many = await asyncio.gather(*(generator.next_id() for _ in range(300)))
    assert sorted(many) == list(range(before + 1, before + 301))
    await generator.close()
    assert await initialised.children("/ledgers/idgen") == []
    # A step or two ahead, not more.
    node = await initialised.exists("/ledgers/idgen")
    assert created_count(node) <= before + 301 + 2 * 128


async def test_who_asks_slowly_has_nothing_taken_ahead(initialised, clock):
    generator = LedgerIdGenerator(initialised)
    for wanted in range(40):
        assert await generator.next_id() == wanted
        clock.advance(0.1)
    await generator.close()
    assert created_count(await initialised.exists("/ledgers/idgen")) == 40


async def test_ids_that_nobody_asked_for_in_time_are_given_to_nobody(initialised, clock):
    generator = LedgerIdGenerator(initialised)
    await ask_quickly(generator)
    given = created_count(await initialised.exists("/ledgers/idgen"))
    assert given > 40
    clock.advance(2)
    assert await generator.next_id() == given
    await generator.close()


async def test_programs_that_take_ids_ahead_have_different_ones(open_memory, initialised):
    generators = [LedgerIdGenerator(await open_memory()) for _ in range(3)]
    found = await asyncio.gather(*(ask_quickly(each, 60) for each in generators))
    for ids in found:
        assert ids == sorted(ids)
    assert len({one for ids in found for one in ids}) == 180
    for generator in generators:
        await generator.close()


async def test_an_error_while_ids_are_taken_ahead_is_nobodys_and_later_ids_come(
    initialised, monkeypatch
):
    generator = LedgerIdGenerator(initialised)
    found = await ask_quickly(generator)

    async def away(*_, **__):
        raise MetadataUnavailableError("no server answers")

    with monkeypatch.context() as patch:
        for name in ("create", "multi"):
            patch.setattr(initialised, name, away)
        found.append(await generator.next_id())  # of those that were taken before
        with pytest.raises(MetadataUnavailableError):
            for _ in range(300):
                found.append(await generator.next_id())
                await asyncio.sleep(0)
    found += await ask_quickly(generator)
    assert found == sorted(set(found))
    await generator.close()
