"""Ledger metadata in the tree: create, read, compare-and-set, delete, list.

What the metadata says and how it may change is ``ledger.metadata``'s business, its bytes
``ledger.metadata_format``'s; here is where it lies and what a failure means.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    MutableSequence,
    Sequence,
)
from dataclasses import replace
from typing import Any, TypeAlias

from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    ForeignLayoutError,
    LedgerExistsError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.metadata_format import decode, encode
from quorumbook.metadata.cluster import not_initialized, read_layout
from quorumbook.metadata.nodes import change_once, with_living_session, with_parents
from quorumbook.metadata.paths import (
    Branch,
    LayoutKind,
    TreePaths,
    branches,
    foreign_branches,
)
from quorumbook.metadata.store import ANY_VERSION, MetadataStore, Node, Set, Watch, split

#: What is read of each of some ledgers: its metadata, what is wrong with it, or that there is none.
Outcomes: TypeAlias = Sequence[LedgerMetadata | MetadataFormatError | None]
_READ_AT_ONCE = 100
#: So many such portions are under way.
_READ_AHEAD = 2


class LedgerManager:
    """The ledgers of one cluster.

    All writes are guarded by a version or by the node's existence, so they are done in a new
    session when the old one is over.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._paths = TreePaths(store.ledgers_root)
        self._kind: LayoutKind | None = None

    async def create(self, metadata: LedgerMetadata) -> tuple[LedgerMetadata, int]:
        """Write the metadata of a new ledger; return it as written, and its version.

        The metadata carries a random token (format 3), so that an attempt whose answer was lost
        is told from somebody else's ledger of the same id.

        Raises:
            LedgerExistsError: there is a ledger of this id.
        """
        path = await self._path(metadata.ledger_id)
        if metadata.format_version >= 3:
            # 1 and up: 0 is what other clients write when they have no token.
            token = self._store.env.random.randrange(1, 2**63)
            metadata = metadata.as_created(token, None)
        data = encode(metadata)
        node, is_made_now = None, True
        try:
            node = await self._create_node(path, data)
        except NodeExistsError as error:
            if metadata.creator_token is None:
                raise _exists(metadata.ledger_id) from error
            is_made_now = False
        if node is None or node.data != data or metadata.creator_token is None:
            # It may have been looked at before it was there, or there was another one.
            node = await self._store.exists(path)
        if node is None:
            raise _no_ledger(metadata.ledger_id)
        # One that was made now may have been changed since, or deleted and made by somebody else.
        if node.data != data and (node.version == 0 or not is_made_now):
            raise _exists(metadata.ledger_id)
        return metadata.as_created(metadata.creator_token, node.creation_id), 0

    async def read(
        self, ledger_id: LedgerId, watch: Watch | None = None
    ) -> tuple[LedgerMetadata, int]:
        """Return a ledger's metadata and its version.

        Raises:
            NoSuchLedgerInMetadataError: it was deleted, or never created.
            MetadataFormatError: its bytes cannot be understood.
        """
        try:
            node = await self._store.get(await self._path(ledger_id), watch)
        except NoSuchNodeError as error:
            raise _no_ledger(ledger_id) from error
        return decode(ledger_id, node.data, node.ctime_ms, node.creation_id), node.version

    async def read_many(
        self, ledger_ids: Sequence[LedgerId]
    ) -> list[LedgerMetadata | MetadataFormatError | None]:
        """Return the metadata of ledgers, or what is wrong with them; None: there is no such one.

        For walks over very many: together they cost a fraction of what ``read`` costs for each.
        """
        paths = [await self._path(ledger_id) for ledger_id in ledger_ids]
        found: list[LedgerMetadata | MetadataFormatError | None] = []
        for ledger_id, node in zip(ledger_ids, await self._store.get_many(paths), strict=True):
            if node is None:
                found.append(None)
                continue
            try:
                found.append(decode(ledger_id, node.data, node.ctime_ms, node.creation_id))
            except MetadataFormatError as error:
                found.append(error)
        return found

    async def read_again(
        self, metadata: LedgerMetadata, watch: Watch | None = None
    ) -> tuple[LedgerMetadata, int]:
        """Return what a ledger's metadata is by now, and its version.

        Raises:
            NoSuchLedgerInMetadataError: it was deleted, also if another has its id since.
        """
        found, version = await self.read(metadata.ledger_id, watch)
        if metadata.incarnation not in (None, found.incarnation):
            raise NoSuchLedgerInMetadataError(
                f"ledger {metadata.ledger_id} was deleted, and another one has its id now",
                ledger_id=metadata.ledger_id,
            )
        return found, version

    async def exists(self, ledger_id: LedgerId) -> bool:
        """Ask for this one ledger's node; False is a positive "no such ledger" (R27)."""
        if await self._store.exists(await self._path(ledger_id)) is not None:
            return True
        await self._check_cluster()
        return False

    async def write(
        self, metadata: LedgerMetadata, version: int, *, in_session: bool = False
    ) -> int:
        """Replace a ledger's metadata if its node has this version; return the new version.

        Args:
            metadata: What to write; of the ledger that it was read of, not of one of its id that
                was made since (``incarnation``).
            version: What it is based on.
            in_session: It relies on a lock too, and must not be written in another session.

        Raises:
            MetadataVersionConflict: somebody else changed it; read again and decide.
            NoSuchLedgerInMetadataError: it was deleted.
            MetadataFateUnknownError: it may be written; others may have written the same.
            SessionExpiredError: the session is over, and with it the lock.
        """
        if metadata.creator_token is not None:
            metadata = replace(metadata, creator_token=None)
        return await self._write(metadata, version, in_session)

    async def write_alone(self, metadata: LedgerMetadata, version: int) -> int:
        """Replace a ledger's metadata, as one of several that would write the same.

        A random token in the creator's place (format 3) tells whose write it was if its answer is
        lost; without one, in format 2 and 1, it counts as somebody else's then.  The next change
        drops the token.

        Raises:
            MetadataVersionConflict: somebody else was first, or may have been.
            NoSuchLedgerInMetadataError: it was deleted.
        """
        path = await self._path(metadata.ledger_id)
        token = self._store.env.random.randrange(1, 2**63) if metadata.format_version >= 3 else None
        own = replace(metadata, creator_token=token)
        data = encode(own)

        async def was_done() -> bool:
            node = await self._store.exists(path)
            return token is not None and node is not None and node.data == data

        operation = Set(path, data, version, own.incarnation)
        with self._named_errors(metadata.ledger_id):
            await change_once(
                self._store, [operation], was_done, f"a change of ledger {metadata.ledger_id}"
            )
        return version + 1

    async def _write(self, metadata: LedgerMetadata, version: int, in_session: bool) -> int:
        path, data = await self._path(metadata.ledger_id), encode(metadata)

        def write() -> Awaitable[int]:
            return self._store.set(path, data, version, creation_id=metadata.incarnation)

        with self._named_errors(metadata.ledger_id):
            return await (write() if in_session else with_living_session(self._store, write))

    @staticmethod
    @contextlib.contextmanager
    def _named_errors(ledger_id: LedgerId) -> Iterator[None]:
        try:
            yield
        except NoSuchNodeError as error:
            raise _no_ledger(ledger_id) from error
        except MetadataVersionConflict as error:
            raise MetadataVersionConflict(
                f"ledger {ledger_id}: {error}", ledger_id=ledger_id
            ) from error

    async def delete(
        self, ledger_id: LedgerId, version: int = ANY_VERSION, incarnation: int | None = None
    ) -> None:
        """Delete a ledger's metadata, and parents that nothing else lies below.

        Who names a version names its metadata's ``incarnation`` too.

        Raises:
            NoSuchLedgerInMetadataError: it is gone already.
            MetadataVersionConflict: it is not the one given, or has another version.
        """
        path = await self._path(ledger_id)
        try:
            await with_living_session(
                self._store, lambda: self._store.delete(path, version, incarnation)
            )
        except NoSuchNodeError as error:
            raise _no_ledger(ledger_id) from error
        parent, _ = split(path)
        with contextlib.suppress(NodeNotEmptyError, NoSuchNodeError):
            while parent != self._paths.root:
                await self._store.delete(parent)
                parent, _ = split(parent)

    async def list(self) -> AsyncGenerator[LedgerId, None]:
        """Yield the ids of all ledgers, ascending.

        Ledgers made or deleted meanwhile may or may not be among them; every other ledger is.
        If that cannot be promised the listing ends with an error, never early (R27): what is not
        listed will be taken for deleted.

        Raises:
            ForeignLayoutError: ledgers lie where the cluster's layout has none.
        """
        kind = await self._layout_kind()
        before = await self._store.exists(self._paths.instance_id)
        for branch in branches(kind):
            async for ledger_id in self._walk(branch, self._paths.root, ""):
                yield ledger_id
        # A cluster that was removed meanwhile, or replaced by another, looks empty from inside.
        after = await self._store.exists(self._paths.instance_id)
        if before is None or after is None or before.creation_id != after.creation_id:
            raise not_initialized(self._store)
        # Last: a ledger's node is older than its entries, so whoever knew of entries before the
        # listing finds the node now.
        await self._demand_no_foreign(kind)

    async def _demand_no_foreign(self, kind: LayoutKind) -> None:
        for branch, owner in foreign_branches(kind):
            async for ledger_id in self._walk(branch, self._paths.root, ""):
                raise ForeignLayoutError(
                    f"{self._store.uri}: LAYOUT says {kind.value}, but ledger {ledger_id} lies "
                    f"where the {owner.value} layout keeps it, so no list of ledgers is whole. "
                    "Some client takes no notice of LAYOUT, as Apache Pulsar does: "
                    "docs/pulsar.md says how to make them agree",
                    ledger_id=ledger_id,
                )

    async def _walk(self, branch: Branch, path: str, digits: str) -> AsyncIterator[LedgerId]:
        depth = path.count("/") - self._paths.root.count("/")
        try:
            names = await self._store.children(path)
        except NoSuchNodeError as error:
            if depth == 0:
                raise not_initialized(self._store) from error
            # Its last ledger was deleted since its parent was read.  Only what lies below it is
            # gone; what comes behind it is still to be listed (S56).
            return
        if depth == len(branch.widths):
            leaves = (branch.leaf_digits(name) for name in names)
            for ledger_id in sorted(int(digits + leaf) for leaf in leaves if leaf is not None):
                yield ledger_id
            return
        for name in (name for name in names if branch.is_level(name, depth)):
            async for ledger_id in self._walk(branch, f"{path}/{name}", digits + name):
                yield ledger_id

    async def _create_node(self, path: str, data: bytes) -> Node | None:
        def create() -> Awaitable[Node | None]:
            return with_living_session(self._store, lambda: self._store.create_node(path, data))

        try:
            return await with_parents(self._store, path, create)
        except MetadataUnavailableError:
            # It may have happened or not; the token tells if the second attempt finds it.
            return await with_parents(self._store, path, create)

    async def _path(self, ledger_id: LedgerId) -> str:
        return self._paths.ledger(await self._layout_kind(), ledger_id)

    async def _layout_kind(self) -> LayoutKind:
        if self._kind is None:
            self._kind = (await read_layout(self._store)).kind
        return self._kind

    async def _check_cluster(self) -> None:
        if await self._store.exists(self._paths.instance_id) is None:
            raise not_initialized(self._store)


