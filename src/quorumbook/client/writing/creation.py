"""Creates ledgers: checks their shape, chooses bookies, takes an id, writes the metadata.

A ledger begins on bookies with its first entry, and the key of that is the ledger's for good.
Ids can be guessed, so somebody may have been there first: the chosen bookies are asked while the
metadata is written, and an id of which one of them knows a ledger is given up for another; one
that the caller had reserved is refused.  An id that the caller chose is the caller's to know, and
is not asked about.

Somebody may also come after that look and before the first entry.  So bookies take the key of a
ledger before it is given out: they are sent a last add confirmed of nothing, and the id is given
up for another one if a bookie refuses the key.  That is one more answer to wait for, which those
who create very many ledgers would notice: of ledgers that a client creates within a tenth of a
second, only the first one's key is taken.  Two kinds have theirs taken always: those of a client
that has met such a stranger, by the look or by a refusal, and those that nobody writes soon.
A refusal says nothing about the bookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Protocol, Self

from quorumbook.client.cluster.bookies import ClientBookies
from quorumbook.client.context import Context
from quorumbook.client.options import NewLedgerOptions
from quorumbook.client.writing.unwritten import waits
from quorumbook.env import logger, patience
from quorumbook.errors import LedgerExistsError, LocalProtocolError, NotEnoughBookiesError
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.labels import CUSTOM_KEY, show_labels
from quorumbook.ledger.placement.policy import Shape
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.status import Status, status_of_v2
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

_log = logger("client")
_LEDGER_IDS = range(1 << 63)
#: So much longer than the metadata a bookie may be silent about a new id.
_SILENCE_S = 0.1
#: So long it may be silent about a key, where nobody is known to want it, and where somebody is.
_CLAIM_S, _CLAIM_AMONG_STRANGERS_S = 0.1, 1.0
#: A refused key is known at once, and what it was refused for a sync later.
_LOOK_AGAIN_S = 0.005
#: Of ledgers that are created so soon after each other one has its key taken.
_CLAIM_EVERY_NS = 100_000_000
#: Ids given up before a ledger is not created; metadata put back from a backup cost many, too.
_GIVEN_UP_MAX = 10_000


class NewLedgers(Protocol):
    """What is needed of ``metadata.ledgers.LedgerManager``."""

    async def create(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Record a ledger; return its metadata as written, and their version."""
        ...

    async def delete(self, ledger_id: LedgerId, version: int, incarnation: int | None) -> None:
        """Take that back."""
        ...


class LedgerIds(Protocol):
    """What is needed of ``metadata.ids.LedgerIdGenerator``."""

    async def next_id(self) -> LedgerId:
        """Return an id that nobody has had."""
        ...


async def create(
    context: Context,
    ledgers: NewLedgers,
    ids: LedgerIds,
    shape: Shape,
    *,
    ledger_id: LedgerId | None,
    is_reserved: bool = False,
    password: bytes,
    digest_type: DigestType,
    custom_metadata: Mapping[str, bytes],
    bookie_labels: Mapping[str, str],
    may_shrink: bool,
) -> tuple[LedgerMetadata, int]:
    """Create a ledger and return its metadata and their version.

    Args:
        context: The client's.
        ledgers: Where it is recorded.
        ids: Where ids come from.
        shape: How it is spread.
        ledger_id: The id to take; None: a new one.
        is_reserved: It is one that ``ids`` gave out, which strangers can guess.
        password: Who writes or recovers it must know it.
        digest_type: How entries are protected.
        custom_metadata: Stored with it.
        bookie_labels: What its bookies must carry.
        may_shrink: Where bookies are few, a smaller ensemble will do, down to the write quorum.

    Raises:
        ConfigError: a size is out of bounds, or does not fit the others.
        LocalProtocolError: the id is impossible, or the shape for the placement policy.
        NotEnoughBookiesError: too few bookies take writes, or too few of those with the labels.
        LedgerExistsError: there is a ledger of the given id, or a bookie knows the reserved one, or
            very many new ones.
    """
    _check_shape(shape)
    if ledger_id is not None and ledger_id not in _LEDGER_IDS:
        raise LocalProtocolError(f"a ledger id must be between 0 and 2**63 - 1, not {ledger_id}")
    custom = dict(custom_metadata)
    if bookie_labels:
        custom[CUSTOM_KEY] = show_labels(bookie_labels).encode()
    ensemble = await _new_ensemble(context.bookies, shape, custom, may_shrink=may_shrink)
    # Bookies that authenticate let no stranger make them know a ledger.
    is_guessable = ledger_id is None or is_reserved
    asked = ensemble if is_guessable and not context.options.auth_plugin else ()
    given_up = 0
    while True:
        metadata = LedgerMetadata(
            ledger_id=await ids.next_id() if ledger_id is None else ledger_id,
            ensemble_size=len(ensemble),
            write_quorum_size=shape.write_quorum_size,
            ack_quorum_size=shape.ack_quorum_size,
            fragments=(Fragment(0, ensemble),),
            digest_type=DigestType(digest_type),
            password=password,
            ctime_ms=context.env.clock.wall_ms(),
            is_ctime_stored=True,
            custom_metadata=custom,
        )
        with _Probe(context, asked, metadata.ledger_id) as probe:
            try:
                made, version = await ledgers.create(metadata)
            except LedgerExistsError:
                # Somebody chose this id by hand; the generator has others.
                if ledger_id is not None:
                    raise
                continue
            is_ours = not await probe.finds_a_ledger()
        if is_ours and asked and (waits(custom) or _is_claim_due(context)):
            is_ours = await _take_key(context, made, password)
        if is_ours:
            return made, version
        context.has_met_strangers = True
        given_up += 1
        _log.warning("ledger id %d is given up: a bookie holds entries of it", made.ledger_id)
        await ledgers.delete(made.ledger_id, version, made.incarnation)
        if given_up == _GIVEN_UP_MAX:
            raise _all_taken(given_up, made.ledger_id)
        if ledger_id is not None:
            raise _taken(ledger_id)


