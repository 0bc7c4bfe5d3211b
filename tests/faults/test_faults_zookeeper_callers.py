"""Every contended change of the metadata, cut off from a real ZooKeeper and overtaken by a rival.

``docs/protocol.md`` lists the changes and what decides about each after a lost answer.  Here each
is done by two clients, of which the first loses its request, or the answer, or its session with
it.  Who returns has made the change, and it is there; where only one can have made it, one has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from doubles.zookeeper_cut import FATES, cut_store
from doubles.zookeeper_proxy import Mishap
from quorumbook.errors import MetadataError, QuorumbookError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.cluster import init_cluster, read_instance_id
from quorumbook.metadata.cookies import Cookie, CookieStore
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.racks import RackTable
from quorumbook.metadata.replication_lock import ReplicationLocks
from quorumbook.metadata.underreplication import UnderreplicationQueue
from quorumbook.streams.format.names import StreamPaths
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.partitions.group_nodes import GroupNodes

pytestmark = pytest.mark.faults

LEDGER = 7
SEGMENT = SegmentMetadata(number=1, ledger_id=5, first_txid=0)
#: Which client is which, where a change says who made it.
NUMBERS = {"mine": 11, "theirs": 12}


@dataclass(frozen=True)
class Change:
    """Something that two clients do at a time.

    ``prepare`` makes what it is based on, and what it returns goes to both ``make`` and ``holds``.
    ``make`` may return False: it was told that it did nothing.
    """

    prepare: Callable[[Any], Awaitable[Any]]
    make: Callable[[Any, str, Any], Awaitable[Any]]
    #: Whether what one has made is there.
    holds: Callable[[Any, str, Any], Awaitable[bool]]
    #: Only one can have made it.
    is_exclusive: bool = True


def metadata_of(who: str = "") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LEDGER, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
        fragments=(Fragment(0, ("b1:1",)),), password=b"", custom_metadata={"who": who.encode()},
    )  # fmt: skip


# Ledgers


async def cluster(store: Any) -> None:
    await init_cluster(store)


async def ledger(store: Any) -> Any:
    await init_cluster(store)
    return await LedgerManager(store).create(metadata_of())


async def ledger_version(store: Any, _who: str, _given: Any) -> bool:
    return (await LedgerManager(store).read(LEDGER))[1] == 1


async def is_who_created(store: Any, who: str, _given: Any) -> bool:
    return (await LedgerManager(store).read(LEDGER))[0].custom_metadata == {"who": who.encode()}


async def is_in_recovery(store: Any, _who: str, _given: Any) -> bool:
    return (await LedgerManager(store).read(LEDGER))[0].state is LedgerState.IN_RECOVERY


# Streams


def nodes_of(store: Any) -> StreamNodes:
    return StreamNodes(store, StreamPaths("/messaging", "s"))


async def stream(store: Any) -> Any:
    await nodes_of(store).create(b"")
    return await nodes_of(store).read_state()


async def segment(store: Any) -> Any:
    nodes = nodes_of(store)
    await nodes.start_segment(SEGMENT, await stream(store))
    return await nodes.read_state()


async def fence(store: Any, _who: str, state: Any) -> Any:
    return (await nodes_of(store).fence_allocation(state)).allocation_version


async def is_fenced_once(store: Any, _who: str, state: Any) -> bool:
    return (await nodes_of(store).read_state()).allocation_version == state.allocation_version + 1


async def is_allocated(store: Any, who: str, _state: Any) -> bool:
    return (await nodes_of(store).read_state()).allocated == NUMBERS[who]


async def start(store: Any, who: str, state: Any) -> None:
    await nodes_of(store).start_segment(replace(SEGMENT, ledger_id=NUMBERS[who]), state)


async def is_started(store: Any, who: str, _state: Any) -> bool:
    found = await nodes_of(store).segment(1, is_in_progress=True)
    return found is not None and found[0].ledger_id == NUMBERS[who]


COMPLETED = replace(SEGMENT, is_in_progress=False, last_txid=3, completed_at_ms=9, record_count=1)


async def truncate(store: Any, _who: str, _state: Any) -> bool:
    return await nodes_of(store).replace_segment(SEGMENT, SEGMENT.truncated(None))


# Groups, under-replication, tables


def group_of(store: Any) -> GroupNodes:
    return GroupNodes(store, "/messaging", "g")


async def group(store: Any) -> int:
    await group_of(store).prepare()
    return (await group_of(store).look()).version


async def claim_partition(store: Any, who: str, version: int) -> bool:
    await store.create(f"/messaging/groups/g/members/{who}", ephemeral=True)
    return await group_of(store).claim(3, who, version, lambda: None)


async def has_claim(store: Any, who: str, _version: int) -> bool:
    return await group_of(store).claims() == {3: who}


async def take_lock(store: Any, who: str, _given: Any) -> bool:
    return await ReplicationLocks(store, who).take(LEDGER)


async def has_lock(store: Any, who: str, _given: Any) -> bool:
    return await UnderreplicationQueue(store).worker_of(LEDGER) == who


async def mark(store: Any, who: str, _given: Any) -> None:
    await UnderreplicationQueue(store).mark(LEDGER, [who])


async def is_marked(store: Any, who: str, _given: Any) -> bool:
    found = await UnderreplicationQueue(store).read(LEDGER)
    return found is not None and who in found.replicas


async def marked(store: Any) -> None:
    await init_cluster(store)
    await UnderreplicationQueue(store).mark(LEDGER, ["first"])


async def in_table(store: Any, who: str, _given: Any) -> bool:
    return (await RackTable(store).read()).get(who) == "/rack"


async def table(store: Any) -> None:
    await init_cluster(store)
    await RackTable(store).set({"first": "/rack"})


async def cookie(store: Any) -> int:
    await init_cluster(store)
    return await CookieStore(store).write(Cookie("b1:1", ("/j",), ("/l",)))


async def write_cookie(store: Any, _who: str, version: int) -> int:
    return await CookieStore(store).write(Cookie("b1:1", ("/j",), ("/l2",)), version)


async def has_cookie(store: Any, _who: str, _version: int) -> bool:
    found = await CookieStore(store).read("b1:1")
    return found is not None and found[0].ledger_directories == ("/l2",)


async def parent(store: Any) -> None:
    await create_with_parents(store, "/ledgers")
    await store.delete("/ledgers")


CHANGES = {
    "a cluster is made": Change(
        parent,
        lambda store, who, _: init_cluster(store, instance_id=who),
        lambda store, who, _: _is(read_instance_id(store), who),
    ),
    "a ledger is created": Change(
        cluster, lambda store, who, _: LedgerManager(store).create(metadata_of(who)),
        is_who_created,
    ),
    "a ledger is claimed": Change(
        ledger, lambda store, _, given: LedgerManager(store).write_alone(*given), ledger_version
    ),
    "a ledger goes into recovery": Change(
        ledger,
        lambda store, _, given: LedgerManager(store).write(given[0].in_recovery(), given[1]),
        is_in_recovery,
    ),
    "a stream is created": Change(
        parent, lambda store, who, _: nodes_of(store).create(who.encode()),
        lambda store, who, _: _is(nodes_of(store).read_data(), (who.encode(), 0)),
    ),
    "a writer is shut out": Change(stream, fence, is_fenced_once),
    "a ledger is allocated": Change(
        stream, lambda store, who, state: nodes_of(store).set_allocation(NUMBERS[who], state),
        is_allocated,
    ),
    "a segment is started": Change(stream, start, is_started),
    "a segment is completed": Change(
        segment, lambda store, _, state: nodes_of(store).complete_segment(COMPLETED, 0, state),
        lambda store, _, __: nodes_of(store).is_completed_as(COMPLETED), is_exclusive=False,
    ),
    "an empty segment is dropped": Change(
        segment, lambda store, _, state: nodes_of(store).drop_empty_segment(1, 0, state),
        lambda store, _, __: _is(nodes_of(store).segments(), []), is_exclusive=False,
    ),
    "a segment is truncated": Change(
        segment, truncate,
        lambda store, _, __: _is(nodes_of(store).segments(), [SEGMENT.truncated(None)]),
        is_exclusive=False,
    ),
    "a partition is claimed": Change(group, claim_partition, has_claim),
    "a ledger is locked": Change(marked, take_lock, has_lock),
    "a ledger is marked": Change(marked, mark, is_marked, is_exclusive=False),
    "a table is changed": Change(
        table, lambda store, who, _: RackTable(store).set({who: "/rack"}), in_table,
        is_exclusive=False,
    ),
    "a cookie is written": Change(cookie, write_cookie, has_cookie, is_exclusive=False),
}  # fmt: skip


async def _is(found: Awaitable[Any], wanted: Any) -> bool:
    return await found == wanted


@pytest.mark.parametrize("is_contended", [True, False], ids=["rival", "nobody"])
@pytest.mark.parametrize("name", CHANGES)
async def test_who_returns_from_a_change_has_made_it_whatever_is_lost(
    zookeeper: Any, name: str, is_contended: bool
) -> None:
    for mishap, is_over in FATES:
        async with cut_store(zookeeper) as pair:
            await assert_made(*pair, CHANGES[name], mishap, is_contended, is_over)


async def assert_made(
    cut: Any, mine: Any, theirs: Any, change: Change, mishap: Mishap, is_contended: bool,
    is_over: bool,
) -> None:  # fmt: skip
    given = await change.prepare(theirs)
    done = []

    async def make(store: Any, who: str) -> Any:
        told = await change.make(store, who, given)
        if told is not False:
            done.append(who)
        return told

    async def rival() -> None:
        with contextlib.suppress(QuorumbookError):
            await make(theirs, "theirs")

    told = await cut.overtaken(
        lambda: make(mine, "mine"), mishap, rival if is_contended else None, is_over=is_over
    )
    story = (mishap, is_over, told, done)
    if change.is_exclusive:
        assert len(done) <= 1, story
    for who in done:
        assert await change.holds(theirs, who, given), story
    assert not isinstance(told, Exception) or isinstance(told, QuorumbookError), story
    if not is_contended and not is_over and not isinstance(told, MetadataError):
        assert done == ["mine"], story
