"""Chooses bookies: for a new ensemble, in a failed one's place, for one that breaks its policy.

    Cluster(writable, locations, labels, weights, local, first_bookie)
    new_ensemble(policy, shape, cluster, wanted_labels, excluded, random) -> tuple[BookieId, ...]
    replacements(policy, shape, ensemble, failed, cluster, ...) -> dict[int, BookieId]
    repaired(policy, shape, ensemble, cluster, ...) -> tuple[BookieId, ...] | None
    judge(policy, shape, ensemble, cluster, wanted_labels) -> Adherence

All of them fill open positions.  Bookies are drawn in random order, by weight; a search over the
locations then finds an ensemble of least cost (``policy.costs``), and among those prefers what is
near, for a replacement the rack of the bookie replaced, and then whoever was drawn first.  The
search is exact as long as it takes no more than some thousand steps; beyond, it takes the best it
has seen.  Randomness is handed in, so that a seed repeats every choice.

Whatever the policy, no two replicas of an entry go to one machine (``machines``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from quorumbook.errors import NotEnoughBookiesError
from quorumbook.ids import BookieId
from quorumbook.ledger.placement.labels import confined_to, show_labels
from quorumbook.ledger.placement.location import nearness, region_of
from quorumbook.ledger.placement.machines import (
    RULE,
    Site,
    Sites,
    costs_of_sites,
    locations_of,
    repeated,
)
from quorumbook.ledger.placement.policy import Adherence, Cost, Locations, Policy, Shape, lacking
from quorumbook.ledger.placement.weights import Randomness, shuffled

_STEPS = 4000
#: How many ways to mend an ensemble are looked at.
_REPAIRS = 200


@dataclass(frozen=True, slots=True)
class KnownBookies:
    """What is known about bookies."""

    #: Those that take new entries.
    writable: Collection[BookieId]
    #: Where they, and others that are known, stand.
    locations: Mapping[BookieId, str] = field(default_factory=dict)
    #: What labels they carry; who is missing is not known, which is not the same as none.
    labels: Mapping[BookieId, Mapping[str, str]] = field(default_factory=dict)
    #: The machine that each shares with others; who is missing is alone on its own.
    machines: Mapping[BookieId, str] = field(default_factory=dict)
    #: How likely each is chosen; all alike if empty.
    weights: Mapping[BookieId, float] = field(default_factory=dict)
    #: Where we stand, or "".
    local: str = ""
    #: Who comes first in every new ensemble while it can be chosen, or "".
    first_bookie: BookieId = ""


def new_ensemble(
    policy: Policy,
    shape: Shape,
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
    excluded: Collection[BookieId],
    random: Randomness,
) -> tuple[BookieId, ...]:
    """Choose the ensemble of a new ledger.

    Raises:
        LocalProtocolError: no ensemble of this shape keeps to the policy.
        NotEnoughBookiesError: too few bookies are left, or they cannot be spread as enforced.
    """
    policy.check(shape)
    usable = _usable(policy, cluster, wanted_labels, excluded)
    size = shape.ensemble_size
    if len(usable) < size:
        raise NotEnoughBookiesError(_too_few(policy, size, cluster, wanted_labels, excluded))
    slots: list[BookieId | None] = [None] * size
    if cluster.first_bookie in usable:
        slots[0] = cluster.first_bookie
    drawn = shuffled(usable - set(slots), cluster.weights, random)

    def preference(location: str) -> int:
        return nearness(location, cluster.local) if cluster.local else 0

    filled = _fill(policy, shape, slots, drawn, cluster, preference)
    if filled is None:
        racks = len({_location(policy, cluster, bookie_id) for bookie_id in usable})
        machines = len({cluster.machines.get(b) or b for b in usable})
        where = f"in {racks} racks" if policy.enforced(shape) else ""
        if machines < len(usable):
            where += f"{' and ' if where else ''}on {machines} machines"
        raise NotEnoughBookiesError(
            f"an ensemble of {size} bookies is wanted, with {_enforced(policy, shape, cluster)}; "
            f"{len(usable)} writable bookies {where} do not allow that"
        )
    return filled


def are_alike(policy: Policy, shape: Shape, cluster: KnownBookies) -> bool:
    """Tell whether all writable bookies are as good for every position of a new ledger.

    Then ``new_ensemble`` of all of them, with no labels wanted, is ``any_ensemble``.
    """
    sites = {_site(policy, cluster, bookie_id) for bookie_id in cluster.writable}
    if cluster.weights or cluster.first_bookie or len(sites) != 1:
        return False
    (site,) = sites
    cost = _costs(policy, shape, {site.location}, is_replacement=False)
    return policy.may_hold(site.location) and cost([site] * shape.ensemble_size)[0] <= 0


def any_ensemble(
    shape: Shape, writable: Collection[BookieId], random: Randomness
) -> tuple[BookieId, ...]:
    """Choose the ensemble of a new ledger of bookies that are enough, and alike."""
    return tuple(shuffled(writable, {}, random)[: shape.ensemble_size])


def replacements(
    policy: Policy,
    shape: Shape,
    ensemble: Sequence[BookieId],
    failed: Mapping[int, BookieId],
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
    excluded: Collection[BookieId],
    random: Randomness,
) -> dict[int, BookieId]:
    """Choose a bookie for each failed position, or for as many as can be.

    Neither a present member nor a failed bookie is chosen, not even for another position.

    Raises:
        NotEnoughBookiesError: there is none for any position.
    """
    out = {*excluded, *ensemble, *failed.values()}
    usable = _usable(policy, cluster, wanted_labels, out)
    drawn = shuffled(usable, cluster.weights, random)
    found = _replace(policy, shape, ensemble, failed, drawn, cluster)
    if found is None:
        # One after the other: what is left of the failed ones counts where it stands.
        found = {}
        members = list(ensemble)
        for index in sorted(failed):
            left = [bookie_id for bookie_id in drawn if bookie_id not in members]
            one = _replace(policy, shape, members, {index: failed[index]}, left, cluster)
            if one:
                found |= one
                members[index] = one[index]
    if not found:
        names = ", ".join(sorted(set(failed.values())))
        why = f" with the labels {show_labels(wanted_labels)}" if wanted_labels else ""
        if usable and (rule := _enforced(policy, shape, cluster)):
            why += f" that leaves {rule}"
        raise NotEnoughBookiesError(f"no bookie{why} is left to replace {names}")
    return found


def repaired(
    policy: Policy,
    shape: Shape,
    ensemble: Sequence[BookieId],
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
    excluded: Collection[BookieId],
    random: Randomness,
) -> tuple[BookieId, ...] | None:
    """Return an ensemble that keeps to the policy, with as few bookies changed as can be.

    Args:
        policy: what it is to keep to.
        shape: of the ledger.
        ensemble: as it stands.
        cluster: what is known about bookies.
        wanted_labels: what the ledger is confined to.
        excluded: bookies that are not chosen; members among them are replaced in any case.
        random: where chance comes from.

    Returns:
        None if the ensemble keeps to the policy, or nothing better was found.
    """
    before = judge(policy, shape, ensemble, cluster, wanted_labels)
    forced = {i for i, bookie_id in enumerate(ensemble) if bookie_id in excluded}
    if before is not Adherence.FAIL and not forced:
        return None
    usable = _usable(policy, cluster, wanted_labels, {*excluded, *ensemble})
    drawn = shuffled(usable, cluster.weights, random)
    others = [i for i in range(len(ensemble)) if i not in forced]
    ways = (
        {*forced, *more} for count in range(len(others) + 1) for more in combinations(others, count)
    )
    for way in islice(ways, _REPAIRS):
        chosen = _replace(policy, shape, ensemble, {i: ensemble[i] for i in way}, drawn, cluster)
        if chosen is None:
            continue
        after = tuple(chosen.get(i, bookie_id) for i, bookie_id in enumerate(ensemble))
        if judge(policy, shape, after, cluster, wanted_labels) is not Adherence.FAIL:
            return after
    return None


def judge(
    policy: Policy,
    shape: Shape,
    ensemble: Sequence[BookieId],
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
) -> Adherence:
    """Tell how far an ensemble keeps to its policy; a label that a member lacks breaks it."""
    items = wanted_labels.items()
    for bookie_id in ensemble:
        labels = cluster.labels.get(bookie_id)
        if labels is not None and not items <= labels.items():
            return Adherence.FAIL
    if repeated(shape, [cluster.machines.get(bookie_id, "") for bookie_id in ensemble]):
        return Adherence.FAIL
    # Of a bookie that is gone and in no table nothing can be said.
    known = {b: _location(policy, cluster, b) for b in cluster.writable} | dict(cluster.locations)
    return policy.adherence(shape, [known.get(bookie_id) for bookie_id in ensemble])


# -------------------------------------------------------------------------------------------


def _location(policy: Policy, cluster: KnownBookies, bookie_id: BookieId) -> str:
    return cluster.locations.get(bookie_id, policy.default_location)


def _site(policy: Policy, cluster: KnownBookies, bookie_id: BookieId) -> Site:
    return Site(_location(policy, cluster, bookie_id), cluster.machines.get(bookie_id, ""))


def _enforced(policy: Policy, shape: Shape, cluster: KnownBookies) -> str:
    """Return all that ensembles are refused for, for messages."""
    rules = [policy.enforced(shape), RULE if cluster.machines else ""]
    return " and ".join(rule for rule in rules if rule)


def _usable(
    policy: Policy,
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
    excluded: Collection[BookieId],
) -> frozenset[BookieId]:
    left = set(cluster.writable) - set(excluded)
    return frozenset(
        bookie_id
        for bookie_id in confined_to(left, wanted_labels, cluster.labels)
        if policy.may_hold(_location(policy, cluster, bookie_id))
    )


def _too_few(
    policy: Policy,
    size: int,
    cluster: KnownBookies,
    wanted_labels: Mapping[str, str],
    excluded: Collection[BookieId],
) -> str:
    writable = set(cluster.writable)
    fitting = confined_to(writable, wanted_labels, cluster.labels)
    placed = {b for b in fitting if policy.may_hold(_location(policy, cluster, b))}
    text = f"an ensemble of {size} bookies is wanted, {len(writable)} are writable"
    if wanted_labels:
        names = f": {', '.join(sorted(fitting))}" if fitting else ""
        text = (
            f"an ensemble of {size} bookies with the labels {show_labels(wanted_labels)} is "
            f"wanted, {len(fitting)} of {len(writable)} writable bookies carry them{names}"
        )
    if len(placed) < len(fitting):
        text += f", {len(fitting) - len(placed)} of them where the placement policy writes nothing"
    failed = len(placed & set(excluded))
    return f"{text}, {failed} of them failed lately" if failed else text


def _replace(
    policy: Policy,
    shape: Shape,
    ensemble: Sequence[BookieId],
    failed: Mapping[int, BookieId],
    drawn: Sequence[BookieId],
    cluster: KnownBookies,
) -> dict[int, BookieId] | None:
    if len(drawn) < len(failed):
        return None
    slots = [None if i in failed else bookie_id for i, bookie_id in enumerate(ensemble)]
    old = {_location(policy, cluster, bookie_id) for bookie_id in failed.values()}
    kept = {_location(policy, cluster, bookie_id) for bookie_id in slots if bookie_id is not None}

    def preference(location: str) -> int:
        return 0 if location in old else 1 if location not in kept else 2

    filled = _fill(policy, shape, slots, drawn, cluster, preference, replaced=ensemble)
    return None if filled is None else {index: filled[index] for index in failed}


def _fill(
    policy: Policy,
    shape: Shape,
    slots: Sequence[BookieId | None],
    drawn: Sequence[BookieId],
    cluster: KnownBookies,
    preference: Callable[[str], int],
    *,
    replaced: Sequence[BookieId] = (),
) -> tuple[BookieId, ...] | None:
    """Fill the open slots; None if that cannot be done without breaking an enforced rule.

    What the ensemble broke before, if there was one (``replaced``), it may go on to break.
    """
    queues: dict[Site, list[int]] = defaultdict(list)
    for turn in reversed(range(len(drawn))):
        queues[_site(policy, cluster, drawn[turn])].append(turn)
    sites = [None if b is None else _site(policy, cluster, b) for b in slots]
    reachable = {site.location for site in (*queues, *sites) if site is not None}
    cost = _costs(policy, shape, reachable, is_replacement=bool(replaced))
    preferences = {each: preference(each.location) for each in queues}
    search = _Search(sites, queues, cost, preferences, policy.default_location)
    turns = search.run()
    before = cost([_site(policy, cluster, b) for b in replaced])[0] if replaced else 0
    if search.best[0] > before:
        return None
    chosen = iter(turns)
    return tuple(drawn[next(chosen)] if b is None else b for b in slots)


def _costs(
    policy: Policy, shape: Shape, reachable: Collection[str], *, is_replacement: bool
) -> Callable[[Sites], Cost]:
    cost = policy.costs(shape, reachable, is_replacement=is_replacement)
    if policy.are_ack_domains_enforced:
        cost = _with_ack_domains(policy, shape, cost)
    return costs_of_sites(shape, cost)


def _with_ack_domains(
    policy: Policy, shape: Shape, cost: Callable[[Locations], Cost]
) -> Callable[[Locations], Cost]:
    """Forbid write sets whose entries could not be confirmed."""
    windows = shape.write_sets()
    wanted = policy.min_domains(shape.write_quorum_size)

    def stricter(locations: Locations) -> Cost:
        domains = [None if each is None else policy.domain(each) for each in locations]
        lack = sum(lacking([domains[i] for i in window], wanted) for window in windows)
        forbidden, *wishes = cost(locations)
        return forbidden + lack, *wishes

    return stricter


class _Search:
    """Depth first over the open positions, the cheapest and most preferred location first."""

    def __init__(
        self,
        sites: list[Site | None],
        queues: dict[Site, list[int]],
        cost: Callable[[Sites], Cost],
        preference: Mapping[Site, int],
        default_location: str,
    ) -> None:
        self._sites = sites
        self._open = [i for i, site in enumerate(sites) if site is None]
        self._queues = queues
        self._cost = cost
        self._preference = preference
        self._default_location = default_location
        self._steps = _STEPS
        self._path: list[int] = []
        self._turns: list[int] = []
        #: What cannot be had for less, and what was found.
        self.floor = cost(sites)
        self.best: Cost = self.floor

    def run(self) -> list[int]:
        """Return which of the drawn bookies goes to each open position."""
        if len(self._queues) == 1:
            self._take_in_turn()
        if not self._turns:
            self._descend(0, self.floor)
        return self._turns

    def _take_in_turn(self) -> None:
        """Where all bookies stand alike there is nothing to search; most clusters are so."""
        ((site, queue),) = self._queues.items()
        if len(queue) < len(self._open):
            return
        sites = list(self._sites)
        for position in self._open:
            sites[position] = site
        self._turns = [queue[-1 - nth] for nth in range(len(self._open))]
        self.best = self._cost(sites)

    @property
    def _is_over(self) -> bool:
        return bool(self._turns) and (self.best == self.floor or self._steps <= 0)

    def _descend(self, depth: int, cost: Cost) -> None:
        if depth == len(self._open):
            self._turns, self.best = list(self._path), cost
            return
        for cost_there, _, turn, site in self._ways(self._open[depth]):
            if self._turns and cost_there >= self.best:
                return  # the others are no cheaper
            self._steps -= 1
            self._queues[site].pop()
            self._path.append(turn)
            self._sites[self._open[depth]] = site
            self._descend(depth + 1, cost_there)
            self._sites[self._open[depth]] = None
            self._path.pop()
            self._queues[site].append(turn)
            if self._is_over:
                return

    def _ways(self, position: int) -> list[tuple[Cost, int, int, Site]]:
        """Return the sites that have a bookie left, the best first, and whose turn it is."""
        taken = {location for location in locations_of(self._sites) if location is not None}
        regions = {region_of(location) for location in taken}
        machines = {site.machine for site in self._sites if site is not None}
        apart = {*taken, self._default_location}
        # Sites that have nothing in common with those taken cost the same.
        costs: dict[tuple[str, int, str], Cost] = {}
        ways = []
        for site, queue in self._queues.items():
            if not queue:
                continue
            location, machine = site
            region = region_of(location)
            kind = location if location in apart else region if region in regions else ""
            key = kind, location.count("/"), machine if machine in machines else ""
            if key not in costs:
                self._sites[position] = site
                costs[key] = self._cost(self._sites)
            ways.append((costs[key], self._preference[site], queue[-1], site))
        self._sites[position] = None
        return sorted(ways)
