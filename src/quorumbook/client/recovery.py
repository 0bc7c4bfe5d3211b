"""Drives the recovery machine: fences a ledger's bookies, finds its end, closes it there.

Everything goes over the v3 connections, which have a reserve at the bookies: a recovery gets
through while writers are held back.  What to ask, what an answer proves and when to close is
decided by ``ledger.recovery``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from quorumbook.client.context import Context
from quorumbook.client.reading.entries import blamed
from quorumbook.env import logger
from quorumbook.errors import (
    DigestMismatchError,
    InternalError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NotEnoughBookiesError,
    QuorumbookError,
    TooManyRequestsError,
)
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.ledger.machines.recovery_effects import (
    ChooseReplacement,
    Close,
    Done,
    FenceRead,
    MarkInRecovery,
    RecoveryFailed,
    RecoveryRead,
    ReleasePayloads,
    WriteBack,
)
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import Digester, entry_header, master_key
from quorumbook.protocol.status import Status, error_for
from quorumbook.protocol.v3 import client as v3

_log = logger("client.recovery")
#: An overloaded bookie is asked again so often, each time twice as late.
_SHED_ATTEMPTS = 5
_SHED_RETRY_S = 0.1
#: Entries asked for at once before it is known how large they are.
_FIRST_BATCH_ENTRIES = 4
_METADATA_ATTEMPTS = 25
_METADATA_RETRY_S = 0.2

_OnResponse = Callable[[v3.V3Response], None]
_OnError = Callable[[QuorumbookError], None]


async def recover(
    context: Context,
    digester: Digester,
    metadata: LedgerMetadata,
    version: int,
    password: bytes,
    *,
    accept_loss: bool = False,
) -> tuple[LedgerMetadata, int]:
    """Recover a ledger and return its closed metadata and their version.

    With ``accept_loss`` it also ends where no bookie that knows has the next entry, although
    others may have lost it.

    Raises:
        UnauthorizedError: the password is not the ledger's.
        LedgerRecoveryError: too few bookies gave a definite answer; the ledger is not closed.
        NotEnoughBookiesError: what was found cannot be stored on an ack quorum.
    """
    driver = _RecoveryDriver(context, digester, metadata, version, password, accept_loss)
    return await driver.run()


class _RecoveryDriver:
    """One recovery under way."""

    def __init__(
        self,
        context: Context,
        digester: Digester,
        metadata: LedgerMetadata,
        version: int,
        password: bytes,
        accept_loss: bool,
    ) -> None:
        self._context = context
        self._digester = digester
        self._ledger_id = metadata.ledger_id
        #: As the recovery began; what a ledger is confined to never changes.
        self._metadata = metadata
        self._version = version
        self._master_key = master_key(password)
        most = context.options.recovery_batch_entries
        self._state = RecoveryState(
            metadata,
            batch_entries=min(most, _FIRST_BATCH_ENTRIES),
            gives_up_unknown=accept_loss,
        )
        self._largest_bytes = 1
        #: Payload and length of entries that are written back.
        self._found: dict[EntryId, tuple[bytes, int]] = {}
        self._sealed: dict[EntryId, bytes] = {}
        #: Bookies that did not take what was written back: none is tried in another place.
        self._refused: set[BookieId] = set()
        self._requests: set[asyncio.Future[v3.V3Response]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: asyncio.Future[LedgerMetadata] = asyncio.get_running_loop().create_future()

    async def run(self) -> tuple[LedgerMetadata, int]:
        """Recover."""
        _log.info("ledger %d is being recovered", self._ledger_id)
        try:
            self._act()
            metadata = await self._done
        finally:
            for task in self._tasks:
                task.cancel()
            for timer in self._timers:
                timer.cancel()
            for request in self._requests:
                request.cancel()
        _log.info("ledger %d is closed at entry %d", self._ledger_id, metadata.last_entry_id)
        return metadata, self._version

    def _act(self) -> None:
        try:
            for effect in self._state.poll():
                self._carry_out(effect)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        failure = error
        if not isinstance(error, QuorumbookError):
            failure = InternalError(f"a recovery failed: {error!r}")
            failure.__cause__ = error
        if not self._done.done():
            self._done.set_exception(failure)

    def _carry_out(self, effect: object) -> None:
        if isinstance(effect, RecoveryRead):
            self._read(effect)
        elif isinstance(effect, WriteBack):
            self._write_back(effect)
        elif isinstance(effect, ReleasePayloads):
            for entry_id in [e for e in self._found if e <= effect.last_entry_id]:
                del self._found[entry_id]
                self._sealed.pop(entry_id, None)
        elif isinstance(effect, FenceRead):
            for index, bookie_id in effect.bookies:
                self._fence(index, bookie_id)
        elif isinstance(effect, MarkInRecovery):
            self._spawn(self._mark(effect.metadata))
        elif isinstance(effect, Close):
            self._spawn(self._close(effect.metadata))
        elif isinstance(effect, ChooseReplacement):
            self._spawn(self._choose(effect))
        elif isinstance(effect, Done):
            if not self._done.done():
                self._done.set_result(effect.metadata)
        elif isinstance(effect, RecoveryFailed) and not self._done.done():
            self._done.set_exception(effect.error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await coroutine
            except Exception as error:
                self._give_up(error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Bookies -------------------------------------------------------------------------------

    def _fence(self, index: int, bookie_id: BookieId) -> None:
        def encode(txn_id: int) -> bytes:
            return v3.encode_read(
                txn_id,
                self._ledger_id,
                INVALID_ENTRY_ID,
                master_key=self._master_key,
                is_high_priority=True,
            )

        def on_response(response: v3.V3Response) -> None:
            entry = response.body or b""
            self._digester.verify(entry, self._ledger_id, None)
            _, _, lac, length = entry_header(entry)
            self._state.on_fence_answer(index, lac, length)

        self._request(
            bookie_id, "a fence", encode, on_response, partial(self._state.on_fence_error, index)
        )

    def _read(self, effect: RecoveryRead) -> None:
        entry_id, index = effect.entry_id, effect.bookie_index

        def encode(txn_id: int) -> bytes:
            return v3.encode_read(
                txn_id,
                self._ledger_id,
                entry_id,
                master_key=self._master_key,
                is_high_priority=True,
            )

        def on_response(response: v3.V3Response) -> None:
            entry = response.body or b""
            self._digester.verify(entry, self._ledger_id, entry_id)
            length = entry_header(entry)[3]
            if self._state.on_entry(entry_id, index, length):
                self._found[entry_id] = self._digester.payload(entry), length
                self._largest_bytes = max(self._largest_bytes, len(entry))
                options = self._context.options
                fitting = max(1, options.read_ahead_bytes // self._largest_bytes)
                self._state.batch_entries = min(options.recovery_batch_entries, fitting)

        self._request(
            effect.bookie_id,
            "a recovery read",
            encode,
            on_response,
            partial(self._state.on_read_error, entry_id, index),
        )

    def _write_back(self, effect: WriteBack) -> None:
        entry_id, index, bookie_id = effect.entry_id, effect.bookie_index, effect.bookie_id
        entry = self._sealed.get(entry_id)
        if entry is None:
            payload, length = self._found[entry_id]
            entry = self._sealed[entry_id] = self._digester.seal(
                self._ledger_id, entry_id, effect.last_add_confirmed, length, payload
            )
        sealed = entry

        def encode(txn_id: int) -> bytes:
            return v3.encode_add(
                txn_id,
                self._ledger_id,
                entry_id,
                self._master_key,
                sealed,
                is_recovery=True,
                is_high_priority=True,
            )

        def on_response(response: v3.V3Response) -> None:
            del response
            self._state.on_written(entry_id, index, bookie_id)

        self._request(
            bookie_id,
            "a recovery add",
            encode,
            on_response,
            partial(self._state.on_write_error, entry_id, index, bookie_id),
        )

    def _request(
        self,
        bookie_id: BookieId,
        what: str,
        encode: Callable[[int], bytes],
        on_response: _OnResponse,
        on_error: _OnError,
        attempt: int = 0,
    ) -> None:
        request = self._context.bookies.control(bookie_id).request(what, encode)
        self._requests.add(request)

        def answered(future: asyncio.Future[v3.V3Response]) -> None:
            self._requests.discard(future)
            if future.cancelled() or self._done.done():
                return
            try:
                response = future.result()
                if response.status is not Status.OK:
                    raise error_for(response.status, ledger_id=self._ledger_id, bookie_id=bookie_id)
                on_response(response)
            except TooManyRequestsError as error:
                if attempt < _SHED_ATTEMPTS:
                    again = partial(
                        self._request, bookie_id, what, encode, on_response, on_error, attempt + 1
                    )
                    self._later(_SHED_RETRY_S * 2**attempt, again)
                    return
                on_error(error)
            except DigestMismatchError as error:
                on_error(blamed(error, bookie_id))
            except QuorumbookError as error:
                on_error(error)
            except Exception as error:
                self._give_up(error)
            self._act()

        request.add_done_callback(answered)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            callback()

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._timers.add(timer)

    async def _choose(self, effect: ChooseReplacement) -> None:
        self._refused.update(effect.failed.values())
        try:
            chosen = await self._context.bookies.replace(
                effect.failed,
                self._metadata,
                effect.ensemble,
                excluded=self._refused,
                is_needed=True,
            )
        except NotEnoughBookiesError:
            self._state.on_no_replacement()
        except QuorumbookError as error:
            self._state.fail(error)
        else:
            self._state.on_replacement(chosen)
        self._act()

    # Metadata ------------------------------------------------------------------------------

    async def _mark(self, wanted: LedgerMetadata) -> None:
        await self._write(wanted, partial(self._state.on_marked, wanted))

    async def _close(self, wanted: LedgerMetadata) -> None:
        await self._write(wanted, self._state.on_closed)

    async def _write(self, wanted: LedgerMetadata, on_written: Callable[[], None]) -> None:
        """Compare and set; if it is lost, or may have happened, hand over what stands there."""
        ledgers = self._context.ledgers
        must_read = False
        try:
            for attempt in range(_METADATA_ATTEMPTS):
                try:
                    if must_read:
                        metadata, self._version = await ledgers.read_again(wanted)
                        self._state.on_metadata(metadata)
                    else:
                        self._version = await ledgers.write(wanted, self._version)
                        on_written()
                    break
                except MetadataVersionConflict:
                    must_read = True
                    metadata, self._version = await ledgers.read_again(wanted)
                    self._state.on_metadata(metadata)
                    break
                except MetadataUnavailableError:
                    if attempt == _METADATA_ATTEMPTS - 1:
                        raise
                    must_read = True
                    await asyncio.sleep(_METADATA_RETRY_S)
        except QuorumbookError as error:
            self._state.fail(error)
        self._act()
