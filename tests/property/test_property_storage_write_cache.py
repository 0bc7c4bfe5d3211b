"""Write cache, layers of caches and read cache against a plain dict."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.records import entry
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.cache.write import WriteCache, held_bytes
from quorumbook.storage.reading.reads import collect


@st.composite
def entry_runs(draw: st.DrawFn, ledgers: int = 2, first_max: int = 30) -> EntryRun:
    """A run of some ledger, often with holes, with bytes that differ from others."""
    ledger_id = draw(st.integers(0, ledgers - 1))
    first = draw(st.integers(0, first_max))
    present = [True, *draw(st.lists(st.booleans(), max_size=8)), True]
    payload = draw(st.binary(min_size=0, max_size=3))
    bodies = [
        entry(ledger_id, first + i, payload * (1 + i % 2)) if here else b""
        for i, here in enumerate(present)
    ]
    if all(present) and len(set(map(len, bodies))) == 1:
        return EntryRun.of(ledger_id, first, bodies)
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies if body)
    return EntryRun(ledger_id, first, first + len(bodies) - 1, [len(b) for b in bodies], data)


@given(st.lists(entry_runs(), max_size=8))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_last_write_wins_and_the_size_is_what_is_held(runs: list[EntryRun]) -> None:
    cache = WriteCache()
    expected: dict[tuple[int, int], bytes] = {}
    for run in runs:
        cache.add(run)
        expected.update({(run.ledger_id, i): body for i, body in run.entries()})
    for ledger_id in range(2):
        ids = sorted(i for ledger, i in expected if ledger == ledger_id)
        for entry_id in range(45):
            assert cache.get(ledger_id, entry_id) == expected.get((ledger_id, entry_id))
        assert cache.last_entry(ledger_id) == (ids[-1] if ids else -1)
        held = cache.runs(ledger_id)
        assert all(a.last_entry_id < b.first_entry_id for a, b in pairwise(held))
    flushed = {(r.ledger_id, i): body for r in cache.stretches() for i, body in r.entries()}
    assert flushed == expected
    order = [(run.ledger_id, run.first_entry_id) for run in cache.stretches()]
    assert order == sorted(order)
    runs_held = [run for ledger_id in range(2) for run in cache.runs(ledger_id)]
    assert cache.data_bytes == sum(len(run.data) for run in runs_held)
    assert cache.run_count == len(runs_held)
    for ledger_id in range(2):
        cache.remove_ledger(ledger_id)
    assert cache.size_bytes == cache.data_bytes == cache.run_count == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["flushed", "flushing", "active"]), entry_runs(1, 8)), max_size=9
    ),
    st.integers(0, 14),
    st.integers(1, 30),
    st.integers(1, 600),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_batches_come_from_the_newest_layer_entry_by_entry(
    runs: list[tuple[str, EntryRun]], first: int, max_count: int, max_size: int
) -> None:
    caches = Caches(read_cache_size_bytes=1 << 20)
    flushing = WriteCache()
    caches.flushing = flushing
    layers: dict[str, dict[int, bytes]] = {"flushed": {}, "flushing": {}, "active": {}}
    on_disk = WriteCache()
    for layer, run in runs:
        cache = {"flushed": on_disk, "flushing": flushing, "active": caches.active}[layer]
        cache.add(run)
        if run.ledger_id == 0:
            layers[layer].update(run.entries())
    for run in on_disk.stretches():
        caches.read.put(run)
    expected = layers["flushed"] | layers["flushing"] | layers["active"]

    def look_up(entry_id: int) -> tuple[EntryRun, int] | None:
        run = caches.find_unflushed(0, entry_id) or caches.read.find(0, entry_id)
        return None if run is None else (run, caches.newest_until(0, entry_id, run))

    pieces, count = collect(look_up, first, max_count, max_size)
    wanted: list[bytes] = []
    while first + len(wanted) in expected and len(wanted) < max_count:
        body = expected[first + len(wanted)]
        framed = len(body).to_bytes(4, "big") + body
        if wanted and sum(map(len, wanted)) + len(framed) > max_size:
            break
        wanted.append(framed)
    assert b"".join(pieces) == b"".join(wanted)
    assert count == len(wanted)


def test_memory_is_counted_per_run_and_per_own_size() -> None:
    uniform = EntryRun.of(1, 0, [entry(1, i, b"12345678") for i in range(100)])
    mixed = EntryRun.of(1, 0, [entry(1, i, b"1" * (i % 2)) for i in range(100)])
    assert held_bytes(uniform) - len(uniform.data) < 500
    assert held_bytes(mixed) - len(mixed.data) > 100 * 30


def test_a_hole_of_a_younger_run_hides_nothing_and_shows_nothing_old() -> None:
    caches = Caches(read_cache_size_bytes=1 << 20)
    older = EntryRun.of(1, 0, [entry(1, i, b"old") for i in range(4)])
    bodies = [entry(1, 0, b"new"), b"", entry(1, 2, b"new")]
    data = b"".join(len(body).to_bytes(4, "big") + body for body in bodies if body)
    caches.active.add(EntryRun(1, 0, 2, [len(body) for body in bodies], data))
    caches.flushing = WriteCache()
    caches.flushing.add(older)
    assert caches.find_unflushed(1, 1) is older
    assert caches.newest_until(1, 1, older) == 1
    assert caches.newest_until(1, 3, older) > 3
