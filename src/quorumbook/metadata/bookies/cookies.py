r"""Cookies: what ties a bookie's id, its directories and its cluster together.

    5\n
    bookieHost: "<bookie id>"\n
    journalDir: "<journal directories joined by a comma>"\n
    ledgerDirs: "<count>\t<directory>\t<directory>..."\n
    instanceId: "<cluster's instance id>"\n                   if known
    indexDirs: "<count>\t<directory>..."\n                    if others than the ledger directories

The first line is the layout version; the rest is protobuf's text form (a tab appears as ``\t``).
Version 4 is the same; version 3 has three plain lines without names.  The same text lies in the
metadata store and as ``VERSION`` in every directory of the bookie.  Reading and writing those
files, and their order (the store first), is the bookie's; what the comparison means is here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from google.protobuf import text_format

from quorumbook.errors import (
    CookieMismatchError,
    CookieMissingError,
    MetadataFormatError,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.ids import BookieId
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.nodes import change_once, set_alike, with_parents
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import Create, MetadataStore, Revision
from quorumbook.protocol.messages import message_class

LAYOUT_VERSION = 5
_PLAIN_VERSION = 3


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of a bookie."""

    bookie_id: BookieId
    journal_directories: tuple[str, ...]
    ledger_directories: tuple[str, ...]
    instance_id: str | None = None
    #: None: the same as the ledger directories.
    index_directories: tuple[str, ...] | None = None
    #: What it was read from; it is always written in version 5.
    layout_version: int = LAYOUT_VERSION

    def encode(self) -> bytes:
        """Return the cookie's text."""
        indexes = self.index_directories
        message = message_class("CookieFormat")(
            bookieHost=self.bookie_id,
            journalDir=",".join(self.journal_directories),
            ledgerDirs=_join(self.ledger_directories),
            instanceId=self.instance_id,
            indexDirs=None if indexes is None else _join(indexes),
        )
        text = text_format.MessageToString(message, as_utf8=False)
        return f"{LAYOUT_VERSION}\n{text}".encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Cookie:
        """Read a cookie's text.

        Raises:
            MetadataFormatError: it is damaged or of an unknown version.
        """
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MetadataFormatError("a cookie is not text") from error
        first, _, body = text.partition("\n")
        if not first.isascii() or not first.isdigit():
            raise MetadataFormatError(f"a cookie begins with {first[:40]!r} instead of its version")
        version = int(first)
        if version == _PLAIN_VERSION:
            return cls._decode_plain(body)
        if version not in (4, LAYOUT_VERSION):
            raise MetadataFormatError(f"a cookie of version {version} is not known here")
        message = message_class("CookieFormat")()
        try:
            text_format.Parse(body, message)
        except text_format.ParseError as error:
            raise MetadataFormatError(f"a cookie cannot be understood: {error}") from error
        if not message.IsInitialized():
            raise MetadataFormatError("a cookie lacks a required field")
        return cls._of_message(message, version)

    @classmethod
    def _of_message(cls, message: Any, version: int) -> Cookie:
        return cls(
            bookie_id=message.bookieHost,
            journal_directories=tuple(message.journalDir.split(",")),
            ledger_directories=_split(message.ledgerDirs),
            instance_id=message.instanceId if message.HasField("instanceId") else None,
            index_directories=_split(message.indexDirs) if message.HasField("indexDirs") else None,
            layout_version=version,
        )

    @classmethod
    def _decode_plain(cls, body: str) -> Cookie:
        lines = body.split("\n")
        if len(lines) < 3 or not all(lines[:3]):
            raise MetadataFormatError("a cookie of version 3 has not its three lines")
        journals = tuple(lines[1].split(","))
        return cls(lines[0], journals, _split(lines[2]), layout_version=_PLAIN_VERSION)

    def difference(self, other: Cookie) -> str | None:
        """Say in words what the two cookies disagree in, or return None.

        Ledger and index directories are sets, their order means nothing; the order of journal
        directories is the order of their log marks and counts.
        """
        if self.bookie_id != other.bookie_id:
            return f"bookie id {self.bookie_id} is not {other.bookie_id}"
        if self.journal_directories != other.journal_directories:
            return _differ("journal", self.journal_directories, other.journal_directories)
        if set(self.ledger_directories) != set(other.ledger_directories):
            return _differ("ledger", self.ledger_directories, other.ledger_directories)
        own_index = self.index_directories or self.ledger_directories
        other_index = other.index_directories or other.ledger_directories
        if set(own_index) != set(other_index):
            return _differ("index", own_index, other_index)
        # Cookies of version 3 do not know their cluster.
        if _PLAIN_VERSION not in (self.layout_version, other.layout_version) and (
            self.instance_id != other.instance_id
        ):
            return f"cluster {self.instance_id} is not {other.instance_id}"
        return None


class CookieVerdict(Enum):
    """What a bookie does after its cookies were compared."""

    #: Nothing knows it: write the cookie to the store, then to every directory.
    NEW = "new"
    #: All agree.
    KNOWN = "known"


