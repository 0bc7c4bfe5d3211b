r"""Where the bookies of a cluster stand: a table that an operator keeps in the metadata.

    <root>/racks        {"racks": {"<bookie id, or host>": "/region/rack", ...}, "version": 1}

JSON, keys sorted.  A host stands for all bookies whose id is ``host:port``; a bookie's own row
counts before that.  The peer has no such node: it asks a script or a class of the operator's, as
clients here can too, and never looks at this one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from quorumbook.errors import (
    ConfigError,
    MetadataFateUnknownError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.ids import BookieId
from quorumbook.ledger.placement.location import check_location
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.nodes import with_living_session
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import MetadataStore, Watch

_VERSION = 1
#: Others may change the table between our read and our write; nobody is that unlucky so often.
_ATTEMPTS = 32
_LOOK_AGAIN = (
    NoSuchNodeError,
    NodeExistsError,
    MetadataVersionConflict,
    MetadataFateUnknownError,
)


class RackTable:
    """The table of one cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._path = TreePaths(store.ledgers_root).racks

    async def read(self, watch: Watch | None = None) -> dict[str, str]:
        """Return the rows: locations by bookie id or host.

        Args:
            watch: runs once, when the table changes, begins or ends.

        Raises:
            MetadataFormatError: it cannot be understood.
        """
        if await self._store.exists(self._path, watch) is None:
            return {}
        try:
            node = await self._store.get(self._path)
        except NoSuchNodeError:
            return {}  # the watch tells what comes next
        return _decode(node.data, self._path)

    async def set(self, rows: Mapping[str, str]) -> None:
        """Put rows into the table.

        Raises:
            ConfigError: one names no location, or the table would have places of both kinds.
        """
        checked = {name: check_location(location) for name, location in rows.items()}
        await self._change(lambda table: table | checked)

    async def remove(self, names: Iterable[str]) -> None:
        """Take rows out of the table; those that are not there are fine."""
        gone = set(names)
        await self._change(lambda table: {n: v for n, v in table.items() if n not in gone})

    async def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        await read_instance_id(self._store)
        for _ in range(_ATTEMPTS):
            # A change whose answer was lost is made again, on what stands there then.
            with contextlib.suppress(*_LOOK_AGAIN):
                if await self._store.exists(self._path) is None:
                    first = _encode(change({}))
                    create = partial(self._store.create, self._path, first)
                    await with_living_session(self._store, create)
                    return
                node = await self._store.get(self._path)
                wanted = _encode(change(_decode(node.data, self._path)))
                write = partial(self._store.set, self._path, wanted, *node.revision)
                await with_living_session(self._store, write)
                return
        raise MetadataUnavailableError(f"metadata node {self._path} changes again and again")


def row_of(table: Mapping[str, str], bookie_id: BookieId) -> str | None:
    """Return which row tells where a bookie stands: its own, or that of its host."""
    host, colon, port = bookie_id.rpartition(":")
    if bookie_id in table:
        return bookie_id
    return host if colon and port.isdigit() and host in table else None


def location_in(table: Mapping[str, str], bookie_id: BookieId) -> str | None:
    """Return where a bookie stands."""
    name = row_of(table, bookie_id)
    return None if name is None else table[name]


def _encode(table: Mapping[str, str]) -> bytes:
    depths = {location.count("/") for location in table.values()}
    if len(depths) > 1:
        raise ConfigError(
            "the table would have both /rack and /region/rack, which cannot be compared; "
            "write all of them the same way"
        )
    return json.dumps({"racks": dict(table), "version": _VERSION}, sort_keys=True).encode()


def _decode(data: bytes, path: str) -> dict[str, str]:
    try:
        record = json.loads(data)
        if record["version"] != _VERSION:
            raise MetadataFormatError(f"metadata node {path} is of a newer version")
        return {str(name): check_location(location) for name, location in record["racks"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise MetadataFormatError(f"metadata node {path} cannot be understood: {error}") from error