async def walk(
    ledger_ids: AsyncGenerator[LedgerId, None],
    read: Callable[[list[LedgerId]], Coroutine[Any, Any, Outcomes]],
    errors: MutableSequence[MetadataFormatError],
) -> AsyncGenerator[LedgerMetadata, None]:
    """Yield the metadata of ledgers in order, those left out that were deleted meanwhile.

    Args:
        ledger_ids: Which.
        read: Reads some of them.
        errors: Takes an error for each ledger whose metadata cannot be understood.
    """
    # While one portion is looked at, the store reads the next.
    ahead: list[asyncio.Task[Outcomes]] = []

    async def first() -> list[LedgerMetadata]:
        found = []
        for outcome in await ahead.pop(0):
            if isinstance(outcome, MetadataFormatError):
                errors.append(outcome)
            elif outcome is not None:  # else it was deleted since it was listed
                found.append(outcome)
        return found

    try:
        async with contextlib.aclosing(_portions(ledger_ids)) as portions:
            async for portion in portions:
                ahead.append(asyncio.ensure_future(read(portion)))
                if len(ahead) == _READ_AHEAD:
                    for metadata in await first():
                        yield metadata
        while ahead:
            for metadata in await first():
                yield metadata
    finally:
        await cancel_and_wait(ahead)


async def _portions(
    ledger_ids: AsyncGenerator[LedgerId, None],
) -> AsyncGenerator[list[LedgerId], None]:
    portion: list[LedgerId] = []
    async with contextlib.aclosing(ledger_ids):
        async for ledger_id in ledger_ids:
            portion.append(ledger_id)
            if len(portion) == _READ_AT_ONCE:
                yield portion
                portion = []
    if portion:
        yield portion


def _exists(ledger_id: LedgerId) -> LedgerExistsError:
    return LedgerExistsError(f"ledger {ledger_id} exists already", ledger_id=ledger_id)


def _no_ledger(ledger_id: LedgerId) -> NoSuchLedgerInMetadataError:
    return NoSuchLedgerInMetadataError(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
