"""The audit of every copy, against bookies whose copies are damaged in every way."""

from __future__ import annotations

import contextlib

import pytest

import quorumbook
from doubles.mock_bookie import MockCluster
from quorumbook.autorecovery.audits.replica_audit import audit_range
from quorumbook.client.context import client_context
from quorumbook.env import Budget, Env
from quorumbook.ledger.audit import Severity
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.requests import BatchRead, ListEntries, Read
from quorumbook.protocol.status import Status

SEAL = digester(DigestType.CRC32C, b"p")
ENTRIES = 60


class Stored:
    """Five mock bookies, and ledgers on them."""

    def __init__(self, cluster, client):
        self.cluster, self.client = cluster, client
        env = Env()
        self.budget = Budget(env.clock, env.threads)

    async def write(self, ensemble_size=3, *, end="close"):
        writer = await self.client.create_ledger(
            ensemble_size=ensemble_size, write_quorum_size=3, ack_quorum_size=2, password=b"p"
        )
        for number in range(ENTRIES):
            await writer.append(b"entry %d" % number)
        if end == "close":
            await writer.close()
        return writer

    async def audit(self, ledger, first=0, last=ENTRIES):
        context = client_context(self.client)
        return await audit_range(context, ledger.id, first, last, lambda _: self.budget)

    async def found(self, ledger, first=0, last=ENTRIES):
        findings = (await self.audit(ledger, first, last)).findings
        return {(f.kind, f.first_entry_id, f.last_entry_id, f.bookie_id) for f in findings}

    def holders(self, ledger, entry_id):
        return [b for b in self.cluster.members(ledger) if entry_id in b.ledgers[ledger.id].entries]


@pytest.fixture
async def stored():
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(MockCluster())
        await cluster.add(5)
        client = await stack.enter_async_context(
            quorumbook.connect(cluster.metadata_uri, lac_delay_s=0)
        )
        yield Stored(cluster, client)


def reseal(entry, ledger, entry_id, *, lac=None, length=None, payload=None):
    """An entry with a right digest and other contents."""
    old_lac, old_length = (
        int.from_bytes(entry[at : at + 8], "big", signed=True) for at in (16, 24)
    )
    return SEAL.seal(
        ledger.id,
        entry_id,
        old_lac if lac is None else lac,
        old_length if length is None else length,
        SEAL.payload(entry) if payload is None else payload,
    )


@pytest.mark.parametrize("ensemble_size", [3, 5])
async def test_a_healthy_ledger_has_no_findings_wherever_a_range_begins(stored, ensemble_size):
    ledger = await stored.write(ensemble_size)
    for first, last in ((0, ENTRIES), (0, 19), (20, 39), (59, 59)):
        audited = await stored.audit(ledger, first, last)
        assert audited.findings == []
        assert audited.entries == min(last, ENTRIES - 1) - first + 1
        assert audited.copies == audited.entries * 3


@pytest.mark.parametrize("ensemble_size", [3, 5])
@pytest.mark.parametrize("entry_id", [0, 20, 41, ENTRIES - 1])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("flipped bit", "corrupt"),
        ("missing entry", "missing"),
        ("other entry's bytes", "corrupt"),
        ("wrong body, valid digest", "differs"),
        ("wrong length, valid digest", "differs"),
        ("stale last add confirmed", "stale_lac"),
        ("impossible last add confirmed", "wrong_lac"),
        ("unreadable", "unreadable"),
    ],
)
async def test_each_fault_of_one_copy_is_found_on_the_very_bookie(
    stored, ensemble_size, entry_id, fault, kind
):
    ledger = await stored.write(ensemble_size)
    bookie = stored.holders(ledger, entry_id)[1]
    entries = bookie.ledgers[ledger.id].entries
    good = entries[entry_id]
    if fault == "flipped bit":
        entries[entry_id] = good[:-1] + bytes([good[-1] ^ 4])
    elif fault == "missing entry":
        del entries[entry_id]
    elif fault == "other entry's bytes":
        entries[entry_id] = reseal(good, ledger, entry_id + 1)
    elif fault == "wrong body, valid digest":
        entries[entry_id] = reseal(good, ledger, entry_id, payload=SEAL.payload(good)[::-1])
    elif fault == "wrong length, valid digest":
        entries[entry_id] = reseal(good, ledger, entry_id, length=7_000)
    elif fault == "stale last add confirmed":
        entries[entry_id] = reseal(good, ledger, entry_id, lac=entry_id - 3)
        # The first entries know nothing that could be stale: theirs is impossible.
        kind = "wrong_lac" if entry_id < 3 else kind
    elif fault == "impossible last add confirmed":
        entries[entry_id] = reseal(good, ledger, entry_id, lac=entry_id)
    else:
        bookie.on_request = lambda request: (
            Status.IO_ERROR
            if (isinstance(request, BatchRead) and request.first_entry_id == entry_id)
            or (isinstance(request, Read) and request.entry_id == entry_id)
            else None
        )
        if ensemble_size == 3:
            # A batch that would run into it stops before.
            batch, stop = bookie._batch_read, entry_id

            def cut(connection, request):
                if request.first_entry_id < stop:
                    count = stop - request.first_entry_id
                    request.max_count = min(request.max_count, count)
                batch(connection, request)

            bookie._batch_read = cut  # another answer than a bookie gives
    expected = {(kind, entry_id, entry_id, bookie.bookie_id)}
    assert await stored.found(ledger) == expected
    # However the ledger is cut into ranges, it is found once.
    parts = [await stored.found(ledger, first, first + 9) for first in range(0, ENTRIES, 10)]
    assert set().union(*parts) == expected


