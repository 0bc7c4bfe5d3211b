"""What all endpoints share: one client of the cluster, its facts, streams held open, jobs.

A client is opened with the first request that needs it, and again when the cluster was away, so
that a server without a cluster serves, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from quorumbook.admin.access.audit import AuditLog
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.admin.facts.cluster import ClusterFacts
from quorumbook.admin.facts.decoding import DecodingThread
from quorumbook.admin.http.audit_stream import AuditStream
from quorumbook.admin.http.jobs import Jobs
from quorumbook.admin.http.known_facts import KnownFacts
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.http.streams_held import HeldStreams
from quorumbook.bookie.http.access import read_tokens
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context, client_store
from quorumbook.env import logger, patience
from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError
from quorumbook.metadata.store import MetadataStore
from quorumbook.streams.format.names import check_stream_name

_log = logger("admin.service")

#: Requests that go through all ledgers at a time; each costs as much as all others together.
_WALKS_MAX = 2
_WALK_WAIT_S = 30.0


@contextlib.contextmanager
def own_files(what: str) -> Iterator[None]:
    """Tell clients that a file of ours is unfit, and the log alone which one and why.

    Raises:
        ApiError: It is.
    """
    try:
        yield
    except ConfigError as error:
        _log.error("cannot use %s: %s", what, error)
        raise ApiError(
            503, "server-misconfigured", f"this server cannot use {what}; its log says why"
        ) from None


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What a service is made with."""

    metadata_uri: str
    #: Makes a client that is not started.
    connect: Callable[[], BookKeeper]
    token_file: str = ""
    #: The tokens that bookies take over HTTP; the first is sent.
    bookie_token_file: str = ""
    io_rate_bytes: int = 0
    #: What ``/api/v1/config/server_config`` answers: options that are set, without secrets.
    settings: tuple[tuple[str, str], ...] = ()
    #: Ensemble, write quorum and ack quorum of a ledger that says nothing else.
    quorums: tuple[int, int, int] = (3, 3, 2)
    #: A stream that gets a record of each change; empty: none.
    audit_stream: str = ""
    #: The cluster's name, where there is one; tokens may be confined to it.
    cluster: str = ""
    #: Where its pages and paths begin, if not at the server's root.
    base: str = ""


class Service:
    """One cluster, for as long as the server runs."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.jobs = Jobs()
        self.audit = AuditLog()
        self.tokens = TokenFile(options.token_file) if options.token_file else None
        self.streams = HeldStreams(self.client, options.metadata_uri)
        self._audit_stream: AuditStream | None = None
        if options.audit_stream:
            check_stream_name(options.audit_stream)
            self._audit_stream = AuditStream(self.streams, options.audit_stream, self.name)
            self.audit.sink = self._audit_stream.put
        self.decoding = DecodingThread()
        #: All clusters of the server, this one included.
        self.neighbours: Sequence[Service] = (self,)
        self._client: BookKeeper | None = None
        self._lock = asyncio.Lock()
        self._walks = asyncio.Semaphore(_WALKS_MAX)
        self._known = KnownFacts(self._store)

    @property
    def shown_uri(self) -> str:
        """Where the metadata is, without name and password."""
        return shown(self.options.metadata_uri)

    async def client(self) -> BookKeeper:
        """Return the client, started.

        Raises:
            MetadataUnavailableError: The store does not answer.
            ClusterNotInitializedError: There is no cluster.
        """
        async with self._lock:
            if self._client is None:
                with own_files("its configuration of the cluster"):
                    client = self.options.connect()
                try:
                    with own_files("its configuration of the cluster"):
                        await client.start()
                except BaseException:
                    await client.close()
                    raise
                if self.options.io_rate_bytes:
                    client_context(client).env.background.rate_bytes = self.options.io_rate_bytes
                self._client = client
            return self._client

    async def facts(self, *, fresh: bool = False, takes_old: bool = False) -> ClusterFacts:
        """Return what is known of the cluster, at most a second old; of its ledgers, half a minute.

        Args:
            fresh: Read all ledgers now.
            takes_old: Take what is known of the ledgers whatever its age, and read them meanwhile.
        """
        if fresh:
            self._known.forget()
        return await self._known.get(takes_old=takes_old)

    def read_ahead(self) -> None:
        """Begin to read all ledgers for the first who asks for the facts."""
        self._known.read_ahead()

    async def _store(self) -> MetadataStore:
        return client_store(await self.client())

    @contextlib.asynccontextmanager
    async def walk(self) -> AsyncIterator[None]:
        """Hold one of the places for requests that go through all ledgers, for a block.

        Raises:
            ApiError: None is free for long.
        """
        try:
            async with patience.timeout(_WALK_WAIT_S):
                await self._walks.acquire()
        except TimeoutError:
            raise ApiError(
                503, "busy", "others go through all ledgers at the moment; try again"
            ) from None
        try:
            yield
        finally:
            self._walks.release()

    def forget_facts(self) -> None:
        """Have the next answer be read anew: something was changed."""
        self._known.forget()

    def bookie_headers(self) -> dict[str, str]:
        """Return what a change at a bookie carries.

        Raises:
            ApiError: The file with the bookies' token cannot be used.
        """
        file = self.options.bookie_token_file
        if not file:
            return {}
        with own_files("its token for bookies"):
            return {"Authorization": f"Bearer {read_tokens(file)[0]}"}

    @property
    def name(self) -> str:
        """Whom the locks on ledgers name."""
        return f"{socket.gethostname()}:{os.getpid()}"

    async def close(self) -> None:
        """Let go of everything."""
        await self.jobs.close()
        await self._known.close()
        if self._audit_stream is not None:
            await self._audit_stream.close()
        self.decoding.close()
        await self.streams.close()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()
