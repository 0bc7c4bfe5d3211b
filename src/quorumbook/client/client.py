"""The door: connect to a cluster, create, open, list and delete its ledgers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator, Mapping, MutableSequence
from typing import Any, Unpack

from quorumbook.client.cluster.bookies import ClientBookies
from quorumbook.client.cluster.racks import rack_source
from quorumbook.client.context import Context
from quorumbook.client.opening import open_reader
from quorumbook.client.options import ClientOptions, LedgerWriterKeywords, with_keywords
from quorumbook.client.reading.listing import metadata_of
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.tables.tabular import TabularCluster
from quorumbook.client.transport.handshake import security_of
from quorumbook.client.transport.ticker import Ticker, tick_s
from quorumbook.client.waiting.closing import Closing
from quorumbook.client.waiting.opening import Opening
from quorumbook.client.waiting.outcomes import copy_error, each_within, limit
from quorumbook.client.writing.creation import create
from quorumbook.client.writing.unwritten import UNWRITTEN, claim
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env import Env, logger
from quorumbook.env.forks import watch
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    ClientClosedError,
    LocalProtocolError,
    MetadataFormatError,
    RequestTimeoutError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.ledger.placement.policy import Shape
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.election import Election, named_election
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import raise_damaged
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.options import takes
from quorumbook.protocol.digest import DigestType

_log = logger("client")


@takes(ClientOptions)
def connect(metadata_uri: str, **options: Any) -> BookKeeper:
    """Return a client of the cluster behind a metadata URI.

    Use it as ``async with connect(uri) as bk:`` or ``bk = await connect(uri)``.

    Args:
        metadata_uri: Such as ``sqlite:///data/metadata.db``.
        options: Those of ``ClientOptions``.

    Raises:
        ConfigError: an option or the URI is not known.
    """
    return BookKeeper(metadata_uri, options=ClientOptions.of(options))


class BookKeeper(TabularCluster, Closing):
    """A client of one cluster; made by ``connect``.

    All ledgers of a client share one connection of each kind to each bookie.  Closing the client
    aborts its open writers: their ledgers stay open until somebody recovers them.
    """

    def __init__(
        self, metadata_uri: str, *, options: ClientOptions | None = None, env: Env | None = None
    ) -> None:
        """Prepare; nothing happens before ``start``."""
        self._metadata_uri = metadata_uri
        self._options = options or ClientOptions()
        self._env = env or Env()
        self._security = security_of(self._options, self._env)
        self._store: MetadataStore | None = None
        self._registration: BookieRegistration | None = None
        self._ledgers: LedgerManager | None = None
        self._ids: LedgerIdGenerator | None = None
        #: Ids that were given out and of which no ledger was made yet.
        self._reserved_ids: set[LedgerId] = set()
        self._context: Context | None = None
        self._handles: dict[LedgerWriter | LedgerReader, None] = {}
        self._is_closed = False
        #: What a child made by fork is told.
        self._forked: LocalProtocolError | None = None

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open" if self._context else "not started"
        # What follows the path may be secret.
        return f"<BookKeeper {self._metadata_uri.partition('?')[0]}, {state}>"

    # Life ----------------------------------------------------------------------------------

    async def start(self) -> BookKeeper:
        """Open the metadata store and look whether there is a cluster.

        Raises:
            ClusterNotInitializedError: there is no cluster; the message says how to make one.
            MetadataUnavailableError: the store cannot be reached.
        """
        if self._forked is not None:
            raise self._forked
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._context is not None:
            return self
        options, env = self._options, self._env
        store = await self._open_store()
        try:
            await read_instance_id(store)
            self._registration = BookieRegistration(store)
            ticker = Ticker(env, tick_s(options))
            racks = rack_source(env, RackTable(store), options.placement)
            bookies = ClientBookies(env, self._registration, racks, options, ticker, self._security)
        except BaseException:
            await store.close()
            raise
        watch(self, BookKeeper._abandon)
        self._store = store
        self._ledgers = LedgerManager(store)
        self._ids = LedgerIdGenerator(store)
        self._context = Context(env, bookies, self._ledgers, options, ticker, store)
        return self

    async def _open_store(self) -> MetadataStore:
        """Open the metadata store; a simulation has one of its own."""
        timeout_s = self._options.session_timeout_s
        return await open_store(self._metadata_uri, self._env, session_timeout_s=timeout_s)

    async def close(self) -> None:
        """Abort writers that are not closed, and release all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        error = ClientClosedError("the client is closed")
        for handle in list(self._handles):
            if isinstance(handle, LedgerWriter) and not handle.is_closed:
                _log.warning(
                    "ledger %d is left open: the client was closed before its writer", handle.id
                )
            handle._stop(error)  # noqa: SLF001 - a handle is its client's
        context = self._context
        if context is not None:
            context.ticker.close()
            await cancel_and_wait(context.tasks)
            await context.bookies.close()
        if self._ids is not None:
            with contextlib.suppress(RequestTimeoutError):  # the session's end does the same
                async with self._limit("closing"):
                    await self._ids.close()
        if self._registration is not None:
            await self._registration.close()
        if self._store is not None:
            await self._store.close()

    def __await__(self) -> Generator[Any, None, BookKeeper]:
        return self.start().__await__()

    async def __aenter__(self) -> BookKeeper:
        return await self.start()

    @property
    def metadata_uri(self) -> str:
        """What the client was connected with."""
        return self._metadata_uri

    @property
    def options(self) -> ClientOptions:
        """The options of this client."""
        return self._options

    # Ledgers -------------------------------------------------------------------------------

    def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        explicit_entry_ids: bool = False,
        deferred_sync: bool = False,
        bookie_labels: Mapping[str, str] | None = None,
        **options: Unpack[LedgerWriterKeywords],
    ) -> Opening[LedgerWriter]:
        """Create a ledger and write it: ``async with bk.create_ledger() as writer``, or await it.

        Args:
            ensemble_size: How many bookies share the ledger.
            write_quorum_size: How many of them store each entry.
            ack_quorum_size: How many of them must have synced an entry before it is confirmed.
            password: A client must know it to write or recover the ledger.
            digest_type: How entries are protected.
            custom_metadata: Stored with the ledger; ``list_ledgers`` can filter by it.
            ledger_id: The id to take; a new one is generated if not given.
            explicit_entry_ids: ``append_at`` takes each entry's id from the caller; ``append``
                and its kin are refused.
            deferred_sync: Bookies acknowledge entries before they sync them; ``force`` makes
                bookies sync, and only ``force`` moves the last add confirmed.
            bookie_labels: Labels that every bookie of the ledger must carry, also a bookie that
                replaces another later; by default those of the client's options.
            options: Those of ``LedgerWriterKeywords``, where this writer has them otherwise than
                its client.

        Raises:
            NotEnoughBookiesError: fewer than ``ensemble_size`` bookies take writes and carry the
                labels (with the option ``opportunistic_striping``: fewer than
                ``write_quorum_size``), or they cannot be spread as the placement policy enforces.
            LedgerExistsError: there is a ledger of the given id.
            ConfigError: a size is out of bounds, or does not fit the others.
            LocalProtocolError: the sizes contradict the placement policy.
        """
        own = with_keywords(self._options, options, bookie_labels)
        shape = Shape(ensemble_size, write_quorum_size, ack_quorum_size)

        async def create_and_write() -> LedgerWriter:
            metadata, version = await self._create(
                own, shape, ledger_id, password, digest_type, custom_metadata or {}
            )
            return self._writer(own, metadata, version, password, deferred_sync, explicit_entry_ids)

        return Opening(create_and_write)

    async def reserve_ledger_id(self) -> LedgerId:
        """Return an id that no ledger has had, for ``create_ledger`` to make one of it.

        A program can first store the id, and then create the ledger. If it dies in between, the
        stored id leads to the ledger that is to be deleted.
        If somebody has guessed the id and used it at a bookie, ``create_ledger`` raises
        ``LedgerExistsError``: reserve another id.
        """
        self._running()
        assert self._ids is not None
        async with self._limit("reserving a ledger id"):
            ledger_id = await self._ids.next_id()
        self._reserved_ids.add(ledger_id)
        return ledger_id

    async def create_unwritten_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum_size: int = 3,
        ack_quorum_size: int = 2,
        password: bytes = b"",
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ledger_id: LedgerId | None = None,
        bookie_labels: Mapping[str, str] | None = None,
    ) -> LedgerId:
        """Create a ledger for some process to write later, and return its id.

        The arguments are those of ``create_ledger``.  Until ``claim_unwritten_ledger``, the ledger
        has a mark in its custom metadata, so that only one claim succeeds.
        """
        self._running()
        metadata, _ = await self._create(
            with_keywords(self._options, {}, bookie_labels),
            Shape(ensemble_size, write_quorum_size, ack_quorum_size),
            ledger_id,
            password,
            digest_type,
            {**(custom_metadata or {}), UNWRITTEN: b"1"},
        )
        return metadata.ledger_id

    def claim_unwritten_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes = b"",
        deferred_sync: bool = False,
        **options: Unpack[LedgerWriterKeywords],
    ) -> Opening[LedgerWriter]:
        """Become the writer of a ledger that ``create_unwritten_ledger`` made.

        Use it as ``async with bk.claim_unwritten_ledger(ledger_id) as writer``, or await it.

        Args:
            ledger_id: Which.
            password: The one it was created with.
            deferred_sync: As in ``create_ledger``.
            options: Those of ``LedgerWriterKeywords``, where this writer has them otherwise than
                its client.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
            UnauthorizedError: wrong password.
            LedgerClosedError: the ledger has, or had, a writer, or was recovered.
        """
        own = with_keywords(self._options, options)

        async def claim_and_write() -> LedgerWriter:
            context = self._running()
            async with self._limit("claiming a ledger"):
                metadata, version = await claim(context, ledger_id, password)
            return self._writer(own, metadata, version, password, deferred_sync)

        return Opening(claim_and_write)

    def open_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes = b"",
        recover: bool = True,
        accept_loss: bool = False,
        digest_type: DigestType | None = None,
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading: ``async with bk.open_ledger(ledger_id) as reader``, or await.

        With recovery, a ledger that is not closed is taken over: its writer is fenced out, its
        end is found, and it is closed there.  Without recovery, the ledger can be read while it is
        being written, up to the last add confirmed.

        Args:
            ledger_id: Which.
            password: The one it was created with.
            recover: Whether to take it over.
            accept_loss: Close it even if bookies may have lost the next entry, and none has it.
            digest_type: Only for ledgers of old writers, whose metadata do not say it.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
            UnauthorizedError: wrong password.
            LedgerRecoveryError: too few bookies are there to recover it now.
        """

        async def open_it() -> LedgerReader:
            return await self._open(ledger_id, (password, recover, accept_loss, digest_type))

        return Opening(open_it)

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger; bookies collect its entries later.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
        """
        self._running()
        assert self._ledgers is not None
        async with self._limit("deleting a ledger"):
            await self._ledgers.delete(ledger_id)

    async def ledger_metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what the metadata store says of a ledger.

        Raises:
            NoSuchLedgerInMetadataError: there is no such ledger.
        """
        context = self._running()
        async with self._limit("reading metadata"):
            metadata, _ = await context.ledgers.read(ledger_id)
        return metadata

    async def list_ledgers(
        self,
        *,
        state: LedgerState | None = None,
        custom_metadata: Mapping[str, bytes] | None = None,
        damaged: MutableSequence[MetadataFormatError] | None = None,
    ) -> AsyncGenerator[LedgerMetadata, None]:
        """Yield the metadata of all ledgers, ascending by id.

        Args:
            state: Only ledgers in this state.
            custom_metadata: Only ledgers that carry all of these.
            damaged: Takes an error for each ledger whose metadata cannot be understood.

        Raises:
            MetadataFormatError: metadata of a ledger cannot be understood, and ``damaged`` was not
                given; raised after all other ledgers were yielded.
        """
        context = self._running()
        errors = [] if damaged is None else damaged
        wanted = dict(custom_metadata or {}).items()
        found = metadata_of(context, self.list_ledger_ids(), errors)
        async with contextlib.aclosing(found):
            async for metadata in found:
                is_in_state = state is None or metadata.state is state
                if is_in_state and wanted <= metadata.custom_metadata.items():
                    yield metadata
        if damaged is None:
            raise_damaged(errors)

    async def list_ledger_ids(self) -> AsyncGenerator[LedgerId, None]:
        """Yield the ids of all ledgers, ascending."""
        self._running()
        assert self._ledgers is not None
        seconds = self._options.operation_timeout_s
        async for ledger_id in each_within(self._ledgers.list(), seconds, "listing ledgers"):
            yield ledger_id

    async def bookies(self) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
        """Return the writable and the read-only bookies that are registered now."""
        bookies = self._running().bookies
        async with self._limit("reading the registrations"):
            return await bookies.writable(), await bookies.read_only()

    def election(self, name: str, candidate: str = "") -> Election:
        """Return a candidate of an election. The election need not exist before.

        An election only keeps processes from doing the same work at the same time.  It gives no
        safety: a leader that was paused still believes that it leads while another one
        does.  What makes a takeover safe is the fence: the new leader opens its predecessor's
        ledger with recovery, or becomes the writer of its stream, before it does anything else.

        Args:
            name: The election's name; all candidates of this name stand in the same election.
            candidate: The candidate's name, which no other may have; made up if not given.

        Raises:
            LocalProtocolError: an election cannot have that name.
        """
        store = self._running().store
        return named_election(store, TreePaths(store.ledgers_root).elections, name, candidate)

    # Inside --------------------------------------------------------------------------------

    def _abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: let everything fail that is tried with this client."""
        self._forked = error
        self._is_closed = True
        for handle in list(self._handles):
            handle._abandon(error, may_act=may_act)  # noqa: SLF001 - as above

    def _running(self) -> Context:
        if self._forked is not None:
            raise copy_error(self._forked)
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._context is None:
            raise LocalProtocolError("the client is not started: enter its `with` block")
        return self._context

    async def _open(
        self, ledger_id: LedgerId, how: tuple[bytes, bool, bool, DigestType | None]
    ) -> LedgerReader:
        context = self._running()
        async with self._limit("opening a ledger"):
            reader = await open_reader(context, ledger_id, *how, self._forget)
        self._handles[reader] = None
        return reader

    def _limit(self, what: str) -> contextlib.AbstractAsyncContextManager[None]:
        return limit(self._options.operation_timeout_s, what)

    async def _create(
        self,
        options: ClientOptions,
        shape: Shape,
        ledger_id: LedgerId | None,
        password: bytes,
        digest_type: DigestType,
        custom_metadata: Mapping[str, bytes],
    ) -> tuple[LedgerMetadata, int]:
        context = self._running()
        assert self._ledgers is not None
        assert self._ids is not None
        is_reserved = ledger_id in self._reserved_ids
        if ledger_id is not None:
            self._reserved_ids.discard(ledger_id)
        async with self._limit("creating a ledger"):
            return await create(
                context, self._ledgers, self._ids, shape, ledger_id=ledger_id,
                is_reserved=is_reserved, password=password, digest_type=digest_type,
                custom_metadata=custom_metadata, bookie_labels=options.bookie_labels,
                may_shrink=options.opportunistic_striping,
            )  # fmt: skip

    def _writer(
        self,
        options: ClientOptions,
        metadata: LedgerMetadata,
        version: int,
        password: bytes,
        is_deferred_sync: bool,
        explicit_entry_ids: bool = False,
    ) -> LedgerWriter:
        writer = LedgerWriter(
            self._running(), options, metadata, version, password, self._forget,
            is_deferred_sync=is_deferred_sync, explicit_entry_ids=explicit_entry_ids,
        )  # fmt: skip
        self._handles[writer] = None
        return writer

    def _forget(self, handle: LedgerWriter | LedgerReader) -> None:
        self._handles.pop(handle, None)
