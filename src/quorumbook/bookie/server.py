"""A bookie's life: who it is, start, service, stop.

Start: the port is taken, and who connects already is turned away; the cookies say that these
directories, this id and this cluster belong together (``identity.py``); the storage replays its
journal; ledgers of which something may be missing go to limbo; only then the bookie serves, and
registers last.  Stop goes the other way: unregister, listen no more, finish what is under way,
flush, close.  A journal that fails ends the bookie: nothing is acknowledged any more, and its
restart replays what is durable (R8).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import chain
from typing import NamedTuple

from prometheus_client.core import Metric

from quorumbook.bookie import read_only
from quorumbook.bookie.connections.admission import Admission
from quorumbook.bookie.connections.exposure import exposure
from quorumbook.bookie.connections.limits import open_files_within
from quorumbook.bookie.connections.loop_turns import Outbox, Turn
from quorumbook.bookie.connections.registry import Connections
from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.http import directories as directory_pages
from quorumbook.bookie.http.access import HttpAccess
from quorumbook.bookie.http.inside import InsidePages
from quorumbook.bookie.http.server import HttpServer
from quorumbook.bookie.membership import identity
from quorumbook.bookie.membership.cluster_ledgers import ClusterLedgers
from quorumbook.bookie.membership.healing import Healing, lacks
from quorumbook.bookie.membership.registrar import Registrar
from quorumbook.bookie.metrics import BookieMetrics, budget_families, exposition
from quorumbook.bookie.options import BookieOptions, HttpOptions
from quorumbook.bookie.pages import GUARDED, pages_of
from quorumbook.bookie.requests.ledger_gate import LedgerGate
from quorumbook.bookie.requests.operations import Operations
from quorumbook.env import Env, logger, patience
from quorumbook.errors import ConfigError, InternalError, LocalProtocolError, QuorumbookError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.labels import labels_to_properties
from quorumbook.ledger.placement.machines import machine_to_properties
from quorumbook.metadata.bookies.registration import BookieEndpoint, BookieServiceInfo
from quorumbook.metadata.bookies.service_info import KEY_BEFORE_ENTRIES
from quorumbook.metadata.cluster import read_instance_id, read_layout
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.storage.collection.collector import Collector
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.opening import StorageOwner
from quorumbook.storage.options import Damage
from quorumbook.storage.store import LedgerStorage

_log = logger("bookie")
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class _TurnedAway(asyncio.Protocol):
    """A connection that comes before the bookie can answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _Serving(NamedTuple):
    """What a bookie has once its storage is open."""

    storage: LedgerStorage
    operations: Operations
    connections: Connections
    directories: directory_pages.DirectoryPages
    inside: InsidePages


