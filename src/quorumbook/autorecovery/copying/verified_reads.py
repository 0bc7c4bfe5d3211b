"""Reads of one replica, verified: what it gives of some entries, and what of them it lacks.

Other reads of entries take them from whoever has them; here one bookie is asked, and what it
does not give is a finding.  A connection that nobody used for a while may have died with the
bookie's machine, which is back: who asks first learns that, and asks once more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from quorumbook.client.context import Context
from quorumbook.env import Budget
from quorumbook.errors import (
    BookieError,
    ConnectionLostError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
    RemoteProtocolError,
    TooManyRequestsError,
    UnauthorizedError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.machines.copy import strands_to_move
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.protocol import availability
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.status import Status, error_for, status_of_v2
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

#: Entries asked for at once before it is known how large they are.
_UNWEIGHED_ENTRIES = 16
_MOST_ENTRIES = 10_000
_GUESSED_ENTRY_BYTES = 1024
T = TypeVar("T")


async def read_verified(
    context: Context,
    digester: Digester,
    ledger_id: LedgerId,
    bookie_id: BookieId,
    entry_ids: range,
) -> list[bytes]:
    """Return the bytes of the first of some entries, at least of one, as a bookie has them.

    Args:
        context: The client's.
        digester: The ledger's.
        ledger_id: The ledger.
        bookie_id: Who is asked.
        entry_ids: What for; one request if they follow each other, else as many as there are,
            together.

    Raises:
        DigestMismatchError: the first one is damaged.
        QuorumbookError: the bookie does not give the first one.
    """
    first = entry_ids[0]
    channel = context.bookies.fast(bookie_id)
    if entry_ids.step == 1:
        size_bytes = context.options.read_batch_bytes
        answer = await _answer(
            lambda: channel.read_run(ledger_id, first, len(entry_ids), size_bytes)
        )
        _raise_if_refused(answer.code, ledger_id, first, bookie_id)
        return _bodies(digester, answer, len(entry_ids))
    bodies: list[bytes] = []
    answers = await _answer(lambda: channel.read_row(ledger_id, entry_ids))
    for entry_id in entry_ids:
        single = answers[entry_id]
        try:
            _raise_if_refused(single.code, ledger_id, entry_id, bookie_id)
            digester.verify(single.entry, ledger_id, entry_id)
        except QuorumbookError:
            if not bodies:
                raise
            break
        bodies.append(single.entry)
    return bodies


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a bookie, and over a new connection if the present one breaks."""
    try:
        return await ask()
    except ConnectionLostError:
        return await ask()


def _raise_if_refused(
    code: int, ledger_id: LedgerId, entry_id: EntryId, bookie_id: BookieId
) -> None:
    if code:
        raise error_for(
            status_of_v2(code), ledger_id=ledger_id, entry_id=entry_id, bookie_id=bookie_id
        )


def _bodies(digester: Digester, answer: v2.BatchReadAnswer, wanted: int) -> list[bytes]:
    """Cut a batch into its entries, up to the first one that is damaged."""
    data, ledger_id, first = answer.data, answer.ledger_id, answer.first_entry_id
    try:
        spans = digester.verify_run(data, ledger_id, first)
    except DigestMismatchError as error:
        good = 0 if error.entry_id is None else error.entry_id - first
        if not good:
            raise
        spans = digester.verify_run(data, ledger_id, first, good)
    if not spans:
        raise DigestMismatchError(
            f"an answer without entry {first}", ledger_id=ledger_id, entry_id=first
        )
    head = digester.payload_offset
    return [data[start - head : end] for start, end in spans[:wanted]]


async def missing_entries(
    context: Context,
    digester: Digester,
    budget: Budget,
    metadata: LedgerMetadata,
    fragment: Fragment,
    position: int,
    last_entry_id: EntryId,
) -> list[range]:
    """Return the entries that a position of a fragment should hold, and does not give undamaged.

    The bookie's own list says what it knows nothing of; the rest is read and verified.

    Raises:
        QuorumbookError: the bookie cannot be asked.
    """
    bookie_id, ledger_id = fragment.ensemble[position], metadata.ledger_id
    listed = await listed_entries(context, ledger_id, bookie_id)
    missing: list[range] = []
    for strand in strands_to_move(metadata, fragment, last_entry_id, [position]):
        absent, present = split(strand.entry_ids, listed)
        missing += absent
        for run in present:
            missing += await _damaged(context, digester, budget, ledger_id, bookie_id, run)
    return missing


async def listed_entries(
    context: Context, ledger_id: LedgerId, bookie_id: BookieId
) -> list[tuple[EntryId, EntryId]] | None:
    """Return the runs of entries that a bookie says it has; None if it cannot say."""
    channel = context.bookies.control(bookie_id)
    response = await _answer(
        lambda: channel.request(
            "a list of entries", lambda txn_id: v3.encode_list_entries(txn_id, ledger_id)
        )
    )
    if response.status in (Status.NO_LEDGER, Status.NO_ENTRY):
        return []
    if response.status is not Status.OK or response.availability is None:
        return None
    try:
        return sorted(availability.decode_ranges(response.availability))
    except RemoteProtocolError:
        return None


def split(
    ids: range, runs: Sequence[tuple[EntryId, EntryId]] | None
) -> tuple[list[range], list[range]]:
    """Split ids by whether they lie in one of some runs; all do if nobody knows.

    Args:
        ids: ascending.
        runs: first and last id of each, ascending and apart.

    Returns:
        Those outside, and those inside; both as runs of the ids' distance.
    """
    if runs is None:
        return [], [ids]
    sides: tuple[list[range], list[range]] = ([], [])
    at = 0
    while at < len(ids):
        index = bisect_right(runs, ids[at], key=lambda run: run[0]) - 1
        inside = index >= 0 and ids[at] <= runs[index][1]
        # The id behind the last one on this side.
        if inside:
            end = runs[index][1] + 1
        else:
            end = runs[index + 1][0] if index + 1 < len(runs) else ids[-1] + 1
        stop = min(len(ids), at + max(1, -(-(end - ids[at]) // ids.step)))
        sides[inside].append(ids[at:stop])
        at = stop
    return sides


async def _damaged(
    context: Context,
    digester: Digester,
    budget: Budget,
    ledger_id: LedgerId,
    bookie_id: BookieId,
    ids: range,
) -> list[range]:
    """Read entries of one bookie and return those it does not give undamaged."""
    bad: list[range] = []
    count, entry_bytes = _UNWEIGHED_ENTRIES, _GUESSED_ENTRY_BYTES
    while ids:
        asked = ids[:count]
        await budget.take(len(asked) * entry_bytes)
        try:
            bodies = await read_verified(context, digester, ledger_id, bookie_id, asked)
        except (DigestMismatchError, BookieError) as error:
            if isinstance(error, UnauthorizedError | TooManyRequestsError):
                raise
            if isinstance(error, NoSuchLedgerError):
                return [*bad, ids]
            bad.append(ids[:1])
            # Damage comes in runs: do not ask for much in vain.
            count = 1 if isinstance(error, NoSuchEntryError) else max(1, count // 2)
            ids = ids[1:]
            continue
        entry_bytes = max(1, sum(map(len, bodies)) // len(bodies))
        fitting = max(1, context.options.read_batch_bytes // entry_bytes)
        count = min(_MOST_ENTRIES, fitting, 2 * max(count, len(bodies)))
        ids = ids[len(bodies) :]
    return bad
