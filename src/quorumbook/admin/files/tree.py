"""A tree of files: their names are nodes of the metadata, their contents ledgers.

    <ledgers root>/files/names/<name>/<name>...   a node for each directory and file; names have
                                    %XX where they have more than letters, digits and ``_.-~=+,``
        its data                    nothing: a directory; else the JSON of a file,
            {"version": 1, "token": "<hex>", "length": 12, "inline": "<base64>"}
            {"version": 1, "token": "<hex>", "length": 9000, "ledger": 17}
    <ledgers root>/files/nameless/<ledger id>     a ledger that no file has: yet, or any more

A file has its name when its content is whole and safe, never earlier.  Creations, replacements and
renames of a file are one step of the metadata each, so of two at once one wins and the other one is
told.  The token, another one for each file, tells after a lost answer whether it was us.

Files up to 4 KiB are in their node.  A larger one is a closed ledger with entries of 256 KiB, the
last one shorter, so a range of bytes is a range of entries.  Its node in ``nameless`` is there
before the ledger, goes in the step that gives the file its name, and comes back in the one that
takes it away.  So whatever a crash leaves is named there, and ``sweep`` deletes it a day later.  A
writer that is slower than that cannot name its file any more, since its node was changed first.

Errors are Python's own: ``FileNotFoundError``, ``FileExistsError`` and their kin.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import json
import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, unquote

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.nodes import (
    change_once,
    create_with_parents,
    set_alike,
    with_living_session,
)
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import Check, Create, Delete, Node, Operation, Set, split

ENTRY_BYTES = 256 * 1024
INLINE_BYTES = 4096
#: Of the entries of a content so many are under way at once.
_APPENDED_AT_ONCE = 4
_READS_AT_ONCE = 64
_DEPTH_MAX = 100
_NAME_BYTES_MAX = 255
#: So often another one may change the same file before we give up.
_ATTEMPTS = 32
#: A content is written in less.
_NAMELESS_S = 24 * 3600.0
_DOOMED = b"doomed"


@dataclass(frozen=True, slots=True)
class Content:
    """What a file has, wherever it is."""

    token: str
    length: int
    inline: bytes = b""
    #: None: it is inline.
    ledger_id: LedgerId | None = None

    def data(self) -> bytes:
        """Return the node's."""
        row: dict[str, object] = {"version": 1, "token": self.token, "length": self.length}
        if self.ledger_id is None:
            row["inline"] = base64.b64encode(self.inline).decode()
        else:
            row["ledger"] = self.ledger_id
        return json.dumps(row).encode()

    @classmethod
    def of(cls, path: str, data: bytes) -> Content:
        """Read a node's data.

        Raises:
            MetadataFormatError: It is damaged, or of a later version.
        """
        try:
            row = json.loads(data)
            if row["version"] != 1:
                raise ValueError(f"version {row['version']}")
            inline = base64.b64decode(row.get("inline", ""), validate=True)
            return cls(str(row["token"]), int(row["length"]), inline, row.get("ledger"))
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise MetadataFormatError(f"file {path} cannot be understood: {error}") from error


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or a directory, as it was read."""

    name: str
    mtime_ms: int
    #: Unique for ever.
    file_id: int
    #: None: a directory.
    content: Content | None = None


class FileTree:
    """The files of a cluster.

    Args:
        client: Whose cluster.
        quorums: Ensemble, write quorum and ack quorum of the ledgers.
    """

    def __init__(self, client: BookKeeper, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        self._client = client
        self._quorums = quorums
        self._store = client_store(client)
        root = TreePaths(self._store.ledgers_root).files
        self._names = f"{root}/names"
        self._nameless = f"{root}/nameless"

    # Looking -------------------------------------------------------------------------------

    async def info(self, path: str) -> FileInfo:
        """Return what there is.

        Raises:
            FileNotFoundError: Nothing.
        """
        return self._shown(path, "", await self._existing(path))

    async def listing(
        self, path: str, *, after: str = "", limit: int | None = None
    ) -> tuple[list[FileInfo], int]:
        """Return what is in a directory, by name, and how many names more; of a file that alone.

        Args:
            path: The directory; a file has no name in its list.
            after: Only later names.
            limit: At most so many; None: all.
        """
        node = await self._existing(path)
        if node is not None and node.data:
            return [self._shown(path, "", node)], 0
        place = self._place(path)
        try:
            names = sorted(unquote(name) for name in await self._store.children(place))
        except NoSuchNodeError:
            return [], 0
        first = bisect_right(names, after) if after else 0
        end = len(names) if limit is None else min(first + limit, len(names))
        found = []
        for start in range(first, end, _READS_AT_ONCE):
            some = names[start : min(start + _READS_AT_ONCE, end)]
            nodes = await self._store.get_many([f"{place}/{_quoted(name)}" for name in some])
            for name, each in zip(some, nodes, strict=True):
                if each is not None:  # it was deleted meanwhile
                    found.append(self._shown(path, name, each))
        return found, len(names) - end

    async def read(
        self, info: FileInfo, first: int = 0, count: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield some of a file's bytes, in order; without ``count`` all that are left.

        Raises:
            FileNotFoundError: The file was deleted meanwhile.
        """
        content = info.content
        if content is None:
            return
        end = content.length if count is None else min(first + count, content.length)
        if end <= first:
            return
        if content.ledger_id is None:
            yield content.inline[first:end]
            return
        try:
            reader = await self._client.open_ledger(content.ledger_id)
        except NoSuchLedgerInMetadataError:
            raise _missing("the content of a file that was deleted") from None
        async with reader:
            at = first - first % ENTRY_BYTES
            last = (end - 1) // ENTRY_BYTES
            async for batch in reader.read_batches(at // ENTRY_BYTES, last):
                for payload in batch.payloads:
                    yield payload[max(first - at, 0) : end - at]
                    at += len(payload)

    # Changing ------------------------------------------------------------------------------

    async def make_directories(self, path: str) -> None:
        """Make a directory and those above it, where they are missing.

        Raises:
            FileExistsError: One of them is a file.
        """
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._store, self._place(path))
        while path != "/":
            node = await self._store.exists(self._place(path))
            if node is not None and node.data:
                raise FileExistsError(errno.EEXIST, "is a file", path)
            path = split(path)[0]

    async def write(self, path: str, pieces: AsyncIterator[bytes], *, replaces: bool) -> None:
        """Make a file; it is there when all of it is safe, and nothing is when this fails.

        Args:
            path: Where; directories above are made.
            pieces: Its bytes.
            replaces: It takes the place of a file that is there.

        Raises:
            FileExistsError: There is one, or a directory.
        """
        # Before anything is stored for nothing; what counts is looked at again with the name.
        await self._check_free(path, replaces=replaces)
        content, nameless = await self._stored(pieces)
        try:
            await self._name(path, content, nameless, replaces=replaces)
        except OSError:
            await self._forget(content)
            raise

    async def rename(self, source: str, target: str, *, replaces: bool) -> None:
        """Give a file another name, in one step.

        Args:
            source: The file.
            target: Its new name, in a directory that exists.
            replaces: It takes the place of a file that is there.

        Raises:
            FileNotFoundError: There is no such file, or no such directory.
            FileExistsError: There is something of that name.
            IsADirectoryError: It is a directory; those keep their names.
        """
        if source == target:
            await self.info(source)
            return
        for _ in range(_ATTEMPTS):
            node = await self._existing(source)
            if node is None or not node.data:
                raise IsADirectoryError(errno.EISDIR, "a directory keeps its name", source)
            content = Content.of(source, node.data)
            taken = await self._check_free(target, replaces=replaces)
            gone = [Delete(self._place(source), *node.revision)]
            if await self._put(target, content, taken, gone):
                return
        raise _unlucky(target)

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """Delete a file or a directory; False: there is none.

        Raises:
            OSError: ``ENOTEMPTY``: something is in the directory.
        """
        place = self._place(path)
        for _ in range(_ATTEMPTS):
            node = await self._store.exists(place)
            if node is None:
                return False
            try:
                if node.data:
                    content = Content.of(path, node.data)
                    await self._multi(path, [Delete(place, *node.revision)], content)
                    await self._forget(content)
                    return True
                for name in await self._store.children(place):
                    if not recursive:
                        raise OSError(errno.ENOTEMPTY, "the directory is not empty", path)
                    await self.delete(f"{path.rstrip('/')}/{unquote(name)}", recursive=True)
                delete = partial(self._store.delete, place, *node.revision)
                await with_living_session(self._store, delete)
            except (MetadataVersionConflict, NodeNotEmptyError, NoSuchNodeError):
                continue  # it was changed meanwhile
            return True
        raise _unlucky(path)

    async def sweep(self, older_than_s: float = _NAMELESS_S) -> list[LedgerId]:
        """Delete ledgers that have had no file for so long, and return them."""
        due_ms = self._store.env.clock.wall_ms() - older_than_s * 1000
        found = []
        try:
            names = await self._store.children(self._nameless)
        except NoSuchNodeError:
            return []
        for name in names:
            place = f"{self._nameless}/{name}"
            node = await self._store.exists(place)
            if node is None or node.ctime_ms > due_ms:
                continue
            # Whoever may be about to name it goes by the node as it was.
            with contextlib.suppress(NoSuchNodeError, MetadataVersionConflict):
                await set_alike(self._store, place, _DOOMED, node.revision)
                await self._delete_nameless(int(name))
                found.append(int(name))
        return found

    # Parts ---------------------------------------------------------------------------------

    def _place(self, path: str) -> str:
        names = [name for name in path.split("/") if name]
        if len(names) > _DEPTH_MAX:
            raise OSError(errno.ENAMETOOLONG, f"more than {_DEPTH_MAX} directories deep", path)
        for name in names:
            if name in (".", "..") or len(name.encode(errors="replace")) > _NAME_BYTES_MAX:
                raise OSError(errno.ENAMETOOLONG, f"not a name of a file: {name!r:.40}", path)
        return "/".join([self._names, *map(_quoted, names)])

    async def _existing(self, path: str) -> Node | None:
        """Return a node; None: the root, which is there before anything is in it."""
        node = await self._store.exists(self._place(path))
        if node is None and path != "/":
            raise _missing(path)
        return node

    def _shown(self, path: str, name: str, node: Node | None) -> FileInfo:
        if node is None:
            return FileInfo(name, 0, 0)
        content = Content.of(f"{path}/{name}", node.data) if node.data else None
        return FileInfo(name, node.mtime_ms, node.creation_id, content)

    async def _check_free(self, path: str, *, replaces: bool) -> Node | None:
        """Return the file whose place another one may take, if there is one."""
        node = await self._store.exists(self._place(path))
        if path == "/" or (node is not None and (not replaces or not node.data)):
            raise FileExistsError(errno.EEXIST, "exists", path)
        return node

    async def _parent(self, path: str) -> Node:
        parent = split(path)[0]
        node = await self._store.exists(self._place(parent))
        if node is None:
            raise _missing(parent)
        if node.data:
            raise NotADirectoryError(errno.ENOTDIR, "is a file", parent)
        return node

    async def _name(
        self, path: str, content: Content, nameless: list[Operation], *, replaces: bool
    ) -> None:
        for _ in range(_ATTEMPTS):
            taken = await self._check_free(path, replaces=replaces)
            if taken is None:
                await self.make_directories(split(path)[0])
            if await self._put(path, content, taken, nameless):
                return
        raise _unlucky(path)

    async def _put(
        self, path: str, content: Content, taken: Node | None, gone: Sequence[Operation]
    ) -> bool:
        """Give a content a name, maybe another one's; False: something was changed meanwhile.

        Args:
            path: The name.
            content: What gets it.
            taken: The node that has it.
            gone: What is no more after the same step.
        """
        place, parent = self._place(path), await self._parent(path)
        replaced = None
        operations: list[Operation] = [Check(self._place(split(path)[0]), *parent.revision), *gone]
        if taken is None:
            operations.append(Create(place, content.data()))
        else:
            replaced = Content.of(path, taken.data)
            operations.append(Set(place, content.data(), *taken.revision))

        async def was_done() -> bool:
            node = await self._store.exists(place)
            return node is not None and node.data == content.data()

        try:
            await self._multi(path, operations, replaced, was_done)
        except (NodeExistsError, NoSuchNodeError, MetadataVersionConflict):
            return False
        if replaced is not None:
            await self._forget(replaced)
        return True

    async def _multi(
        self,
        path: str,
        operations: Sequence[Operation],
        loses: Content | None,
        was_done: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Carry out a step after which a content has no name."""
        steps = list(operations)
        if loses is not None and loses.ledger_id is not None:
            with contextlib.suppress(NodeExistsError):
                await create_with_parents(self._store, self._nameless)
            steps.append(Create(f"{self._nameless}/{loses.ledger_id}"))

        async def nobody_knows() -> bool:
            return False

        await change_once(self._store, steps, was_done or nobody_knows, f"file {path}")

    async def _stored(self, pieces: AsyncIterator[bytes]) -> tuple[Content, list[Operation]]:
        """Store a content; return it, and what goes in the step that names it."""
        content = Content(secrets.token_hex(8), 0)
        at_once = ENTRY_BYTES * _APPENDED_AT_ONCE
        held = bytearray()
        async for piece in pieces:
            held += piece
            if len(held) >= at_once:
                break
        else:
            if len(held) <= INLINE_BYTES:
                return replace(content, length=len(held), inline=bytes(held)), []
        ledger_id = await self._client.reserve_ledger_id()
        content = replace(content, ledger_id=ledger_id)
        place = f"{self._nameless}/{ledger_id}"
        await create_with_parents(self._store, place)
        node = await self._store.get(place)
        try:
            length = await self._append(ledger_id, held, pieces)
        except BaseException:
            await self._forget(content)
            raise
        return replace(content, length=length), [Delete(place, *node.revision)]

    async def _append(
        self, ledger_id: LedgerId, held: bytearray, pieces: AsyncIterator[bytes]
    ) -> int:
        """Write a ledger of what is held and what comes yet; return its bytes."""
        at_once = ENTRY_BYTES * _APPENDED_AT_ONCE
        ensemble, write, ack = self._quorums
        writer = await self._client.create_ledger(
            ensemble_size=ensemble, write_quorum_size=write, ack_quorum_size=ack,
            custom_metadata={"application": b"quorumbook", "component": b"file"},
            ledger_id=ledger_id,
        )  # fmt: skip
        try:
            async for piece in pieces:
                while len(held) >= at_once:
                    await writer.append_batch(_entries(held[:at_once]))
                    del held[:at_once]
                held += piece
            for first in range(0, len(held), at_once):
                await writer.append_batch(_entries(held[first : first + at_once]))
            await writer.close()
        except BaseException:
            await writer.abort()
            raise
        return writer.length

    async def _forget(self, content: Content) -> None:
        """Delete what no file has any more; what cannot be deleted now is swept later."""
        if content.ledger_id is not None:
            with contextlib.suppress(MetadataUnavailableError):
                await self._delete_nameless(content.ledger_id)

    async def _delete_nameless(self, ledger_id: LedgerId) -> None:
        with contextlib.suppress(NoSuchLedgerInMetadataError):
            await self._client.delete_ledger(ledger_id)
        place = f"{self._nameless}/{ledger_id}"
        with contextlib.suppress(NoSuchNodeError):
            await with_living_session(self._store, partial(self._store.delete, place))


def _entries(data: bytearray) -> list[bytes]:
    return [bytes(data[at : at + ENTRY_BYTES]) for at in range(0, len(data), ENTRY_BYTES)]


def _quoted(name: str) -> str:
    return quote(name, safe="=+,")


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "does not exist", path)


def _unlucky(path: str) -> OSError:
    return OSError(errno.EAGAIN, "others change it again and again", path)
