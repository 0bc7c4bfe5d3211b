"""A soak over TLS: every entry comes back byte for byte, while answers leave in groups.

Each entry is a function of its number: it names it and is of a size that depends on it, from
nothing to some records of TLS.  Bookies, writer and reader are on one loop; acknowledgements of a
group leave each bookie as one write, batch reads as several megabytes in one, and the reader is
slow now and then, so that back-pressure comes into it.  Then everything is compared, and the
bookies' own counters say that the answers did leave in groups.

Run as a program it is the long form::

    python tests/security/tls_soak.py --entries 1000000 --directory DIR
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
from typing import Any

sys.path[:0] = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]

from security_harness import Cluster, bookie_tls, client_tls, secure_cluster  # noqa: E402

from doubles.certificates import Authority  # noqa: E402

_BLOCK = hashlib.sha512(b"quorumbook").digest() * 1024
_AT_ONCE = 2000


def payload_of(number: int) -> bytes:
    """Return what entry ``number`` must hold."""
    kind = number % 1000
    size = 0 if kind == 1 else 40_000 if kind == 2 else (number * 7919) % 1024
    start = number % 64
    return number.to_bytes(8, "big")[: size + 8] + _BLOCK[start : start + size]


async def write(cluster: Cluster, tls: Any, count: int) -> int:
    """Append ``count`` entries, many in flight; return the ledger's id."""
    async with cluster.connect(tls=tls, max_pending_entries=_AT_ONCE) as bk:
        async with bk.create_ledger(
            ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
        ) as ledger:
            under_way: list[asyncio.Future[range]] = []
            for first in range(0, count, _AT_ONCE // 4):
                many = range(first, min(first + _AT_ONCE // 4, count))
                under_way.append(
                    ledger.append_batch_nowait([payload_of(number) for number in many])
                )
                if len(under_way) == 4:
                    await under_way.pop(0)
            await asyncio.gather(*under_way)
        return ledger.id


async def compare(cluster: Cluster, tls: Any, ledger_id: int, count: int) -> int:
    """Read everything and compare it; return how many entries were right."""
    right = 0
    async with cluster.connect(tls=tls) as bk:
        async with bk.open_ledger(ledger_id) as reader:
            assert reader.last_add_confirmed == count - 1
            async for entry in reader.read(first=0):
                assert entry.entry_id == right
                assert bytes(entry.payload) == payload_of(right), right
                right += 1
                if not right % 50_000:
                    await asyncio.sleep(0.05)
    return right


async def soak(directory: str, count: int, version: str) -> dict[str, float]:
    """Write and read ``count`` entries over one version of TLS; raise at the first wrong byte."""
    ca = Authority(directory)
    good = ca.issue("good", ips=["127.0.0.1"])
    served = bookie_tls(ca, good, require=True, client_authentication=True, protocols=(version,))
    tls = client_tls(ca, good, protocols=(version,))
    async with secure_cluster(directory, 3, tls=served) as cluster:
        ledger_id = await write(cluster, tls, count)
        right = await compare(cluster, tls, ledger_id, count)
        adds = sum(bookie.metrics.add.succeeded.count for bookie in cluster.bookies)
        groups = sum(bookie.storage.statistics()["journal_groups@0"] for bookie in cluster.bookies)
        refused = sum(bookie.metrics.requests_refused for bookie in cluster.bookies)
    return {"right": right, "adds_per_group": adds / groups, "refused": refused}


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--version", default="TLSv1.3")
    parser.add_argument("--directory", required=True)
    arguments = parser.parse_args()
    import uvloop

    found = uvloop.run(soak(arguments.directory, arguments.entries, arguments.version))
    print(
        f"{arguments.version}: {found['right']:,} entries came back byte for byte,"
        f" {found['adds_per_group']:.0f} adds in a group of answers"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