def _check_shape(shape: Shape) -> None:
    """Refuse sizes, or do nothing."""
    sizes = shape.ensemble_size, shape.write_quorum_size, shape.ack_quorum_size
    # Those of a client's ledgers are the same again and again.
    check = _known_good if all(type(size) is int for size in sizes) else _known_good.__wrapped__
    check(*sizes)


@functools.cache
def _known_good(ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
    NewLedgerOptions(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
    )


def _taken(ledger_id: LedgerId) -> LedgerExistsError:
    return LedgerExistsError(
        f"a bookie holds entries of ledger {ledger_id}, which nobody has created: "
        "reserve another id"
    )


def _all_taken(count: int, last_id: LedgerId) -> LedgerExistsError:
    return LedgerExistsError(
        f"bookies hold entries of {count} ledgers, the last one {last_id}, which "
        "nobody has created: strangers use the next ids; have bookies authenticate clients"
    )


def _is_claim_due(context: Context) -> bool:
    now_ns, last_ns = context.env.clock.now_ns(), context.last_claim_ns
    if context.has_met_strangers or last_ns is None or now_ns - last_ns >= _CLAIM_EVERY_NS:
        context.last_claim_ns = now_ns
        return True
    return False


async def _take_key(context: Context, metadata: LedgerMetadata, password: bytes) -> bool:
    """Have the bookies of a new ledger know its key; return False if one of them knows another.

    Those of Java are not asked, as a key without entries would end their readers.
    """
    assert metadata.digest_type is not None, "it was written just now"
    key = master_key(password)
    packet = digester(metadata.digest_type, password).lac_packet(
        metadata.ledger_id, INVALID_ENTRY_ID
    )

    def encode(txn_id: int) -> bytes:
        return v3.encode_write_lac(txn_id, metadata.ledger_id, INVALID_ENTRY_ID, key, packet)

    bookies = context.bookies
    asked = {
        each: bookies.control(each).request("the key of a new ledger", encode)
        for each in metadata.fragments[0].ensemble
        if bookies.placement.takes_key_before_entries(each)
    }
    if not asked:
        return True
    wait_s = _CLAIM_AMONG_STRANGERS_S if context.has_met_strangers else _CLAIM_S
    try:
        with contextlib.suppress(TimeoutError):
            async with patience.timeout(wait_s):
                await asyncio.wait(asked.values())
        refused = [each for each, answer in asked.items() if _is_refused(answer)]
        # A bookie that lets nobody in without a proof refuses too, and knows nothing of the ledger.
        is_taken = bool(refused) and await _is_known(context, refused, metadata.ledger_id, wait_s)
        context.has_met_strangers |= is_taken
        return not is_taken
    finally:
        for answer in asked.values():
            answer.cancel()


async def _is_known(
    context: Context, bookie_ids: Collection[BookieId], ledger_id: LedgerId, wait_s: float
) -> bool:
    """Tell whether one of them knows the ledger, as soon as what it heard is durable there."""
    with contextlib.suppress(TimeoutError):
        async with patience.timeout(wait_s):
            while True:
                with _Probe(context, bookie_ids, ledger_id) as probe:
                    if await probe.finds_a_ledger():
                        return True
                await asyncio.sleep(_LOOK_AGAIN_S)
    return False


def _is_refused(answer: asyncio.Future[v3.V3Response]) -> bool:
    if not answer.done() or answer.exception() is not None:
        return False
    return answer.result().status is Status.UNAUTHORIZED


class _Probe:
    """Asks bookies whether they know a ledger, while its metadata is written.

    It is a plain read, which every bookie answers.  What is silent for longer than the metadata
    took and a little more is not waited for: creating a ledger is not held up by a slow bookie.
    """

    def __init__(
        self, context: Context, ensemble: Collection[BookieId], ledger_id: LedgerId
    ) -> None:
        self._answers = [context.bookies.fast(each).read(ledger_id, 0) for each in ensemble]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_up()

    def _give_up(self) -> None:
        for future in self._answers:
            future.cancel()

    async def finds_a_ledger(self) -> bool:
        """Tell whether one of those that answer knows it."""
        if not all(answer.done() for answer in self._answers):
            timer = patience.Timer(_SILENCE_S, self._give_up)
            try:
                await asyncio.wait(self._answers)
            finally:
                timer.cancel()
        return any(map(_knows_a_ledger, self._answers))


def _knows_a_ledger(answer: asyncio.Future[v2.ReadAnswer]) -> bool:
    if answer.cancelled() or answer.exception() is not None:
        return False
    return status_of_v2(answer.result().code) in (Status.OK, Status.NO_ENTRY)


async def _new_ensemble(
    bookies: ClientBookies, shape: Shape, custom: Mapping[str, bytes], *, may_shrink: bool
) -> tuple[BookieId, ...]:
    while True:
        try:
            return await bookies.new_ensemble(shape, custom)
        except NotEnoughBookiesError:
            if not may_shrink or shape.ensemble_size == shape.write_quorum_size:
                raise
            shape = dataclasses.replace(shape, ensemble_size=shape.ensemble_size - 1)
            _log.info("bookies are few: trying an ensemble of %d", shape.ensemble_size)
