"""What is measured on each system, one call for each round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report import Goal, Scenario
from systems import Floor, Java, Mixed, OnEtcd, Own, Peer

IN_FLIGHT = 1000
#: Rounds of a JVM that reads in a row; it has warmed up when the last ones are counted, which
#: still differ twofold.
WARM, COUNTED = 24, 11


@dataclass
class Systems:
    """Everything that runs; the peer's parts are None where the machine lacks them."""

    own: Own
    floor: Floor
    java: Java | None
    peer: Peer | None
    mixed: Mixed | None
    etcd: OnEtcd | None = None

    def peer_load(self, uri: str, v2: bool, **arguments: object) -> dict[str, float]:
        assert self.java is not None
        return self.java.load(uri, v2=str(v2).lower(), **arguments)


def shape(quorum: tuple[int, int, int]) -> str:
    return f"E{quorum[0]}/Qw{quorum[1]}/Qa{quorum[2]}"


def own_append(own: Own, quorum: tuple[int, int, int], size: int, count: int) -> dict[str, float]:
    return own.load(
        "write",
        "--ensemble-size",
        str(quorum[0]),
        "--write-quorum",
        str(quorum[1]),
        "--ack-quorum",
        str(quorum[2]),
        "--entry-size",
        str(size),
        "--count",
        str(count),
        "--in-flight",
        str(IN_FLIGHT),
    )


