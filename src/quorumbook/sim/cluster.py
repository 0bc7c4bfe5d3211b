"""A cluster: metadata, machines of bookies and of clients, and how each is started again.

A bookie that dies is started again on its disk after a while; one that ends by itself, or cannot
start because the metadata store does not answer, as well.  Any other refusal to start after a
crash is a violation: nothing here damages a file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quorumbook.bookie.requests.operations import Operations
from quorumbook.bookie.server import Bookie
from quorumbook.client.client import BookKeeper
from quorumbook.client.options import ClientOptions
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import CookieError, CorruptJournalError, MetadataError, StorageError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import DEFAULT_LEDGERS_ROOT, Create, Delete, MetadataStore
from quorumbook.sim.actors.third_version import Interpreter
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.disks.index import ModelPlace
from quorumbook.sim.histories.bookies import Around, BookieHistory
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.kernel import MILLISECOND, SECOND, Kernel
from quorumbook.sim.metadata.memory import METADATA, SimStore, SimTree
from quorumbook.sim.metadata.zookeeper import Server, ZooKeeper
from quorumbook.sim.metadata.zookeeper_store import open_store
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.plan import LifePlan
from quorumbook.sim.process import Machine, Process
from quorumbook.storage.store import LedgerStorage
from quorumbook.streams.format.binding import Binding
from quorumbook.streams.metadata.address import DEFAULT_PATH
from quorumbook.streams.metadata.namespace_nodes import write_binding

if TYPE_CHECKING:
    from quorumbook.sim.metadata.etcd import Etcd
from quorumbook.sim.metadata.etcd_members import NAMES as ETCD_NAMES

_RESTART_NS = 2 * SECOND
#: A client that is asked for nothing listens to its session, and one may follow its group.
_CLIENT_TASKS_MAX = 6
#: Beyond the events that asyncio reports, which are bugs.
_START_LIMIT_NS = 60 * SECOND


class SimClient(BookKeeper):
    """A client whose metadata store is simulated."""

    def __init__(self, cluster: SimulatedCluster, process: Process, options: ClientOptions) -> None:
        super().__init__("memory://simulated", options=options, env=process.env)
        self._cluster = cluster
        self._process = process
        self._calls = cluster.history.calls
        cluster.open_clients.append(self)

    @property
    def name(self) -> str:
        """That of its process."""
        return self._process.name

    @property
    def held(self) -> dict[str, int]:
        """What it holds too much of, if its program asks it for nothing; the dead hold nothing."""
        if self._process.is_dead or self._context is None:
            return {}
        pending, tasks = self._context.bookies.pending_requests, self._process.loop.tasks_under_way
        held = {
            "requests": pending,
            "tasks": tasks if tasks > _CLIENT_TASKS_MAX else 0,
            "closed handles": sum(_is_over(each) for each in self._handles),
        }
        return {name: count for name, count in held.items() if count}

    async def _open_store(self) -> MetadataStore:
        return await self._cluster.store(self._process, self._options.session_timeout_s)

    # What each is called with is the client's affair: here it is noted that it was.

    async def _create(self, *arguments: Any) -> tuple[LedgerMetadata, int]:
        with self._calls.under_way(self._process, "creating a ledger"):
            return await super()._create(*arguments)

    async def _open(self, ledger_id: LedgerId, wanted: Any) -> LedgerReader:
        with self._calls.under_way(self._process, f"opening ledger {ledger_id}"):
            return await super()._open(ledger_id, wanted)

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger."""
        with self._calls.under_way(self._process, f"deleting ledger {ledger_id}"):
            await super().delete_ledger(ledger_id)


def _is_over(handle: LedgerWriter | LedgerReader) -> bool:
    """Tell whether a handle was closed, and not only failed."""
    if isinstance(handle, LedgerWriter):
        return handle._ending.is_closing  # noqa: SLF001 - programs are told less
    return handle._is_over  # noqa: SLF001 - as above


class _Bookie(Bookie):
    """A bookie that tells when it begins in doubt, and is listened to."""

    in_doubt: Callable[[str], None]
    listen: Callable[[Operations], None]
    listen_to_garbage: Callable[[LedgerStorage], None]

    async def _open_storage(self) -> Any:
        serving = await super()._open_storage()
        self.listen(serving.operations)
        self.listen_to_garbage(serving.storage)
        return serving

    async def _distrust(self, is_unsure: bool, reason: str) -> None:
        if is_unsure:
            self.in_doubt(reason)
        await super()._distrust(is_unsure, reason)


