"""Where bookies stand, as a client learns it: from the table, a script, or a class.

    TableRacks    the table in the metadata, watched
    AskedRacks    the operator's script or class, asked for addresses not known yet, and every
                  ``rack_refresh_s`` for all of them

A script gets addresses as its arguments and prints a location for each, white space between, as
the peer's do.  A class, an entry point of the group ``quorumbook.racks`` or named ``module:Class``,
is made with one text, its settings, and has ``resolve(addresses)``, which returns a
location or None for each; both run on a thread of their own.  What is not told is not known; a
source that fails leaves what it told before.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from quorumbook.env import Env, Worker, logger, run_job
from quorumbook.errors import ConfigError, MetadataError
from quorumbook.ids import BookieId
from quorumbook.ledger.placement.location import check_location
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.metadata.bookies.racks import RackTable, location_in

_log = logger("client.racks")
_NS = 1_000_000_000
_SCRIPT_TIMEOUT_S = 10.0
_PLUG_INS = "quorumbook.racks"


class RackSource(Protocol):
    """Tells where bookies stand."""

    #: Whether the addresses of bookies are needed for that.
    needs_addresses: bool
    #: Changes whenever it may tell another location.
    revision: int

    def is_fresh(self, addresses: Mapping[BookieId, str]) -> bool:
        """Tell whether nothing is to be asked for these bookies."""
        ...

    async def refresh(self, addresses: Mapping[BookieId, str]) -> None:
        """Learn what is missing or old."""
        ...

    def location(self, bookie_id: BookieId, address: str) -> str | None:
        """Return what is known of a bookie."""
        ...

    async def close(self) -> None:
        """Ask nothing any more."""
        ...


def rack_source(env: Env, table: RackTable, options: PlacementOptions) -> RackSource:
    """Return the source that the options name.

    Raises:
        ConfigError: the class cannot be found or made.
    """
    if options.rack_script:
        return AskedRacks(env, _script(env, options), options.rack_refresh_s)
    if options.rack_class:
        resolve = _class(options.rack_class, options.rack_class_settings)
        return AskedRacks(env, resolve, options.rack_refresh_s)
    return TableRacks(table)


class TableRacks:
    """The table in the metadata."""

    needs_addresses = False

    def __init__(self, table: RackTable) -> None:
        self._table = table
        self._rows: Mapping[str, str] = {}
        self._lock = asyncio.Lock()
        #: Changes heard of, and those that the rows are as new as.
        self._heard = 1
        self.revision = 0

    def is_fresh(self, addresses: Mapping[BookieId, str]) -> bool:
        """Tell whether the table was not changed since it was read."""
        del addresses
        return self.revision == self._heard

    async def refresh(self, addresses: Mapping[BookieId, str]) -> None:
        """Read the table."""
        async with self._lock:
            if self.is_fresh(addresses):
                return
            heard = self._heard
            try:
                self._rows = await self._table.read(self._changed)
                self.revision = heard
            except MetadataError as error:
                _log.warning("the table of racks cannot be read: %s", error)

    def location(self, bookie_id: BookieId, address: str) -> str | None:
        """Return what the table says."""
        del address
        return location_in(self._rows, bookie_id)

    async def close(self) -> None:
        """Nothing is under way."""

    def _changed(self) -> None:
        self._heard += 1


class AskedRacks:
    """A script or a class."""

    needs_addresses = True

    def __init__(
        self, env: Env, resolve: Callable[[Sequence[str]], Sequence[str | None]], refresh_s: float
    ) -> None:
        self._env = env
        self._resolve = resolve
        self._refresh_ns = int(refresh_s * _NS)
        self._known: dict[str, str | None] = {}
        self.revision = 0
        self._asked_ns = 0
        self._worker: Worker | None = None
        self._lock = asyncio.Lock()

    def is_fresh(self, addresses: Mapping[BookieId, str]) -> bool:
        """Tell whether all addresses were asked for lately."""
        is_old = self._env.clock.now_ns() - self._asked_ns >= self._refresh_ns
        return not is_old and set(addresses.values()) <= self._known.keys()

    async def refresh(self, addresses: Mapping[BookieId, str]) -> None:
        """Ask for new addresses, or for all when it is time."""
        async with self._lock:
            if self.is_fresh(addresses):
                return
            now_ns = self._env.clock.now_ns()
            wanted = set(addresses.values())
            if now_ns - self._asked_ns < self._refresh_ns:
                wanted -= self._known.keys()
            else:
                self._asked_ns = now_ns
                wanted |= self._known.keys()
            names = sorted(wanted)
            if self._worker is None:
                self._worker = self._env.threads.start_worker("quorumbook-racks")
            try:
                numeric = [await self._numeric(name) for name in names]
                told = await run_job(self._worker, lambda: self._resolve(numeric))
                if len(told) != len(names):
                    raise ConfigError(f"{len(told)} locations for {len(names)} addresses")
                self._known |= {
                    name: None if location is None else check_location(location)
                    for name, location in zip(names, told, strict=True)
                }
            except Exception as error:  # the operator's own code
                _log.warning("where bookies stand cannot be told: %s", error)
                for name in names:
                    self._known.setdefault(name, None)
            self.revision += 1

    async def _numeric(self, name: str) -> str:
        try:
            return await self._env.network.address_of(name)
        except OSError:  # that one host is not known must not keep the others from being told
            return name

    def location(self, bookie_id: BookieId, address: str) -> str | None:
        """Return what was told of an address."""
        del bookie_id
        return self._known.get(address)

    async def close(self) -> None:
        """End the thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()


def _script(env: Env, options: PlacementOptions) -> Callable[[Sequence[str]], Sequence[str | None]]:
    def resolve(addresses: Sequence[str]) -> Sequence[str | None]:
        told: list[str | None] = []
        step = options.max_rack_script_arguments
        for start in range(0, len(addresses), step):
            words = [options.rack_script, *addresses[start : start + step]]
            told += env.programs.run(words, timeout_s=_SCRIPT_TIMEOUT_S).split()
        return told

    return resolve


def _class(name: str, settings: str) -> Callable[[Sequence[str]], Sequence[str | None]]:
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            entry = importlib.metadata.entry_points(group=_PLUG_INS)[name]
            module, attribute = entry.module, entry.attr
        made = getattr(importlib.import_module(module), attribute)(settings)
        resolve: Callable[[Sequence[str]], Sequence[str | None]] = made.resolve
    except (ImportError, AttributeError, ValueError, KeyError) as error:
        raise ConfigError(f"placement.rack_class: {name} cannot be used: {error}") from None
    return resolve