async def test_a_truncated_log_is_one_finding_and_needs_few_questions(stored):
    ledger = await stored.write()
    bookie = stored.cluster.members(ledger)[2]
    for entry_id in range(25, ENTRIES):
        del bookie.ledgers[ledger.id].entries[entry_id]
    bookie.requests.clear()
    assert await stored.found(ledger) == {("missing", 25, ENTRIES - 1, bookie.bookie_id)}
    assert bookie.count(BatchRead) + bookie.count(Read) < 15


async def test_what_a_list_denies_and_a_read_gives_is_no_finding(stored):
    ledger = await stored.write()
    bookie = stored.cluster.members(ledger)[0]
    bookie.on_request = lambda r: Status.NO_LEDGER if isinstance(r, ListEntries) else None
    assert await stored.found(ledger) == set()


async def test_an_entry_that_nobody_has_is_a_hole(stored):
    ledger = await stored.write()
    for bookie in stored.cluster.members(ledger):
        del bookie.ledgers[ledger.id].entries[7]
    found = await stored.found(ledger)
    assert ("hole", 7, 7, "") in found
    assert len(found) == 4


async def test_two_copies_that_disagree_are_told_apart_by_the_length_before(stored):
    ledger = await stored.write()
    first, second, third = stored.cluster.members(ledger)
    del third.ledgers[ledger.id].entries[30]
    good = second.ledgers[ledger.id].entries[30]
    second.ledgers[ledger.id].entries[30] = reseal(good, ledger, 30, payload=b"longer than it was")
    assert await stored.found(ledger) == {
        ("missing", 30, 30, third.bookie_id),
        ("differs", 30, 30, second.bookie_id),
    }
    same_size = SEAL.payload(good)[::-1]
    second.ledgers[ledger.id].entries[30] = reseal(good, ledger, 30, payload=same_size)
    assert await stored.found(ledger) == {
        ("missing", 30, 30, third.bookie_id),
        ("differs", 30, 30, second.bookie_id),
        ("differs", 30, 30, first.bookie_id),
    }


async def test_a_bookie_that_is_gone_is_unknown_not_damaged(stored):
    ledger = await stored.write()
    bookie = stored.cluster.members(ledger)[1]
    await bookie.stop()
    findings = (await stored.audit(ledger)).findings
    assert {(f.kind, f.bookie_id, f.entries) for f in findings} == {
        ("unasked", bookie.bookie_id, ENTRIES)
    }
    assert {f.severity for f in findings} == {Severity.UNKNOWN}


async def test_what_recovery_may_leave_is_a_note(stored):
    ledger = await stored.write()
    first, second, _ = stored.cluster.members(ledger)
    beyond = SEAL.seal(ledger.id, ENTRIES, ENTRIES - 1, 9_999, b"never confirmed")
    first.ledgers[ledger.id].entries[ENTRIES] = beyond
    # Written anew by a recovery that knew more than the writer did.
    good = second.ledgers[ledger.id].entries
    for bookie in stored.cluster.members(ledger):
        entries = bookie.ledgers[ledger.id].entries
        entries[58] = reseal(entries[58], ledger, 58, lac=56)
    good[58] = reseal(good[58], ledger, 58, lac=57)
    audited = await stored.audit(ledger)
    assert {f.severity for f in audited.findings} == {Severity.NOTE}
    assert {f.kind for f in audited.findings} == {"beyond_end", "lac_differs"}


async def test_a_length_in_the_metadata_that_no_entry_bears_out_is_found(stored):
    ledger = await stored.write()
    for bookie in stored.cluster.members(ledger):
        entries = bookie.ledgers[ledger.id].entries
        last = entries[ENTRIES - 1]
        entries[ENTRIES - 1] = reseal(last, ledger, ENTRIES - 1, length=1)
    kinds = {kind for kind, *_ in await stored.found(ledger)}
    assert kinds == {"stale_order", "wrong_length"}


async def test_an_open_ledger_is_neither_fenced_nor_judged_before_it_is_settled(stored):
    ledger = await stored.write(end="stay open")
    del stored.cluster.members(ledger)[0].ledgers[ledger.id].entries[ENTRIES - 1]
    audited = await stored.audit(ledger)
    assert (audited.entries, audited.findings) == (0, [])
    await ledger.append(b"still mine")


async def test_chosen_ids_in_no_order_are_the_writers_own(stored):
    async with stored.client.create_ledger(
        ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, explicit_entry_ids=True
    ) as writer:
        for entry_id in (3, 1, 0, 2, 5, 4):
            writer.append_at_nowait(entry_id, b"chosen %d" % entry_id)
        await writer.drain()
    findings = (await stored.audit(writer)).findings
    assert {f.severity for f in findings} <= {Severity.NOTE}


async def test_a_bookie_that_sheds_load_is_asked_again(stored):
    ledger = await stored.write()
    bookie = stored.cluster.members(ledger)[1]
    refused = []

    def shed(request):
        if isinstance(request, BatchRead) and len(refused) < 3:
            refused.append(request)
            return Status.TOO_MANY_REQUESTS
        return None

    bookie.on_request = shed
    assert await stored.found(ledger) == set()
    assert len(refused) == 3
