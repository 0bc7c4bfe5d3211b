"""What a client knows about bookies when it chooses some: where they stand, labels, free space.

``ClientPlacement`` gathers it as far as the choice at hand needs it, and asks the pure policies of
``ledger.placement``.  Who is registered and who is in quarantine is ``bookies.py``'s to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from quorumbook.client.cluster.racks import RackSource
from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import MetadataError, QuorumbookError
from quorumbook.ids import BookieId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement import choice
from quorumbook.ledger.placement.choice import KnownBookies
from quorumbook.ledger.placement.domains import AckDomains
from quorumbook.ledger.placement.labels import (
    confined_to,
    labels_of_ledger,
    labels_of_properties,
)
from quorumbook.ledger.placement.location import nearness
from quorumbook.ledger.placement.machines import machine_of_properties, shared
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.ledger.placement.own import CUSTOM_KEY, options_of_ledger
from quorumbook.ledger.placement.policy import Adherence, Policy, Shape
from quorumbook.ledger.placement.weights import weights
from quorumbook.metadata.bookies.service_info import BookieServiceInfo

_log = logger("client.placement")
CustomMetadata: TypeAlias = Mapping[str, bytes]
_NS = 1_000_000_000
#: Registrations read at a time.
_AT_A_TIME = 64
#: A bookie that does not tell its free space is asked again after this.
_RETRY_S = 60.0


class ServiceInfos(Protocol):
    """What is needed of ``metadata.registration``."""

    async def service_info(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        """Return what a registered bookie says about itself."""
        ...


class ClientPlacement:
    """Choices of one client."""

    def __init__(
        self,
        env: Env,
        infos: ServiceInfos,
        racks: RackSource,
        options: PlacementOptions,
        free_bytes: Callable[[BookieId], Awaitable[int]],
    ) -> None:
        """Prepare; nothing is asked before it is needed.

        Args:
            env: The world.
            infos: The registrations.
            racks: Where bookies stand.
            options: The client's.
            free_bytes: Asks a bookie for the free space of its disks.

        Raises:
            ConfigError: options contradict each other.
        """
        self._env = env
        self._infos = infos
        self._racks = racks
        self._options = options
        self._policy = options.make_policy()
        #: Policies that ledgers have of their own, by what stands in their custom metadata.
        self._own: dict[bytes, Policy] = {}
        self._ask_free_bytes = free_bytes
        #: What registered bookies say of themselves; forgotten when registrations change.
        self._said: dict[BookieId, BookieServiceInfo | None] = {}
        #: The machines that they named; kept of those that are away, for their ledgers' sake.
        self._machines: dict[BookieId, str] = {}
        self._generation = 0
        self._free: dict[BookieId, int] = {}
        self._next_ask_ns: dict[BookieId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: For which writable bookies, shape and racks it was last found that all are alike.
        self._alike: tuple[Collection[BookieId], tuple[object, ...]] | None = None

    # Choosing ------------------------------------------------------------------------------

    async def new_ensemble(
        self,
        shape: Shape,
        custom: CustomMetadata,
        writable: Collection[BookieId],
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        """Choose the ensemble of a new ledger: see ``choice.new_ensemble``."""
        policy, labels = self._policy_of(custom), labels_of_ledger(custom)
        is_any = not (excluded or labels or CUSTOM_KEY in custom)
        if is_any and self._alike is not None and self._is_known(writable):
            known, key = self._alike
            if known is writable and key == (shape, self._racks.revision):
                return choice.any_ensemble(shape, writable, self._env.random)
        if labels:
            await self._say(writable)
        cluster = await self._cluster(writable, labels)
        if CUSTOM_KEY in custom:  # a policy of its own knows no first bookie
            first = options_of_ledger(self._options, custom).local_bookie
            cluster = replace(cluster, first_bookie=first)
        random = self._env.random
        chosen = choice.new_ensemble(policy, shape, cluster, labels, excluded, random)
        has_heard_all = self._said.keys() >= set(writable)
        if is_any and has_heard_all and choice.are_alike(policy, shape, cluster):
            self._alike = writable, (shape, self._racks.revision)
        return chosen

    async def replacements(
        self,
        failed: Mapping[int, BookieId],
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        writable: Collection[BookieId],
        excluded: Collection[BookieId],
    ) -> dict[int, BookieId]:
        """Choose bookies for failed positions: see ``choice.replacements``."""
        policy, labels = self._wishes(metadata)
        cluster = await self._cluster(writable, labels, ensemble)
        shape, random = Shape.of(metadata), self._env.random
        return choice.replacements(
            policy, shape, ensemble, failed, cluster, labels, excluded, random
        )

    async def repaired(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[BookieId],
        writable: Collection[BookieId],
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...] | None:
        """Return an ensemble that keeps to the policy: see ``choice.repaired``."""
        policy, labels = self._wishes(metadata)
        cluster = await self._cluster(writable, labels, ensemble)
        shape, random = Shape.of(metadata), self._env.random
        return choice.repaired(policy, shape, ensemble, cluster, labels, excluded, random)

    async def adherence(
        self, metadata: LedgerMetadata, ensemble: Sequence[BookieId], writable: Collection[BookieId]
    ) -> Adherence:
        """Tell how far an ensemble keeps to the policy and to its ledger's labels."""
        policy, labels = self._wishes(metadata)
        cluster = await self._cluster(writable, labels, ensemble)
        return choice.judge(policy, Shape.of(metadata), ensemble, cluster, labels)

    async def fitting(
        self, metadata: LedgerMetadata, writable: Collection[BookieId]
    ) -> frozenset[BookieId]:
        """Return the bookies that a ledger's labels allow."""
        labels = labels_of_ledger(metadata.custom_metadata)
        if labels:
            await self._try_to_say(writable)
        return confined_to(writable, labels, self._labels(writable))

    def _wishes(self, metadata: LedgerMetadata) -> tuple[Policy, dict[str, str]]:
        custom = metadata.custom_metadata
        return self._policy_of(custom), labels_of_ledger(custom)

    def _policy_of(self, custom: CustomMetadata) -> Policy:
        """Return the policy that a ledger is spread by: the client's, unless it has its own."""
        own = custom.get(CUSTOM_KEY)
        if own is None:
            return self._policy
        if own not in self._own:
            self._own[own] = options_of_ledger(self._options, custom).make_policy()
        return self._own[own]

    # Acknowledging and reading -------------------------------------------------------------

    def ack_domains(self, metadata: LedgerMetadata) -> AckDomains | None:
        """Return in which fault domains the present ensemble's acks count; None if they all do."""
        policy = self._policy_of(metadata.custom_metadata)
        if not policy.are_ack_domains_enforced:
            return None
        places = [self._location(b) or policy.default_location for b in metadata.ensemble]
        least = policy.min_domains(metadata.write_quorum_size)
        return AckDomains(Shape.of(metadata), [policy.domain(each) for each in places], least)

    def nearness(self, ensemble: Sequence[BookieId]) -> Mapping[BookieId, int]:
        """Return how far away bookies are; nothing where we don't know where we are.

        What is not known yet is asked for behind the caller's back.
        """
        local = self._options.local_location
        if not local:
            return {}
        if not self._is_known(ensemble):
            self._spawn(self._locate(ensemble))
        default = self._policy.default_location
        return {b: nearness(self._location(b) or default, local) for b in ensemble}

    def takes_key_before_entries(self, bookie_id: BookieId) -> bool:
        """Tell whether a bookie said of itself that it may be told a new ledger's key."""
        info = self._said.get(bookie_id)
        return info is not None and info.takes_key_before_entries

    # Knowing -------------------------------------------------------------------------------

    def on_registrations(self) -> None:
        """Forget what bookies said of themselves: some may be others now."""
        self._said.clear()
        self._generation += 1

    async def close(self) -> None:
        """Ask nothing any more."""
        await cancel_and_wait(self._tasks)
        await self._racks.close()

    async def _cluster(
        self,
        writable: Collection[BookieId],
        labels: Mapping[str, str],
        members: Collection[BookieId] = (),
    ) -> KnownBookies:
        everybody = {*writable, *members}
        # Bookies tell which machine they share; one that is away was heard of before, or never.
        await self._try_to_say(everybody)
        await self._locate(everybody)
        shares: dict[BookieId, float] = {}
        if self._options.weigh_free_space and writable:
            await self._weigh(writable)
            free = {b: self._free.get(b, 0) for b in writable}
            shares = weights(free, self._options.max_weight_multiple)
        return KnownBookies(
            writable,
            {b: location for b in everybody if (location := self._location(b)) is not None},
            self._labels(everybody) if labels else {},
            self._shared_machines(everybody),
            shares,
            self._options.local_location,
            self._options.local_bookie,
        )

    async def _locate(self, bookie_ids: Collection[BookieId]) -> None:
        if self._racks.needs_addresses:
            await self._try_to_say(bookie_ids)
        if not self._is_known(bookie_ids):
            await self._racks.refresh(self._addresses(bookie_ids))

    def _is_known(self, bookie_ids: Iterable[BookieId]) -> bool:
        return self._racks.is_fresh(self._addresses(bookie_ids))

    def _location(self, bookie_id: BookieId) -> str | None:
        return self._racks.location(bookie_id, self._address(bookie_id))

    def _addresses(self, bookie_ids: Iterable[BookieId]) -> dict[BookieId, str]:
        if not self._racks.needs_addresses:
            return {}
        return {b: self._address(b) for b in bookie_ids}

    def _address(self, bookie_id: BookieId) -> str:
        info = self._said.get(bookie_id)
        if info is not None:
            return info.address(bookie_id)[0]
        return bookie_id.rpartition(":")[0] or bookie_id

    def _labels(self, bookie_ids: Iterable[BookieId]) -> dict[BookieId, Mapping[str, str]]:
        return {
            b: labels_of_properties(info.properties)
            for b in bookie_ids
            if (info := self._said.get(b)) is not None
        }

    def _shared_machines(self, bookie_ids: Collection[BookieId]) -> dict[BookieId, str]:
        """Return the machines that several of these bookies are on.

        A bookie that was away ever since this client began has its id's host, if that is a machine.
        """
        machines, named = self._machines, set(self._machines.values())
        hosts = {b: b.rpartition(":")[0] for b in bookie_ids if b not in machines}
        away = {b: host for b, host in hosts.items() if host in named}
        return shared({**away, **{b: machines[b] for b in bookie_ids if b in machines}})

    async def _try_to_say(self, bookie_ids: Collection[BookieId]) -> None:
        """Learn what bookies say; where the store does not answer, what was known has to do."""
        try:
            await self._say(bookie_ids)
        except MetadataError as error:
            _log.warning("registrations cannot be read: %s", error)

    async def _say(self, bookie_ids: Collection[BookieId]) -> None:
        missing = sorted(set(bookie_ids) - self._said.keys())
        for start in range(0, len(missing), _AT_A_TIME):
            some = missing[start : start + _AT_A_TIME]
            generation = self._generation
            infos = await asyncio.gather(*(self._infos.service_info(b) for b in some))
            told = dict(zip(some, infos, strict=True))
            self._alike = None
            self._machines |= {
                b: machine_of_properties(info.properties)
                for b, info in told.items()
                if info is not None
            }
            if generation == self._generation:
                self._said |= told

    async def _weigh(self, writable: Collection[BookieId]) -> None:
        """Ask bookies for their free space: new ones now, others behind the caller's back."""
        now_ns = self._env.clock.now_ns()
        new = [b for b in writable if b not in self._next_ask_ns]
        await asyncio.gather(*map(self._ask, new))
        for bookie_id in writable:
            if self._next_ask_ns[bookie_id] <= now_ns:
                self._next_ask_ns[bookie_id] = now_ns + int(_RETRY_S * _NS)
                self._spawn(self._ask(bookie_id))

    async def _ask(self, bookie_id: BookieId) -> None:
        interval_s = self._options.free_space_interval_s
        try:
            self._free[bookie_id] = await self._ask_free_bytes(bookie_id)
        except QuorumbookError as error:
            _log.debug("bookie %s does not tell its free space: %s", bookie_id, error)
            interval_s = min(interval_s, _RETRY_S)
        self._next_ask_ns[bookie_id] = self._env.clock.now_ns() + int(interval_s * _NS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