def append(systems: Systems, quorum: tuple[int, int, int], size: int) -> Callable[[Scenario], None]:
    count = 200_000 if size <= 100 else 120_000

    def measure(scenario: Scenario) -> None:
        scenario.add("own", own_append(systems.own, quorum, size, count)["entries_per_s"])
        scenario.add(
            "floor", systems.floor.load(*quorum, size, count // 2, IN_FLIGHT)["entries_per_s"]
        )
        if systems.peer is None or systems.mixed is None:
            return
        load = {
            "mode": "append",
            "ensemble": quorum[0],
            "write": quorum[1],
            "ack": quorum[2],
            "size": size,
            "count": count // 2,
            "inflight": IN_FLIGHT,
        }
        best = max(
            systems.peer_load(systems.peer.uri, v2, **load)["entries_per_s"] for v2 in (True, False)
        )
        scenario.add("peer", best)

    return measure


def mixed_append(systems: Systems, v2: bool) -> Callable[[Scenario], None]:
    load = {"mode": "append", "size": 1024, "count": 60_000, "inflight": IN_FLIGHT}

    def measure(scenario: Scenario) -> None:
        if systems.peer is None or systems.mixed is None:
            return
        name = "mixed v2" if v2 else "mixed v3"
        scenario.add(name, systems.peer_load(systems.mixed.uri, v2, **load)["entries_per_s"])
        scenario.add("peer", systems.peer_load(systems.peer.uri, v2, **load)["entries_per_s"])

    return measure


def tls_append(systems: Systems, v2: bool) -> Callable[[Scenario], None]:
    """The peer's client on our bookies, over TLS and without, on the same ones."""
    load = {"mode": "append", "size": 1024, "count": 60_000, "inflight": IN_FLIGHT}

    def measure(scenario: Scenario) -> None:
        if systems.mixed is None:
            return
        for column, more in (("plain", {}), (f"mixed {'v2' if v2 else 'v3'}", systems.mixed.tls)):
            found = systems.peer_load(systems.mixed.uri, v2, **load, **more)
            scenario.add(column, found["entries_per_s"])

    return measure


def own_tls_append(systems: Systems) -> Callable[[Scenario], None]:
    """Our client on our bookies, over TLS and without, on the same ones."""

    def measure(scenario: Scenario) -> None:
        mixed = systems.mixed
        if mixed is None:
            return
        scenario.add("plain", own_append(mixed, (3, 3, 2), 1024, 120_000)["entries_per_s"])
        with mixed.loads_over_tls():
            scenario.add("own", own_append(mixed, (3, 3, 2), 1024, 120_000)["entries_per_s"])

    return measure


def single(systems: Systems, quorum: tuple[int, int, int]) -> Callable[[Scenario], None]:
    def measure(scenario: Scenario) -> None:
        result = systems.own.load(
            "write",
            "--ensemble-size",
            str(quorum[0]),
            "--write-quorum",
            str(quorum[1]),
            "--ack-quorum",
            str(quorum[2]),
            "--entry-size",
            "1024",
            "--count",
            "3000",
            "--in-flight",
            "1",
        )
        scenario.add("own", result["p50_ms"])
        scenario.add("floor", systems.floor.load(*quorum, 1024, 5000, 100)["single_p50_ms"])
        if systems.peer is not None:
            load = systems.peer_load(
                systems.peer.uri,
                True,
                mode="single",
                count=2000,
                ensemble=quorum[0],
                write=quorum[1],
                ack=quorum[2],
            )
            scenario.add("peer", load["p50_ms"])

    return measure


def ledgers(systems: Systems, in_flight: int) -> Callable[[Scenario], None]:
    """Create and close ledgers, both sides in the same ZooKeeper."""
    count = 1500 if in_flight == 1 else 10_000

    def measure(scenario: Scenario) -> None:
        if systems.peer is None or systems.mixed is None:
            return
        words = ("--count", str(count), "--in-flight", str(in_flight))
        scenario.add("own", systems.mixed.load("ledgers", *words)["ledgers_per_s"])
        load = {"mode": "ledgers", "count": count, "inflight": in_flight}
        scenario.add("peer", systems.peer_load(systems.peer.uri, True, **load)["entries_per_s"])

    return measure


def etcd_ledgers(systems: Systems, in_flight: int) -> Callable[[Scenario], None]:
    """The same in etcd, which the peer has no like of, beside ours in the peer's ZooKeeper."""

    def measure(scenario: Scenario) -> None:
        if systems.etcd is not None:
            count = "700" if in_flight == 1 else "5000"
            words = ("ledgers", "--count", count, "--in-flight", str(in_flight))
            if systems.mixed is not None:
                scenario.add("ZooKeeper", systems.mixed.load(*words)["ledgers_per_s"])
            scenario.add("own", systems.etcd.load(*words)["ledgers_per_s"])

    return measure


def scan(systems: Systems, name: str, v2: bool) -> Callable[[Scenario], None]:
    """Sequential reads right after the writes, from the caches."""
    count = 60_000

    def measure(scenario: Scenario) -> None:
        if name == "own":
            written = own_append(systems.own, (3, 3, 2), 1024, count * 2)
            ledger = str(int(written["ledger_id"]))
            scenario.add("own", systems.own.load("read", "--ledger", ledger)["entries_per_s"])
        if systems.peer is None or systems.mixed is None:
            return
        runs = [("peer", systems.peer.uri)]
        if name == "mixed":
            runs.append(("mixed v2" if v2 else "mixed v3", systems.mixed.uri))
        for system, uri in runs:
            ledger = int(
                systems.peer_load(uri, True, mode="append", count=count, rounds=1)["ledger"]
            )
            wires = (True, False) if name == "own" else (v2,)
            scenario.add(
                system,
                max(
                    systems.peer_load(
                        uri, wire, mode="scan", rounds=WARM, counted=COUNTED, ledger=ledger
                    )["entries_per_s"]
                    for wire in wires
                ),
            )

    return measure


def ceiling(systems: Systems) -> Callable[[Scenario], None]:
    """Sequential reads by the peer's client where bookies cost nothing: what it can do itself."""
    count, size = 60_000, 1024

    def measure(scenario: Scenario) -> None:
        peer, mixed = systems.peer, systems.mixed
        if peer is None or mixed is None:
            return

        def rate(uri: str, ledger: int) -> float:
            words = {"mode": "scan", "rounds": WARM, "counted": COUNTED, "ledger": ledger}
            return systems.peer_load(uri, True, **words)["entries_per_s"]

        def written(uri: str) -> int:
            words = {"mode": "append", "count": count, "size": size, "rounds": 1}
            return int(systems.peer_load(uri, True, **words)["ledger"])

        scenario.add("peer", rate(peer.uri, written(peer.uri)))
        ledger = written(mixed.uri)
        scenario.add("mixed v2", rate(mixed.uri, ledger))
        with mixed.canned(ledger, count, size):
            scenario.add("floor", rate(mixed.uri, ledger))

    return measure


def cold_scan(systems: Systems) -> Callable[[Scenario], None]:
    """Sequential reads after a restart of the bookies with the page cache dropped."""
    count = 60_000

    def measure(scenario: Scenario) -> None:
        own = systems.own
        written = own_append(own, (3, 3, 2), 1024, count * 2)
        own.stop_bookies()
        drop_page_cache()
        own.start_bookies()
        ledger = str(int(written["ledger_id"]))
        scenario.add("own", own.load("read", "--ledger", ledger)["entries_per_s"])
        if systems.peer is None:
            return
        peer = systems.peer
        ledger_id = int(
            systems.peer_load(peer.uri, True, mode="append", count=count, rounds=1)["ledger"]
        )
        peer.stop_bookies()
        drop_page_cache()
        peer.start_bookies()
        scenario.add(
            "peer",
            systems.peer_load(peer.uri, True, mode="scan", ledger=ledger_id, rounds=1)[
                "entries_per_s"
            ],
        )

    return measure


def drop_page_cache() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def random_read(systems: Systems) -> Callable[[Scenario], None]:
    def measure(scenario: Scenario) -> None:
        written = own_append(systems.own, (3, 3, 2), 1024, 100_000)
        result = systems.own.load(
            "read",
            "--ledger",
            str(int(written["ledger_id"])),
            "--random",
            "--count",
            "5000",
            "--in-flight",
            "1",
        )
        scenario.add("own", result["entries_per_s"])
        if systems.peer is None:
            return
        ledger = int(
            systems.peer_load(systems.peer.uri, True, mode="append", count=100_000, rounds=1)[
                "ledger"
            ]
        )
        scenario.add(
            "peer",
            systems.peer_load(
                systems.peer.uri, True, mode="random", rounds=8, counted=3, ledger=ledger
            )["entries_per_s"],
        )

    return measure


THREE, ONE = (3, 3, 2), (1, 1, 1)
RATE = "entries/s"
TWICE = [Goal("own", "peer", 2.0), Goal("own", "floor", 0.6)]
FASTER = [Goal("own", "peer", 1.2), Goal("own", "floor", 0.6)]
QUARTER = [Goal("own", "peer", 0.25, at_most=True)]
Catalogue = dict[str, tuple[Scenario, Callable[[Scenario], None]]]


def catalogue(systems: Systems) -> Catalogue:
    """Return every scenario by its short name."""
    return {**appends(systems), **reads(systems)}


def appends(systems: Systems) -> Catalogue:
    rows: Catalogue = {}
    for quorum, goals, name in ((THREE, TWICE, "e3"), (ONE, FASTER, "e1")):
        for size, words in ((1024, "1 KB"), (100, "100 bytes")):
            rows[f"append-{name}-{size}"] = (
                Scenario(f"append {shape(quorum)}, {words}", RATE, goals),
                append(systems, quorum, size),
            )
        rows[f"single-{name}"] = (
            Scenario(f"one add at a time {shape(quorum)}, p50", "ms", QUARTER),
            single(systems, quorum),
        )
    for in_flight, words, bound in ((1, "one at a time", 1.0), (100, "100 in flight", 1.0)):
        rows[f"ledgers-{in_flight}"] = (
            Scenario(
                f"create and close ledgers in ZooKeeper, {words}",
                "ledgers/s",
                [Goal("own", "peer", bound)],
            ),
            ledgers(systems, in_flight),
        )
        rows[f"etcd-{in_flight}"] = (
            Scenario(
                f"create and close ledgers in etcd, {words}",
                "ledgers/s",
                [Goal("own", "ZooKeeper", 0.8 if in_flight == 1 else None)],
            ),
            etcd_ledgers(systems, in_flight),
        )
    for v2, wire in ((True, "v2"), (False, "v3")):
        rows[f"mixed-append-{wire}"] = (
            Scenario(
                f"append by the peer's client, {wire}", RATE, [Goal(f"mixed {wire}", "peer", 1.0)]
            ),
            mixed_append(systems, v2),
        )
        rows[f"tls-append-{wire}"] = (
            Scenario(
                f"append by the peer's client over TLS, {wire}",
                RATE,
                [Goal(f"mixed {wire}", "plain", 0.85 if v2 else 0.5)],
            ),
            tls_append(systems, v2),
        )
    rows["tls-append"] = (
        Scenario("append over TLS", RATE, [Goal("own", "plain", 0.85)]),
        own_tls_append(systems),
    )
    return rows


def reads(systems: Systems) -> Catalogue:
    half_more, as_fast = [Goal("own", "peer", 1.5)], [Goal("own", "peer", 1.0)]
    rows: Catalogue = {
        "scan": (Scenario("sequential read, cached", RATE, half_more), scan(systems, "own", True)),
        "cold-scan": (
            Scenario("sequential read, restarted, page cache dropped", RATE, half_more),
            cold_scan(systems),
        ),
        "random": (Scenario("random read, one at a time", RATE, as_fast), random_read(systems)),
    }
    for v2, wire, bound in ((True, "v2", 1.5), (False, "v3", 1.0)):
        rows[f"mixed-scan-{wire}"] = (
            Scenario(
                f"sequential read by the peer's client, {wire}",
                RATE,
                [Goal(f"mixed {wire}", "peer", bound)],
            ),
            scan(systems, "mixed", v2),
        )
    rows["mixed-scan-ceiling"] = (
        Scenario(
            "the same, v2; floor: bookies that answer with bytes made beforehand",
            RATE,
            [Goal("floor", "peer", None), Goal("mixed v2", "floor", None)],
        ),
        ceiling(systems),
    )
    return rows
