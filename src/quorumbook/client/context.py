"""What all parts of one client share."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from quorumbook.client.cluster.bookies import ClientBookies
from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.ticker import Ticker
from quorumbook.client.waiting.concurrency import ConcurrencyLimit, LoopTurns
from quorumbook.env import Complaint, Env, logger, patience
from quorumbook.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    QuorumbookError,
    UnauthorizedError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.store import MetadataStore

_log = logger("client")
T = TypeVar("T")
#: A metadata store that cannot be reached is tried again after this long.
_METADATA_RETRY_S = 0.2


class Ledgers(Protocol):
    """What is needed of ``metadata.ledgers.LedgerManager``."""

    async def read(
        self, ledger_id: LedgerId, watch: Callable[[], None] | None = None
    ) -> tuple[LedgerMetadata, int]:
        """Return a ledger's metadata and its version."""
        ...

    async def read_many(
        self, ledger_ids: Sequence[LedgerId]
    ) -> list[LedgerMetadata | MetadataFormatError | None]:
        """Return the metadata of ledgers, what is wrong with them, or None for one not there."""
        ...

    async def read_again(
        self, metadata: LedgerMetadata, watch: Callable[[], None] | None = None
    ) -> tuple[LedgerMetadata, int]:
        """Return what the same ledger's metadata is by now, and its version."""
        ...

    async def write(
        self, metadata: LedgerMetadata, version: int, *, in_session: bool = False
    ) -> int:
        """Replace a ledger's metadata of that version; return the new version."""
        ...

    async def write_alone(self, metadata: LedgerMetadata, version: int) -> int:
        """Do so as one of several that would write the same, and know who it was."""
        ...


@dataclass(slots=True)
class Context:
    """Shared by the writers and readers of a client."""

    env: Env
    bookies: ClientBookies
    ledgers: Ledgers
    options: ClientOptions
    ticker: Ticker
    #: Of the metadata; closed with the client.
    store: MetadataStore
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    #: Somebody whom the metadata do not know has used an id of ours at a bookie.
    has_met_strangers: bool = False
    #: When bookies were last asked to take a new ledger's key because it was time.
    last_claim_ns: int | None = None
    #: Writers that publish their last add confirmed while they are idle.
    lac_limit: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(at_a_time=4))
    #: Writers that have something to pack and send.
    send_turns: LoopTurns = field(default_factory=lambda: LoopTurns(at_a_time=64))

    def unwatch(self, watch: Callable[[], None]) -> None:
        """Forget a watch, wherever it waits."""
        self.store.unwatch(watch)

    def spawn(
        self, coroutine: Coroutine[Any, Any, T], *, is_awaited: bool = False
    ) -> asyncio.Task[T]:
        """Run a task that the client cancels when it closes.

        Args:
            coroutine: What to run.
            is_awaited: Somebody learns of its failure; else it is logged.
        """
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended_awaited if is_awaited else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the client failed: %r", error, exc_info=error)

    def _ended_awaited(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # if nobody waits any more, nobody wants to know


class _Client(Protocol):
    def _running(self) -> Context: ...


def client_context(client: _Client) -> Context:
    """Return what the parts of a started client share, for what is built on a client."""
    return client._running()  # noqa: SLF001 - programs get no handle on it


def client_store(client: _Client) -> MetadataStore:
    """Return the metadata store of a started client; it is closed with the client."""
    return client_context(client).store


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raise UnauthorizedError unless a ledger was created with this password."""
    stored = metadata.password
    if stored is not None and not hmac.compare_digest(stored, password):
        raise UnauthorizedError(
            f"wrong password for ledger {metadata.ledger_id}", ledger_id=metadata.ledger_id
        )


async def change_metadata(
    context: Context,
    metadata: LedgerMetadata,
    version: int,
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
    *,
    timeout_s: float,
    in_session: bool = False,
) -> tuple[LedgerMetadata, int]:
    """Compare and set until it went through, was found done, or ``change`` raises.

    After a lost race the metadata is read again and ``change`` decides anew.  A write whose
    outcome is unknown, because the store did not answer, is found done or repeated in the same
    way.

    Args:
        context: The client's.
        metadata: As known now.
        version: Its version.
        change: Returns what to write, or None if nothing is left to write.
        timeout_s: How long to wait for a store that cannot be reached.
        in_session: See ``LedgerManager.write``.

    Returns:
        The metadata as it stands then, and its version.

    Raises:
        MetadataUnavailableError: the store did not come back in time.
    """
    try:
        async with patience.timeout(timeout_s):
            return await _change_metadata(context, metadata, version, change, in_session)
    except QuorumbookError:
        raise
    except TimeoutError as error:
        raise MetadataUnavailableError(
            f"the metadata store did not take a change of ledger {metadata.ledger_id} within "
            f"{timeout_s:g} s; whether it takes it later is unknown",
            ledger_id=metadata.ledger_id,
        ) from error


async def _change_metadata(
    context: Context,
    metadata: LedgerMetadata,
    version: int,
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
    in_session: bool,
) -> tuple[LedgerMetadata, int]:
    must_read = False
    complaint = Complaint(_log)
    while True:
        try:
            if must_read:
                metadata, version = await context.ledgers.read_again(metadata)
                must_read = False
            wanted = change(metadata)
            if wanted is None:
                return metadata, version
            must_read = True
            version = await context.ledgers.write(wanted, version, in_session=in_session)
            return wanted, version
        except MetadataVersionConflict as conflict:
            if not must_read:
                raise  # ``change`` itself found the ledger in another state
            _log.debug("ledger %d: %s", metadata.ledger_id, conflict)
        except MetadataUnavailableError as error:
            now_ns = context.env.clock.now_ns()
            complaint.say(f"ledger {metadata.ledger_id}: {error}; trying again", now_ns)
            await asyncio.sleep(_METADATA_RETRY_S)
