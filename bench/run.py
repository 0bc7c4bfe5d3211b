"""``make bench``: measure Quorumbook beside the peer and the floor, in one alternating run."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import endurance
import report
from costs import costs
from scenarios import Systems, catalogue
from systems import HERE, Floor, Java, Missing, Mixed, OnEtcd, Own, Peer


def start(work: Path) -> tuple[Systems, list[str]]:
    notes = [
        "bookies of own, mixed and peer have 256 MB of write caches and 128 MB of read cache; the "
        "figures below the table are taken with our defaults (128 MB and 32 MB)",
        "they write their caches out every 10 s, as the peer's do by default",
        "every entry is synced before it is acknowledged; CRC32C; 1000 entries in flight",
        "the peer's value is the better of its two wires; a JVM's first rounds are not counted, "
        "but for the read after a restart, which can be taken only once: a good part of the "
        "peer's time there is its client warming up",
    ]
    own, floor = Own(work / "own"), Floor(work / "floor")
    own.start()
    floor.start()
    systems = Systems(own, floor, None, None, None)
    try:
        systems.etcd = OnEtcd(work / "etcd")
        systems.etcd.start()
    except Missing as missing:
        notes.append(f"etcd is not measured: {missing}")
    try:
        systems.java = Java(work / "java")
    except Missing as missing:
        notes.append(f"the peer is not measured: {missing}")
        return systems, notes
    systems.peer = Peer(systems.java)
    systems.peer.start()
    systems.mixed = Mixed(systems.java, work / "mixed")
    systems.mixed.start()
    return systems, notes


def stop(systems: Systems) -> None:
    for system in (systems.mixed, systems.peer, systems.etcd, systems.floor, systems.own):
        if system is not None:
            system.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="scenario names, comma-separated")
    parser.add_argument("--skip-endurance", action="store_true")
    parser.add_argument("--minutes", type=float, default=2.0, help="length of the open loop")
    parser.add_argument("--target", type=Path, default=HERE.parent / "docs" / "reports")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    systems, notes = start(work)
    scenarios, figures = [], []
    try:
        chosen = {
            name: item
            for name, item in {**catalogue(systems), **costs(systems)}.items()
            if not arguments.only or name in arguments.only.split(",")
        }
        for round_number in range(arguments.rounds):
            for name, (scenario, measure) in chosen.items():
                began = time.monotonic()
                measure(scenario)
                newest = {system: round(v[-1], 3) for system, v in scenario.values.items()}
                took = time.monotonic() - began
                print(f"round {round_number + 1}: {name} {took:.0f} s {newest}", file=sys.stderr)
        scenarios = [scenario for scenario, _ in chosen.values()]
        if not arguments.skip_endurance:
            figures = endurance.measure(systems, work, arguments.minutes)
    except Exception:
        for path in sorted(work.rglob("*.out")):
            print(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        raise
    finally:
        stop(systems)
        shutil.rmtree(work, ignore_errors=True)
    report.write(scenarios, figures, notes, arguments.rounds, arguments.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
