"""What an entry costs bookies in processor time, which tells how many cores a cluster needs.

Counted is what all three bookies take until what was written is in their entry logs and they rest;
so rates, and most of what others do on this machine, do not matter.  The peer's bookies are loaded
with three times as much before they count, since a JVM's first loads cost it twice as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from report import Goal, Scenario
from scenarios import Catalogue, Systems, own_append
from systems import Processes

THREE = (3, 3, 2)
UNIT = "µs of three bookies"
#: Both systems write their caches out so often (``PEER_CACHES``), and a little.
_FLUSHED_S = 11.0
_APPENDS = {100: 400_000, 1024: 200_000, 10240: 40_000}
_READ, _TAILED, _TAIL_RATE = 200_000, 10_000, 1000
_SCANS = 5
_WARM = 3


def _cost_us(processes: Processes, entries: int, work: Callable[[], object]) -> float:
    """Return what an entry takes of the bookies among some processes."""
    processes.let_rest()
    before_s = processes.processor_s("bookie")
    work()
    time.sleep(_FLUSHED_S)
    processes.let_rest()
    return (processes.processor_s("bookie") - before_s) / entries * 1e6


def _append(systems: Systems, size: int) -> Callable[[Scenario], None]:
    count = _APPENDS[size]

    def measure(scenario: Scenario) -> None:
        own, peer = systems.own, systems.peer
        scenario.add(
            "own", _cost_us(own.processes, count, lambda: own_append(own, THREE, size, count))
        )
        if peer is not None:
            _peer_append(systems, scenario, "peer", peer.java.processes, peer.uri, size)

    return measure


def _peer_append(
    systems: Systems, scenario: Scenario, name: str, processes: Processes, uri: str, size: int
) -> None:
    """Append by the peer's client."""
    count = _APPENDS[size] // 2
    load = {"mode": "append", "size": size, "count": count, "inflight": 1000}
    if name not in scenario.values:
        systems.peer_load(uri, True, **load, rounds=_WARM)
    cost = _cost_us(processes, count, lambda: systems.peer_load(uri, True, **load, rounds=1))
    scenario.add(name, cost)


def _java_append(systems: Systems) -> Callable[[Scenario], None]:
    def measure(scenario: Scenario) -> None:
        mixed, peer = systems.mixed, systems.peer
        if mixed is not None and peer is not None:
            _peer_append(systems, scenario, "mixed v2", mixed.processes, mixed.uri, 1024)
            _peer_append(systems, scenario, "peer", peer.java.processes, peer.uri, 1024)

    return measure


def _read(systems: Systems) -> Callable[[Scenario], None]:
    def measure(scenario: Scenario) -> None:
        own, peer = systems.own, systems.peer
        ledger = str(int(own_append(own, THREE, 1024, _READ)["ledger_id"]))
        time.sleep(_FLUSHED_S)
        scenario.add(
            "own", _cost_us(own.processes, _READ, lambda: own.load("read", "--ledger", ledger))
        )
        if peer is None:
            return
        load = {"mode": "append", "count": _READ // 2, "rounds": 1}
        number = int(systems.peer_load(peer.uri, True, **load)["ledger"])
        time.sleep(_FLUSHED_S)
        scan = {"mode": "scan", "ledger": number, "rounds": _SCANS}
        if "peer" not in scenario.values:
            systems.peer_load(peer.uri, True, **scan)
        cost = _cost_us(
            peer.java.processes,
            _READ // 2 * _SCANS,
            lambda: systems.peer_load(peer.uri, True, **scan),
        )
        scenario.add("peer", cost)

    return measure


def _tail(systems: Systems) -> Callable[[Scenario], None]:
    def measure(scenario: Scenario) -> None:
        words = ("--entry-size", "1024", "--count", str(_TAILED), "--rate", str(_TAIL_RATE))
        own = systems.own
        cost = _cost_us(own.processes, _TAILED, lambda: own.load("tail", *words))
        scenario.add("own", cost)

    return measure


def costs(systems: Systems) -> Catalogue:
    """Return the rows by their short names."""
    fifth, half = Goal("own", "peer", 0.2, at_most=True), Goal("own", "peer", 0.5, at_most=True)
    rows: Catalogue = {}
    for size in _APPENDS:
        words = f"{size} bytes" if size < 1000 else f"{size // 1024} KB"
        title = f"an entry's cost: append E3/Qw3/Qa2, {words}"
        rows[f"cost-append-{size}"] = (Scenario(title, UNIT, [fifth]), _append(systems, size))
    rows["cost-read"] = (
        Scenario("an entry's cost: sequential read, 1 KB", UNIT, [half]),
        _read(systems),
    )
    rows["cost-tail"] = (
        Scenario(f"an entry's cost: written and followed at {_TAIL_RATE}/s, 1 KB", UNIT),
        _tail(systems),
    )
    rows["cost-java"] = (
        Scenario(
            "an entry's cost: append by the peer's client, v2, 1 KB",
            UNIT,
            [Goal("mixed v2", "peer", None)],
        ),
        _java_append(systems),
    )
    return rows