class BookieMachine(Machine):
    """A machine on which a bookie is started again and again."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        super().__init__(cluster.kernel, cluster.network, name, cluster.error)
        self._cluster = cluster
        self.root = f"/{name}"
        self._options = cluster.plan.bookie_options(name, self.root)
        self.slow_syncs = cluster.plan.slow_syncs
        self.slow_threads = 0.1 if cluster.plan.has("slow_threads") else 0.0
        self.kept_share = cluster.plan.kept_share
        #: The bookie that runs now, once it serves.
        self.bookie: Bookie | None = None
        #: Something was wrong with its disk, beside what a loss of power does.
        self.was_struck = self.was_full = False
        #: It has an empty disk in the place of a lost one, and has not served on it.
        self.is_new = False
        #: The journals that were damaged, and that its bookie may refuse.
        self.damaged_journals: set[str] = set()
        self._own_disk: SimDisk | None = None
        self._lost_cookie: bytes | None = None

    @property
    def server(self) -> Server | None:
        """The server of a ZooKeeper that its bookie's session is with."""
        cluster, paths = self._cluster, TreePaths(DEFAULT_LEDGERS_ROOT)
        row = cluster.tree.tree.find(paths.bookie(self.name, read_only=False))
        if cluster.zookeeper is None or row is None:
            return None
        session = cluster.zookeeper.ensemble.sessions.get(row.owner)
        names = {each.name: each for each in cluster.servers}
        return None if session is None else names.get(session.server)

    def boot_up(self) -> None:
        """Start it, unless it runs."""
        if self.process is None:
            self.bookie = None
            self.start(self._run)

    @property
    def serves(self) -> bool:
        """Tell whether its bookie is there for everybody."""
        return self.process is not None and self.bookie is not None and self.bookie.is_ready

    @property
    def held(self) -> dict[str, int]:
        """What its bookie holds too much of, if nobody asks it for anything."""
        cluster, process = self._cluster, self.process
        assert self.bookie is not None
        assert process is not None
        around = Around(
            process.loop.tasks_under_way,
            cluster.network.connections_of(self.name),
            max(self.disk.handles.values(), default=0),
            self.disk.handles_of_nothing,
        )
        # Itself, as a client of the metadata store, and one that left without a word.
        clients = sum(each.is_up for each in cluster.clients) + 2
        return BookieHistory.held(self.bookie, around, clients)

    @property
    def has_wrong_disk(self) -> bool:
        """Tell whether its disk is somewhere else."""
        return self._own_disk is not None

    def take_wrong_disk(self, disk: SimDisk) -> None:
        """Find another disk in the place of its own."""
        self._own_disk, self.disk = self.disk, disk

    def give_disk_back(self) -> None:
        """Find its own disk again."""
        own, self._own_disk = self._own_disk, None
        if own is not None:
            self.kill()
            self.disk = own
            self.kernel.after(_RESTART_NS, self.boot_up)

    @property
    def can_lose_disk(self) -> bool:
        """Tell whether its cookie can be deleted: of stores with servers nobody does that here."""
        cluster = self._cluster
        return cluster.etcd is None and cluster.zookeeper is None and not self.has_wrong_disk

    def lose_disk(self) -> None:
        """Find an empty disk in the place of its own, which is gone, and begin as a new bookie.

        Its cookie is deleted, as an operator does, so it takes the disk.
        """
        cluster = self._cluster
        self.kernel.trace.note(self.name, "loses its disk for good")
        self.kill()
        self.disk = SimDisk()
        self.damaged_journals.clear()
        self._delete_cookie()
        cluster.victim, self.is_new = self, True
        cluster.answers.begins_anew(self.name)
        self.boot_up()

    def lose_cookie(self) -> None:
        """Be started when somebody has deleted its cookie, and not its disk: it must refuse."""
        self.kernel.trace.note(self.name, "loses its cookie")
        self.kill()
        self._lost_cookie = self._delete_cookie()
        self.boot_up()

    @property
    def has_lost_cookie(self) -> bool:
        """Tell whether the cluster does not know it."""
        return self._lost_cookie is not None

    def _delete_cookie(self) -> bytes | None:
        """Delete its cookie from the metadata, and return it; None if there is none."""
        path = TreePaths(DEFAULT_LEDGERS_ROOT).cookie(self.name)
        with self._cluster.tree.transaction(self.kernel.now_ns) as tree:
            row = tree.find(path)
            if row is not None:
                tree.delete(Delete(path))
        return None if row is None else row.data

    def _give_cookie_back(self) -> None:
        data, self._lost_cookie = self._lost_cookie, None
        self.kill()
        if data is not None:
            path = TreePaths(DEFAULT_LEDGERS_ROOT).cookie(self.name)
            with self._cluster.tree.transaction(self.kernel.now_ns) as tree:
                tree.create(Create(path, data), 0, self.kernel.now_ns // MILLISECOND)
        self.kernel.after(_RESTART_NS, self.boot_up)

    async def _run(self, process: Process) -> None:
        cluster = self._cluster
        try:
            store = await cluster.store(process, cluster.plan.session_timeout_s)
            bookie = _Bookie(process.env, self._options, store, indexes=ModelPlace(self.disk))
            bookie.in_doubt = self._in_doubt
            bookie.listen = partial(cluster.answers.watch, self.name)
            bookie.listen_to_garbage = partial(cluster.answers.watch_garbage, self.name)
            await bookie.start()
            self.bookie, self.is_new = bookie, False
            self.kernel.trace.note(self.name, "serves")
            if self.has_wrong_disk:
                self._violation("serves on a disk not its own")
            if self.has_lost_cookie:
                self._violation("serves in a cluster that does not know it")
            await bookie.wait_stopped()
        except MetadataError as error:
            self.kernel.trace.note(self.name, "ends", error)
        except CookieError as error:
            if self.is_new:
                # It died when only the metadata had its cookie: the operator begins once more.
                self.kernel.after(0, self.lose_disk)
                return
            if self.has_lost_cookie:
                self.kernel.after(0, self._give_cookie_back)
                return
            if not self.has_wrong_disk:
                self._violation(f"does not know its disk: {error}")
            self.kernel.trace.note(self.name, "refuses its disk")
            self.kernel.after(0, self.give_disk_back)
            return
        except CorruptJournalError as error:
            self._refuses_journal(error)
            return
        except StorageError as error:
            self.kernel.trace.note(self.name, "ends", type(error).__name__)
            if not self.was_struck:
                self._violation(f"ended: {error}")
        except Exception as error:  # whatever it is, it should not have been
            if not process.is_dead:
                self._violation(f"ended: {type(error).__name__}: {error}")
                cluster.errors.append(error)
        if not process.is_dead:
            self.kernel.after(0, self._ended, process)

    def _refuses_journal(self, error: CorruptJournalError) -> None:
        """An operator reads where it is damaged, and gives the bookie an empty disk."""
        if not any(f"({path} at byte " in str(error) for path in self.damaged_journals):
            self._violation(f"refuses a journal that is not damaged: {error}")
            return
        self.kernel.trace.note(self.name, "refuses its journal", error)
        self.kernel.after(_RESTART_NS, self._replace_disk)

    def _replace_disk(self) -> None:
        # It may have been started, and have refused, more often than that.
        if self.damaged_journals:
            self.lose_disk()

    def _in_doubt(self, reason: str) -> None:
        """It takes what a crash left for damage: open ledgers stay open until others are back."""
        # A journal that could reserve nothing on a full disk ends with its data, cut or not.
        if self is not self._cluster.victim and not self.was_full:
            self._violation(f"begins in doubt: {reason}")

    def _violation(self, text: str) -> None:
        """Note what is wrong with it."""
        text = f"bookie {self.name} {text}"
        self._cluster.history.violation(Invariant.BOOKIES_START_AND_STAY, text)

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self.kill()
            self.kernel.after(_RESTART_NS, self.boot_up)


class SimulatedCluster:
    """All machines.

    Args:
        kernel: Time and chance.
        plan: How large it is.
        history: What is judged.
    """

    def __init__(self, kernel: Kernel, plan: LifePlan, history: History) -> None:
        self.kernel = kernel
        self.plan = plan
        self._client_options = plan.client_options()
        self.history = history
        #: What bookies answer.
        self.answers = BookieHistory(history)
        self.network = SimulatedNetwork(kernel)
        self.tree = SimTree()
        history.watch(self.tree.tree.find)
        self.tree.on_change = history.changed
        self.etcd: Etcd | None = None
        if plan.has_etcd:
            self.etcd = _etcd(kernel, history)
        self.zookeeper: ZooKeeper | None = None
        if plan.zookeepers:
            self.zookeeper = ZooKeeper(kernel, self.network, self.tree)
            for i in range(plan.zookeepers):
                self.zookeeper.add(Machine(kernel, self.network, f"z{i}", self.error))
        #: Exceptions behind violations.
        self.errors: list[BaseException] = []
        self.bookies = [BookieMachine(self, f"b{i}") for i in range(plan.bookies)]
        if plan.has("third_version"):
            self.network.interpreters = {each.name: Interpreter for each in self.bookies}
        #: The only bookie whose disk loses or changes what was durable.
        self.victim: BookieMachine | None = None
        self.answers.victim = lambda: None if self.victim is None else self.victim.name
        self.clients: list[Machine] = []
        #: All that were begun.
        self.open_clients: list[SimClient] = []

    def add_client(self, name: str) -> Machine:
        """Add a machine for clients."""
        machine = Machine(self.kernel, self.network, name, self.error)
        self.clients.append(machine)
        return machine

    def client(self, process: Process, **options: Any) -> SimClient:
        """Return a client that is not started yet; ``options`` are others than the plan's."""
        plain = self._client_options
        return SimClient(self, process, replace(plain, **options) if options else plain)

    @property
    def servers(self) -> list[Server]:
        """The servers of the ZooKeeper, if there is one."""
        return [] if self.zookeeper is None else self.zookeeper.servers

    @property
    def metadata_names(self) -> list[str]:
        """Where the metadata is, in the network's cuts."""
        if self.etcd is not None:
            return list(ETCD_NAMES)
        return [each.name for each in self.servers] or [METADATA]

    async def store(self, process: Process, session_timeout_s: float) -> MetadataStore:
        """Open the metadata store."""
        if self.etcd is not None:
            return await self.etcd.open(process, session_timeout_s)
        if self.zookeeper is None:
            return SimStore(self.tree, process, session_timeout_s)
        return await open_store(self.zookeeper, self.history, process, session_timeout_s)

    def error(self, who: str, context: dict[str, Any]) -> None:
        """Something was raised that nobody caught."""
        error = context.get("exception")
        text = f"{who}: {context.get('message')}: {type(error).__name__}: {error}"
        self.history.violation(Invariant.NOTHING_IS_RAISED, text)
        if isinstance(error, BaseException):
            self.errors.append(error)

    def start(self) -> None:
        """Make the cluster, and start its bookies."""
        admin = self.add_client("admin")
        is_made = False

        async def make(process: Process) -> None:
            nonlocal is_made
            store = await self.store(process, 10.0)
            await init_cluster(store)
            await write_binding(store, DEFAULT_PATH, Binding(), exist_ok=False)
            await store.close()
            is_made = True

        for server in self.servers:
            server.boot_up()
        admin.start(make)
        self.kernel.run(lambda: is_made, _START_LIMIT_NS)
        admin.kill()
        for bookie in self.bookies:
            bookie.boot_up()
        if not self.kernel.run(lambda: self.is_whole, _START_LIMIT_NS):
            self.history.violation(Invariant.BOOKIES_START_AND_STAY, "the bookies did not start")

    @property
    def is_whole(self) -> bool:
        """Tell whether all bookies serve."""
        return all(each.serves for each in self.bookies)

    def bury(self) -> None:
        """Let go of everything."""
        servers = [each.machine for each in self.servers]
        for machine in [*self.bookies, *self.clients, *servers]:
            machine.bury()
        self.kernel.forget()


def _etcd(kernel: Kernel, history: History) -> Etcd:
    # Its driver needs an extra, which whoever simulates a program of his own need not have.
    from quorumbook.sim.metadata.etcd import Etcd  # noqa: PLC0415

    etcd = Etcd(kernel, history)
    history.watch(etcd.find)
    return etcd