def check_cookies(
    expected: Cookie,
    registered: Cookie | None,
    stored: Mapping[str, Cookie | None],
    *,
    is_empty: bool,
) -> CookieVerdict:
    """Compare what a bookie is configured as with what is written about it (R25).

    Args:
        expected: from the configuration and the cluster's instance id.
        registered: from the metadata store; None if it positively has none.
        stored: the cookie in each of the bookie's directories, None where there is none.
        is_empty: whether all these directories hold no data at all.

    Raises:
        CookieMismatchError: a cookie names another bookie, other directories, another cluster.
        CookieMissingError: a cookie that must be there is not.
    """
    for directory, cookie in stored.items():
        _demand_same(expected, cookie, f"the cookie in {directory}")
    _demand_same(expected, registered, "the cookie in the metadata store")
    missing = [directory for directory, cookie in stored.items() if cookie is None]
    bookie_id = expected.bookie_id
    if registered is None:
        if len(missing) < len(stored):
            raise CookieMissingError(
                f"bookie {bookie_id}: its directories have cookies but this cluster's metadata "
                "store has none: it is another cluster, or the cookie was deleted; start it with "
                "the --metadata URI of its own cluster, or with new directories"
            )
        if not is_empty:
            raise CookieMissingError(
                f"bookie {bookie_id}: its directories hold data but no cookie, and the metadata "
                "store has none either; start it with the directories it had, or with empty ones"
            )
        return CookieVerdict.NEW
    if missing:
        raise CookieMissingError(
            f"bookie {bookie_id} is known to the cluster but there is no cookie in "
            f"{', '.join(missing)}: a disk is not mounted or was emptied; mount it, or, if what "
            "was there is lost for good, start once with --set bookie.stamp_missing_cookies=true: "
            "other bookies have the entries"
        )
    return CookieVerdict.KNOWN


class CookieStore:
    """The cookies of a cluster's bookies in its metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)

    async def read(self, bookie_id: BookieId) -> tuple[Cookie, Revision] | None:
        """Return a bookie's cookie and its revision, or None if it positively has none.

        Raises:
            ClusterNotInitializedError: there is no cluster, so nothing is said about cookies.
            MetadataFormatError: the cookie cannot be understood.
        """
        try:
            node = await self._store.get(self._paths.cookie(bookie_id))
        except NoSuchNodeError:
            await read_instance_id(self._store)
            return None
        return Cookie.decode(node.data), node.revision

    async def write(self, cookie: Cookie, revision: Revision | None = None) -> int:
        """Write a new cookie, or replace one that is as it was read; return the new version.

        Raises:
            NodeExistsError: a new one was to be written and there is one.
            MetadataVersionConflict: it is another one by now.
        """
        path, data = self._paths.cookie(cookie.bookie_id), cookie.encode()
        if revision is not None:
            return await set_alike(self._store, path, data, revision)
        # Parents are made as needed, but never a cluster.
        await read_instance_id(self._store)

        async def was_created() -> bool:
            # Who else has this id and these directories cannot register beside us.
            node = await self._store.exists(path)
            return node is not None and node.data == data

        what = f"the cookie of bookie {cookie.bookie_id}"
        create = [Create(path, data)]
        try:
            await with_parents(
                self._store, path, lambda: change_once(self._store, create, was_created, what)
            )
        except NodeExistsError as error:
            raise NodeExistsError(
                f"there is a cookie of bookie {cookie.bookie_id} already",
                bookie_id=cookie.bookie_id,
            ) from error
        return 0

    async def delete(self, bookie_id: BookieId) -> None:
        """Delete a bookie's cookie: the cluster does not know the bookie any more.

        Raises:
            NoSuchNodeError: there is none.
        """
        await self._store.delete(self._paths.cookie(bookie_id))

    async def list(self) -> list[BookieId]:
        """Return the ids of all bookies that have a cookie, registered or not."""
        try:
            return await self._store.children(self._paths.cookies)
        except NoSuchNodeError:
            await read_instance_id(self._store)
            return []


def _demand_same(expected: Cookie, found: Cookie | None, what: str) -> None:
    if found is None:
        return
    difference = expected.difference(found)
    if difference is not None:
        raise CookieMismatchError(
            f"bookie {expected.bookie_id}: {what} does not fit: {difference}; the same command "
            f"with {_options_of(found, expected)} starts the bookie that was here; a new one needs "
            "an id and directories of its own"
        )


def _options_of(found: Cookie, expected: Cookie) -> str:
    """Return the options that the bookie of a cookie is started with, as far as they differ."""
    values = (
        ("bookie.bookie_id", lambda cookie: (cookie.bookie_id,)),
        ("storage.journal_directories", lambda cookie: cookie.journal_directories),
        ("storage.ledger_directories", lambda cookie: cookie.ledger_directories),
        ("storage.index_directories", lambda cookie: cookie.index_directories or ()),
    )
    words = [
        f"--set {shlex.quote(name + '=' + ','.join(value(found)))}"
        for name, value in values
        if value(found) != value(expected)
    ]
    if found.layout_version != _PLAIN_VERSION and found.instance_id != expected.instance_id:
        words.append(f"the --metadata URI of cluster {found.instance_id or 'without an id'}")
    return " and ".join(words)


def _join(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _split(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if count != str(len(directories)):
        raise MetadataFormatError(
            f"a cookie announces {count!r} directories and names {len(directories)}"
        )
    return tuple(directories)


def _differ(kind: str, own: tuple[str, ...], other: tuple[str, ...]) -> str:
    return f"{kind} directories {', '.join(own)} are not {', '.join(other)}"
