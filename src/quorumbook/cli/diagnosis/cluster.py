"""Whether the metadata store and the bookies can be reached from this machine."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import NamedTuple

from quorumbook.admin.facts.bookies import DOWN, BookieFacts, known_bookies
from quorumbook.admin.facts.verdict import VerdictReason
from quorumbook.admin.facts.words import counted, listed
from quorumbook.cli.diagnosis.checks import failed, fine, warned
from quorumbook.env import Env, patience
from quorumbook.env.shown import shown
from quorumbook.errors import ClusterNotInitializedError, MetadataError
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store

_READS = 5
_SLOW_READ_MS = 50.0
_CONNECT_TIMEOUT_S = 5.0
_CONNECTED_AT_ONCE = 32


class ClusterSeen(NamedTuple):
    """What was found of a cluster."""

    checks: list[VerdictReason]
    #: Those that are registered.
    bookies: tuple[BookieFacts, ...] = ()


async def look_at_cluster(uri: str, *, session_timeout_s: float) -> ClusterSeen:
    """Read a cluster's metadata, and connect to each of its bookies."""
    where = shown(uri)
    try:
        store = await open_store(uri, Env(), session_timeout_s=session_timeout_s)
        try:
            read_ms = [await _read_ms(store) for _ in range(_READS)]
            known = await known_bookies(store)
        finally:
            await store.close()
    except ClusterNotInitializedError as error:
        return ClusterSeen([warned("metadata", str(error), "or correct --metadata")])
    except (MetadataError, OSError) as error:
        fix = "check --metadata, and that what it names runs and can be reached from here"
        return ClusterSeen([failed("metadata", f"no metadata at {where}: {error}", fix)])
    bookies = tuple(bookie for bookie in known.bookies if bookie.state != DOWN)
    checks = [_speed(where, statistics.median(read_ms))]
    if bookies:
        checks.append(await _bookies_check(bookies))
    return ClusterSeen(checks, bookies)


async def _read_ms(store: MetadataStore) -> float:
    clock = store.env.clock
    began_ns = clock.now_ns()
    await read_instance_id(store)
    return (clock.now_ns() - began_ns) / 1e6


def _speed(where: str, read_ms: float) -> VerdictReason:
    text = f"{where} answers in {read_ms:.2g} ms"
    if read_ms > _SLOW_READ_MS:
        return warned("metadata", text, "look at the load of the metadata store and the way there")
    return fine("metadata", text)


async def _bookies_check(bookies: tuple[BookieFacts, ...]) -> VerdictReason:
    limit = asyncio.Semaphore(_CONNECTED_AT_ONCE)

    async def is_there(bookie: BookieFacts) -> bool:
        host, _, port = bookie.address.rpartition(":")
        async with limit:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                async with patience.timeout(_CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                writer.close()
                return True
        return False

    answers = await asyncio.gather(*map(is_there, bookies))
    away = [bookie.address or bookie.bookie_id
            for bookie, is_up in zip(bookies, answers, strict=True) if not is_up]  # fmt: skip
    if away:
        text = f"{len(away)} of {counted(len(bookies), 'bookie')} cannot be reached: {listed(away)}"
        fix = (
            "check names, firewalls and bookie.advertised_host; clients connect to these addresses"
        )
        return failed("bookies", text, fix)
    return fine("bookies", f"{counted(len(bookies), 'registered bookie')} can be reached")
