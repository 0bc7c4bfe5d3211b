"""Every contended change of the metadata, as something that two clients do at a time.

``docs/protocol.md`` lists them, and what decides about each after a lost answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.cookies import Cookie, CookieStore
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.cluster import init_cluster, read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import RecoverySwitches
from quorumbook.metadata.store import Revision
from quorumbook.spark.lake.next_batch import NextBatchNode
from quorumbook.streams.cursors.cursor import (
    Cursor,
    commit_place,
    open_cursor,
    read_cursor,
    take_over,
)
from quorumbook.streams.cursors.stored import read
from quorumbook.streams.format.names import StreamPaths
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.namespace_nodes import read_policy, write_policy
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.partitions.group_nodes import GroupNodes
from quorumbook.streams.tier.manifest import Manifest, TierState
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.state import AttemptName, AttemptRecord

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


async def stream_data(store: Any) -> tuple[bytes, int]:
    data, revision = await nodes_of(store).read_data()
    return data, revision.version


async def segment(store: Any) -> Any:
    nodes = nodes_of(store)
    await nodes.start_segment(SEGMENT, await stream(store))
    found = await nodes.segment(1, is_in_progress=True)
    assert found is not None
    return found[1], await nodes.read_state()


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


async def group(store: Any) -> Revision:
    await create_with_parents(store, "/messaging")
    await group_of(store).prepare()
    return (await group_of(store).look()).revision


async def claim_partition(store: Any, who: str, revision: Revision) -> bool:
    await store.create(f"/messaging/groups/g/members/{who}", ephemeral=True)
    return await group_of(store).claim(3, who, revision, lambda: None)


async def has_claim(store: Any, who: str, _revision: Revision) -> bool:
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


async def cookie(store: Any) -> Revision:
    await init_cluster(store)
    await CookieStore(store).write(Cookie("b1:1", ("/j",), ("/l",)))
    found = await CookieStore(store).read("b1:1")
    assert found is not None
    return found[1]


async def write_cookie(store: Any, _who: str, revision: Revision) -> int:
    return await CookieStore(store).write(Cookie("b1:1", ("/j",), ("/l2",)), revision)


async def has_cookie(store: Any, _who: str, _revision: Revision) -> bool:
    found = await CookieStore(store).read("b1:1")
    return found is not None and found[0].ledger_directories == ("/l2",)


# Cursors, copies of segments, transactions, tables of other systems


def context_of(store: Any) -> Any:
    return SimpleNamespace(
        store=store, nodes=nodes_of(store), name="s", check_writable=lambda: None, first_segment=1
    )


async def cursor(store: Any) -> Any:
    await stream(store)
    await open_cursor(context_of(store), "c", Position(1, 0, 0), holds_retention=True)
    return await read(context_of(store), "c")


def cursor_of(store: Any, stored: Any) -> Cursor:
    return Cursor(context_of(store), "c", stored)


async def move_cursor(store: Any, who: str, stored: Any) -> None:
    cursor = cursor_of(store, stored)
    await commit_place(cursor, Position(1, 2, 3), 5, who.encode())


async def has_moved_cursor(store: Any, who: str, _stored: Any) -> bool:
    found = await read_cursor(context_of(store), "c")
    assert found is not None
    return (found.position, found.state) == (Position(1, 2, 4), who.encode())


async def has_owner(store: Any, _who: str, _stored: Any) -> bool:
    # Whoever came later takes it from the other.
    found = await read_cursor(context_of(store), "c")
    return found is not None and found.owner in NUMBERS


async def completed(store: Any) -> None:
    await nodes_of(store).complete_segment(COMPLETED, *await segment(store))


def files_of(store: Any) -> TierNodes:
    return TierNodes(nodes_of(store))


def files(who: str) -> Manifest:
    metadata = replace(metadata_of(), ledger_id=COMPLETED.ledger_id)
    return Manifest(state=TierState.COPYING, token=who, location="/files", ledger=metadata)


async def listed(store: Any) -> Revision:
    await completed(store)
    return (await files_of(store).write(1, files("first"), None)).revision


async def has_files(store: Any, who: str, _revision: Revision | None) -> bool:
    found = await files_of(store).read(1)
    return found is not None and found.manifest.token == who


def attempts_of(store: Any) -> TransactionNodes:
    return TransactionNodes(store, "/transactions", "app")


def attempt_of(who: str) -> AttemptName:
    return AttemptName(0, 0, 0, who)


RECORD = AttemptRecord(query="q", run="r", ledgers=(5,))


async def application(store: Any) -> None:
    await create_with_parents(store, "/transactions")
    await attempts_of(store).make()


async def attempts(store: Any) -> Any:
    await application(store)
    for name in map(attempt_of, (*NUMBERS, "dead")):
        await attempts_of(store).record_attempt(name, replace(RECORD, ledgers=()), is_new=True)
    (found,) = await attempts_of(store).read_attempts([attempt_of("dead")])
    return found, (await attempts_of(store).read_head())[1]


async def has_noted(store: Any, who: str, _given: Any) -> bool:
    found = await attempts_of(store).read_attempts([attempt_of(who)])
    return [each.record for each in found] == [RECORD]


async def is_garbage(store: Any, _who: str, _found: Any) -> bool:
    nodes = attempts_of(store)
    garbage = [name for name, *_ in await nodes.garbage()]
    return not await nodes.has_attempt(attempt_of("dead")) and garbage == [str(attempt_of("dead"))]


def next_batch_of(store: Any) -> NextBatchNode:
    client = SimpleNamespace(_running=lambda: SimpleNamespace(store=store))
    return NextBatchNode(cast(Any, SimpleNamespace(client=client)), "s3://table")


async def turn(store: Any) -> Revision:
    await cluster(store)
    await take_turn(store, "first", None)
    return (await store.get(next_batch_of(store)._path)).revision


async def take_turn(store: Any, who: str, revision: Revision | None) -> bool:
    return await next_batch_of(store)._take(who.encode(), revision)


async def has_turn(store: Any, who: str, _revision: Revision | None) -> bool:
    return (await store.get(next_batch_of(store)._path)).data == who.encode()


# Namespaces and switches


def policy_of(who: str) -> StreamPolicy:
    return StreamPolicy(bookie_labels=f"of={who}")


async def namespace(store: Any) -> None:
    await create_with_parents(store, "/messaging")


async def has_policy(store: Any, who: str, _given: Any) -> bool:
    return await read_policy(store, "/messaging") == policy_of(who)


async def disabled(store: Any) -> None:
    await cluster(store)
    await RecoverySwitches(store).disable()


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
        lambda store, who, _: _is(stream_data(store), (who.encode(), 0)),
    ),
    "a writer is shut out": Change(stream, fence, is_fenced_once),
    "a ledger is allocated": Change(
        stream, lambda store, who, state: nodes_of(store).set_allocation(NUMBERS[who], state),
        is_allocated,
    ),
    "a segment is started": Change(stream, start, is_started),
    "a segment is completed": Change(
        segment, lambda store, _, given: nodes_of(store).complete_segment(COMPLETED, *given),
        lambda store, _, __: nodes_of(store).is_completed_as(COMPLETED), is_exclusive=False,
    ),
    "an empty segment is dropped": Change(
        segment, lambda store, _, given: nodes_of(store).drop_empty_segment(1, *given),
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
    "a cursor is made": Change(
        stream,
        lambda store, _, __: open_cursor(
            context_of(store), "c", Position(1, 0, 0), holds_retention=True
        ),
        lambda store, _, __: _is(_is(read_cursor(context_of(store), "c"), None), False),
        is_exclusive=False,
    ),
    "a cursor is moved": Change(cursor, move_cursor, has_moved_cursor),
    "a cursor is taken": Change(
        cursor, lambda store, who, stored: take_over(cursor_of(store, stored), who), has_owner,
        is_exclusive=False,
    ),
    "a cursor is deleted": Change(
        cursor, lambda store, _, stored: cursor_of(store, stored).delete(),
        lambda store, _, __: _is(read_cursor(context_of(store), "c"), None), is_exclusive=False,
    ),
    "a segment's files are listed": Change(
        completed, lambda store, who, _: files_of(store).write(1, files(who), None), has_files
    ),
    "a segment's list of files is replaced": Change(
        listed, lambda store, who, revision: files_of(store).write(1, files(who), revision),
        has_files,
    ),
    "a segment's list of files is deleted": Change(
        listed, lambda store, _, revision: files_of(store).delete(1, revision),
        lambda store, _, __: _is(files_of(store).read(1), None), is_exclusive=False,
    ),
    "an attempt begins": Change(
        application,
        lambda store, who, _: attempts_of(store).record_attempt(
            attempt_of(who), RECORD, is_new=True
        ),
        has_noted, is_exclusive=False,
    ),
    "an attempt makes a ledger": Change(
        attempts,
        lambda store, who, _: attempts_of(store).record_attempt(
            attempt_of(who), RECORD, is_new=False
        ),
        has_noted, is_exclusive=False,
    ),
    "an attempt is cleaned up": Change(
        attempts, lambda store, _, given: attempts_of(store).discard(*given), is_garbage,
        is_exclusive=False,
    ),
    "a table's first batch is decided on": Change(
        cluster, lambda store, who, _: take_turn(store, who, None), has_turn
    ),
    "a table's next batch is decided on": Change(turn, take_turn, has_turn),
    "a namespace's policy is set": Change(
        namespace,
        lambda store, who, _: write_policy(store, "/messaging", policy_of(who), StreamPolicy()),
        has_policy,
    ),
    "auto-recovery is switched off": Change(
        cluster, lambda store, _, __: RecoverySwitches(store).disable(),
        lambda store, _, __: _is(RecoverySwitches(store).is_enabled(), False),
    ),
    "auto-recovery is switched on": Change(
        disabled, lambda store, _, __: RecoverySwitches(store).enable(),
        lambda store, _, __: _is(RecoverySwitches(store).is_enabled(), True), is_exclusive=False,
    ),
    "a stream is deleted": Change(
        stream, lambda store, _, __: nodes_of(store).delete(),
        lambda store, _, __: _is(nodes_of(store).exists(), False), is_exclusive=False,
    ),
    "a ledger is deleted": Change(
        ledger, lambda store, _, given: LedgerManager(store).delete(
            LEDGER, given[1], given[0].incarnation
        ),
        lambda store, _, __: _is(_is_there(store), False), is_exclusive=False,
    ),
}  # fmt: skip


async def _is_there(store: Any) -> bool:
    with contextlib.suppress(NoSuchLedgerInMetadataError):
        await LedgerManager(store).read(LEDGER)
        return True
    return False


async def _is(found: Awaitable[Any], wanted: Any) -> bool:
    return await found == wanted