class Bookie:
    """One bookie in this process; the metadata store stays the caller's to close.

    Args:
        indexes: Where its index is; None: in files of the machine's.
    """

    def __init__(
        self, env: Env, options: BookieOptions, store: MetadataStore, *,
        indexes: IndexPlace | None = None,
    ) -> None:  # fmt: skip
        self._env = env
        self._indexes = indexes
        self._options = options
        self._store = store
        self._ledgers = LedgerManager(store)
        self._advertised_host = options.advertised_host or options.host
        if not options.bookie_id and self._advertised_host in _WILDCARDS:
            raise ConfigError(
                f"the bookie listens on {options.host or 'all addresses'}: set advertised_host "
                "(--advertised-address) to the address that clients reach it by"
            )
        self.metrics = BookieMetrics()
        self.disks = DiskMonitor(
            env,
            options,
            self.metrics,
            storage_is_full=lambda: self._serving is not None and self.storage.is_full,
            on_change=self._writability_changed,
        )
        #: Whether the operator lets it take plain adds.
        self.operators_word = read_only.OperatorsWord(
            env, options.ledger_directories[0], self.disks
        )
        #: There once the bookie is started.
        self._serving: _Serving | None = None
        self._registrar: Registrar | None = None
        self._server: asyncio.Server | None = None
        self._http: HttpServer | None = None
        #: What HTTP offers beside health; a guest in this process adds its own.
        self.pages = pages_of(self, env)
        #: And its numbers.
        self.further_families: Callable[[], Iterable[Metric]] = lambda: ()
        self._cluster: ClusterLedgers | None = None
        #: Gives disk space back, once the bookie is started.
        self.collector: Collector | None = None
        #: Finds damage and follows it up, once the bookie is started.
        self.healing: Healing | None = None
        self._bookie_id: BookieId | None = options.bookie_id or None
        self._port = options.port
        self._stopped = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        #: What ended the bookie, if something did.
        self.fatal_error: BaseException | None = None

    # What it is

    @property
    def bookie_id(self) -> BookieId:
        """The registered name; known from the start on."""
        if self._bookie_id is None:
            raise InternalError("a bookie on a free port has no id before its start")
        return self._bookie_id

    @property
    def address(self) -> tuple[str, int]:
        """Where clients reach it."""
        return self._advertised_host, self._port

    @property
    def storage(self) -> LedgerStorage:
        """What it keeps; there once it is started."""
        return self._started().storage

    @property
    def connections(self) -> Connections:
        """Who asks it; there once it is started."""
        return self._started().connections

    @property
    def parts(self) -> _Serving | None:
        """What it has once its storage is open."""
        return self._serving

    def _started(self) -> _Serving:
        if self._serving is None:
            raise InternalError("the bookie is not started")
        return self._serving

    @property
    def http_port(self) -> int | None:
        """Where health and metrics are, None if they are off."""
        return self._http.port if self._http is not None else None

    @property
    def http_address(self) -> str | None:
        """The same with the host that is listened on."""
        http = self._options.http
        return None if http is None else f"{http.host}:{self.http_port}"

    @property
    def is_ready(self) -> bool:
        """Tell whether it serves and can be found."""
        return (
            self._serving is not None
            and self.connections.is_serving
            and self._registrar is not None
            and self._registrar.is_registered
        )

    @property
    def is_read_only(self) -> bool:
        """Tell whether plain adds are refused."""
        return self.disks.writability.is_read_only

    # Start

    async def start(self) -> None:
        """Start; returns when the bookie serves and is registered.

        Raises:
            ConfigError: the port is in use, or the options contradict each other.
            CookieError: the directories belong to somebody else.
            ClusterNotInitializedError: there is no cluster; the message says how to make one.
            DirectoryLockedError: another bookie runs on a directory.
            StorageError: the storage is damaged; the message says where.
            MetadataError: the metadata store does not answer, or the id is taken.
            LocalProtocolError: ``stop`` was called meanwhile.
        """
        try:
            await self._start()
            if self._stop_task is not None:
                # What was begun since then is closed below.
                raise self.fatal_error or LocalProtocolError("the bookie was stopped meanwhile")
        except BaseException:
            await self._close(timeout_s=0)
            self._stopped.set()
            raise

    async def _start(self) -> None:
        options = self._options
        instance_id = await read_instance_id(self._store)
        # Before anything is left behind: neither cookie nor port of a bookie that is refused.
        await read_layout(self._store)
        # The id may have the port in it, and a port that is taken must not end up in a cookie.
        # Nobody is served before the rest is ready.
        await self._listen()
        if self._bookie_id is None:
            self._bookie_id = f"{self._advertised_host}:{self._port}"
        identity.check_bookie_id(self._bookie_id)
        await identity.claim(self._env, options, self._store, self._bookie_id, instance_id)
        self._serving = await self._open_storage()
        report = self.storage.report
        if report.is_full:
            self.disks.writability.is_read_only = True
        await self.disks.start()
        await self.operators_word.start()
        await self._distrust(report.needs_limbo_start or report.has_damaged_journal_tail,
                             report.limbo_reason)  # fmt: skip
        self._start_collector(instance_id)
        self.healing = Healing(self._env, self.storage, self._store, self._bookie_id, options.scrub)
        self.healing.start()
        self.connections.is_serving = True
        if options.http is not None:
            await self._start_http(options.http)
        self._registrar = Registrar(
            self._store, self._bookie_id, self._service_info(),
            is_read_only=lambda: self.is_read_only, metrics=self.metrics,
        )  # fmt: skip
        await self._registrar.start()
        _log.info("bookie %s serves on %s:%d", self._bookie_id, options.host, self._port)

    async def _open_storage(self) -> _Serving:
        env, options = self._env, self._options
        outbox = Outbox(Turn(env.clock))
        storage = await LedgerStorage.open(
            env,
            journal_directories=options.journal_directories,
            ledger_directories=options.ledger_directories,
            other_directories=options.index_directories,
            options=options.storage,
            open_files_max=open_files_within(env.descriptor_limit()),
            indexes=self._indexes,
            told=StorageOwner(
                on_fatal=self._fatal,
                on_full=self._storage_full,
                on_space=self.disks.storage_has_space,
                on_damage=self._damaged,
                on_group=self.metrics.slow.journal_group,
                on_told=outbox.sweep,
            ),
        )
        operations = Operations(env, options, storage, self.metrics, self.disks)
        admission = Admission(env, options, self.metrics)
        return _Serving(
            storage,
            operations,
            Connections(env, options, self.metrics, operations, admission, outbox),
            directory_pages.DirectoryPages(self.disks, storage),
            InsidePages(env, storage, self.disks, options, lambda: self.is_ready),
        )

    def _start_collector(self, instance_id: str) -> None:
        self._cluster = ClusterLedgers(self._store, instance_id, self.bookie_id)
        self.collector = Collector(
            self.storage, self._cluster, self._options.gc, self._env,
            on_damage=self.storage.note_damage,
        )  # fmt: skip
        self.collector.start()

    def _damaged(self, damage: Damage) -> None:
        if self.healing is not None:
            self.healing.scrubber.suspect(damage)

    def _storage_full(self, error: BaseException) -> None:
        self.disks.storage_full(error)
        if self.collector is not None:
            self.collector.trigger(minor=True, major=True, force=False)

    async def _distrust(self, is_unsure: bool, reason: str) -> None:
        """Put ledgers in limbo of which this bookie may have forgotten something (R22, R26)."""
        assert self._bookie_id is not None
        past = await identity.read_past(self._env, self._options)
        if is_unsure or past is identity.Past.UNCHECKED:
            bookie_id = self._bookie_id
            found = await identity.find_in_metadata(
                self._ledgers,
                bookie_id,
                lambda metadata: lacks(self.storage, metadata, bookie_id),
            )
            if found.open_ledger_ids or found.lacking_ledger_ids:
                _log.warning(
                    "%d open ledgers name this bookie and may be incomplete here, %d others lack "
                    "entries (%s)",
                    len(found.open_ledger_ids),
                    len(found.lacking_ledger_ids),
                    reason or "it starts without what it had",
                )
            await self.storage.put_in_limbo(found.lacking_ledger_ids, fence=False)
            await self.storage.put_in_limbo(found.open_ledger_ids, fence=True)
            # Fences of ledgers that are closed by now may be gone as well.
            before, past = past, identity.Past.GATED if found.is_known else identity.Past.CLEAN
            if past is not before:
                await identity.write_past(self._env, self._options, past)
            if is_unsure:
                await self.storage.finish_limbo_start()
        adds = self._started().operations.adds
        if past is identity.Past.GATED:
            adds.gate = LedgerGate(self._bookie_id, self._read_metadata, remembers=True)
        adds.deleted = LedgerGate(self._bookie_id, self._read_metadata, remembers=False)

    async def _read_metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self._ledgers.read(ledger_id))[0]

    async def _listen(self) -> None:
        host, port = self._options.host, self._options.port
        try:
            server = await self._env.network.listen(host, port, self._protocol)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use; choose another one or stop its owner"
                ) from None
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        self._server = server
        self._port = server.sockets[0].getsockname()[1]
        warning = exposure(self._options, [s.getsockname()[0] for s in server.sockets])
        if warning is not None:
            _log.warning("%s", warning)

    def _protocol(self) -> asyncio.Protocol:
        """Make the protocol of a connection; one that comes before the rest is ready is cut."""
        return _TurnedAway() if self._serving is None else self.connections.factory()

    async def _start_http(self, options: HttpOptions) -> None:
        http = HttpServer(
            self._env,
            options.host,
            options.port,
            is_ready=lambda: self.is_ready,
            metrics=self.render_metrics,
            pages=self.pages,
            guarded=GUARDED,
            access=HttpAccess(
                (options.host, self._advertised_host, *options.names), options.token_file
            ),
        )
        await http.start()
        self._http = http

    def _service_info(self) -> BookieServiceInfo:
        endpoints = [
            BookieEndpoint(
                id="bookie", host=self._advertised_host, port=self._port, protocol="bookie-rpc"
            )
        ]
        http, server = self._options.http, self._http
        if http is not None and server is not None:
            endpoints.append(
                BookieEndpoint(id="httpserver", host=http.host, port=server.port, protocol="http")
            )
        labels = labels_to_properties(self._options.labels)
        machine = machine_to_properties(self._options.machine)
        return BookieServiceInfo(tuple(endpoints), labels | machine | KEY_BEFORE_ENTRIES)

    def render_metrics(self) -> bytes:
        """Return all numbers in the Prometheus text format."""
        return exposition(self.metric_families)

    def metric_families(self) -> Iterable[Metric]:
        """Return all numbers as Prometheus' client knows them."""
        now_ns = self._env.clock.now_ns()
        serving = self._serving
        if serving is not None and not serving.storage.is_open:
            serving = None
        statistics = serving.storage.statistics() if serving is not None else {}
        if self.collector is not None:
            numbers = asdict(self.collector.statistics)
            statistics |= {f"gc_{name}": number for name, number in numbers.items()}
        if self.healing is not None:
            statistics |= self.healing.numbers()
        return chain(
            self.metrics.families(now_ns, statistics),
            budget_families(self._env.background),
            serving.directories.families() if serving is not None else (),
            self._http.families() if self._http is not None else (),
            self.further_families(),
        )

    def _writability_changed(self) -> None:
        if self._serving is not None:
            self._serving.operations.adds.writability_changed()
        if self._registrar is not None:
            self._registrar.changed()

    # Stop

    async def stop(self) -> None:
        """Unregister, listen no more, finish what is under way, flush and close; idempotent."""
        await asyncio.shield(self._begin_stop())

    async def wait_stopped(self) -> None:
        """Return when the bookie has stopped.

        Raises:
            BaseException: what ended it, if it did not stop of its own will.
        """
        await self._stopped.wait()
        if self.fatal_error is not None:
            raise self.fatal_error

    def _begin_stop(self) -> asyncio.Task[None]:
        if self._stop_task is None:
            self._stop_task = asyncio.get_running_loop().create_task(self._stop())
        return self._stop_task

    async def _stop(self) -> None:
        try:
            await self._close(timeout_s=self._options.stop_timeout_s)
        except Exception as error:
            # What a disk or the cluster does to us needs no trace.
            is_ours = not isinstance(error, QuorumbookError)
            _log.error("the bookie could not stop cleanly: %s", error, exc_info=is_ours)
            if self.fatal_error is None:
                self.fatal_error = error
        finally:
            self._stopped.set()

    async def _close(self, timeout_s: float) -> None:
        try:
            await self._withdraw(timeout_s)
        finally:
            # Whatever failed before: nobody is served any more, and the storage is flushed.
            if self._server is not None:
                self._server.close()
            if self._serving is not None:
                self.connections.abort()
            self.disks.stop()
            if self.collector is not None:
                await self.collector.stop()
            if self.healing is not None:
                await self.healing.stop()
            if self._cluster is not None:
                self._cluster.close()
            if self._serving is not None:
                await self.storage.stop()

    async def _withdraw(self, timeout_s: float) -> None:
        """Take leave of the cluster and the clients, and finish what is under way."""
        serving = self._serving
        if serving is not None:
            serving.connections.is_serving = False
        if self._registrar is not None:
            await self._registrar.stop()
        if self._server is not None:
            self._server.close()
        if serving is not None:
            serving.connections.stop_reading()
            serving.operations.adds.stop()
            if self.fatal_error is None:
                with contextlib.suppress(TimeoutError):
                    async with patience.timeout(timeout_s):
                        while self.metrics.adds_in_progress:  # noqa: ASYNC110 - rare, and short
                            await asyncio.sleep(0.01)
            await serving.connections.close(min(timeout_s, 1.0))
        if self._http is not None:
            await self._http.stop()

    def _fatal(self, error: BaseException) -> None:
        """The storage cannot keep its promises any more."""
        if self.fatal_error is None:
            _log.critical("the bookie stops: %s", error)
            self.fatal_error = error
            if self._serving is not None:
                self.connections.is_serving = False
                self.connections.stop_reading()
            self._begin_stop()
