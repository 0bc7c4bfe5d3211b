"""An application's nodes in the metadata store: reading them, and every change of them.

``state`` says what they are.  They lie outside of the ledgers' root, where clients of the peer
take what they don't know for ledgers: in the namespace, under a name that no stream has, or beside
the ledgers' root for who has no namespace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    ConfigError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import change_once, create_with_parents, with_living_session
from quorumbook.metadata.store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Revision,
    Set,
)
from quorumbook.streams.errors import TransactionLostError
from quorumbook.streams.transactions.state import AttemptName, AttemptRecord, Head

#: Below an application's node: what parts of batches append at once.
_APPENDED = "appended"

#: In a namespace; names that begin so are no streams'.
_NAME = ".transactions"


def usual_root(store: MetadataStore, namespace_path: str | None) -> str:
    """Return where the applications of a namespace, or of a cluster's ledgers, are."""
    if namespace_path is None:
        return f"{store.ledgers_root}-transactions"
    return f"{namespace_path}/{_NAME}"


class FoundAttempt(NamedTuple):
    """An attempt as it was read."""

    name: AttemptName
    record: AttemptRecord
    node: Node


class TransactionNodes:
    """The nodes of one application."""

    def __init__(self, store: MetadataStore, root: str, application: str) -> None:
        """Take where they are.

        Raises:
            ConfigError: transactions cannot lie there, or the application has no name.
        """
        ledgers = store.ledgers_root
        if not root.startswith("/") or root == "/" or f"{root}/".startswith(f"{ledgers}/"):
            raise ConfigError(
                f"txnRoot {root!r} is not a path outside of {ledgers}, where the ledgers are; "
                "leave it out for the usual one"
            )
        if not application:
            raise ConfigError("an application's name (txnAppId) must not be empty")
        self.store = store
        self.application = application
        self.path = f"{root.rstrip('/')}/{quote(application, safe='').replace('.', '%2E')}"
        self.attempts_path = f"{self.path}/attempts"
        self.garbage_path = f"{self.path}/garbage"
        self.appended_path = f"{self.path}/{_APPENDED}"

    # The head ------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make the application's nodes unless they are there."""
        node = await self.store.exists(self.path)
        if node is not None and node.data:
            return
        for path in self.attempts_path, self.garbage_path:
            with contextlib.suppress(NodeExistsError):
                await self._make(path)

    async def read_head(self) -> tuple[Head, Revision]:
        """Return the head and its node's revision.

        Raises:
            TransactionLostError: there is no such application, or not any more.
        """
        try:
            node = await self.store.get(self.path)
        except NoSuchNodeError as error:
            raise TransactionLostError(
                f"application {self.application} is not there: what it did is finished, or "
                f"somebody deleted {self.path}"
            ) from error
        head = Head.decode(node.data, self.path) if node.data else Head()
        return head, node.revision

    # Attempts ------------------------------------------------------------------------------

    async def record_attempt(
        self, name: AttemptName, record: AttemptRecord, *, is_new: bool
    ) -> None:
        """Write down which ledgers an attempt has or is about to make.

        Raises:
            TransactionLostError: it was cleaned up meanwhile.
        """
        path, data = f"{self.attempts_path}/{name}", record.encode()

        async def was_done() -> bool:
            node = await self.store.exists(path)
            return node is not None and node.data == data

        operation = Create(path, data) if is_new else Set(path, data)
        try:
            await change_once(self.store, [operation], was_done, f"attempt {name}")
        except NoSuchNodeError as error:
            raise self.lost(name) from error

    def lost(self, name: AttemptName) -> TransactionLostError:
        """Return the error that says that an attempt was cleaned up."""
        return TransactionLostError(
            f"what was written for batch {name.batch} of application {self.application} was "
            "cleaned up meanwhile: it was older than attemptTtl, or another run has committed the "
            "batch; start the query again"
        )

    async def has_attempt(self, name: AttemptName) -> bool:
        """Tell whether an attempt was not taken or cleaned up."""
        return await self.store.exists(f"{self.attempts_path}/{name}") is not None

    async def attempts(self) -> list[AttemptName]:
        """Return the names of all attempts, ascending by batch."""
        names = map(AttemptName.parse, await self._names(self.attempts_path))
        return sorted(name for name in names if name is not None)

    async def read_attempts(self, names: Sequence[AttemptName]) -> list[FoundAttempt]:
        """Return what attempts say; those that are gone are left out."""
        found = await self._read_all(self.attempts_path, [str(name) for name in names])
        return [
            FoundAttempt(
                name, AttemptRecord.decode(node.data, f"{self.attempts_path}/{name}"), node
            )
            for name, node in zip(names, found, strict=True)
            if node is not None
        ]

    async def discard(self, found: FoundAttempt, head_revision: Revision) -> bool:
        """Make garbage of an attempt's ledgers; False: it or the head has changed, look again.

        An attempt that is gone was discarded by somebody else.
        """
        name, record, node = found
        operations: list[Operation] = [
            Check(self.path, *head_revision),
            Delete(f"{self.attempts_path}/{name}", *node.revision),
            Create(f"{self.garbage_path}/{name}", record.encode()),
        ]

        async def was_done() -> bool:
            return not await self.has_attempt(name)

        try:
            await change_once(self.store, operations, was_done, f"cleaning up attempt {name}")
        except (NoSuchNodeError, NodeExistsError):
            return True
        except MetadataVersionConflict:
            return False
        return True

    # Garbage -------------------------------------------------------------------------------

    async def garbage(self) -> list[tuple[str, AttemptRecord, Node]]:
        """Return the names of garbage, and what it is."""
        names = await self._names(self.garbage_path)
        found = await self._read_all(self.garbage_path, names)
        return [
            (name, AttemptRecord.decode(node.data, f"{self.garbage_path}/{name}"), node)
            for name, node in zip(names, found, strict=True)
            if node is not None
        ]

    async def forget_garbage(self, name: str) -> None:
        """Have no garbage of this name any more."""
        path = f"{self.garbage_path}/{name}"
        with contextlib.suppress(NoSuchNodeError):
            await with_living_session(self.store, lambda: self.store.delete(path))

    async def forget(self, head_revision: Revision) -> bool:
        """Delete the application, which has neither attempts nor garbage; False: it has."""
        if await self.attempts() or await self._names(self.garbage_path):
            return False
        paths = [self.attempts_path, self.garbage_path]
        if await self.store.exists(self.appended_path) is not None:
            await self.forget_appended()
            paths.append(self.appended_path)
        operations: list[Operation] = [
            *map(Delete, paths),
            Delete(self.path, *head_revision),
        ]

        async def was_done() -> bool:
            return await self.store.exists(self.path) is None

        await change_once(
            self.store, operations, was_done, f"forgetting application {self.application}"
        )
        return True

    # What is appended at once --------------------------------------------------------------

    async def read_appended(self, batch: int, partition: int) -> Node | None:
        """Return what earlier attempts at a part of a batch have appended; None: nothing yet."""
        return await self.store.exists(f"{self.appended_path}/{batch}-{partition}")

    async def write_appended(
        self, batch: int, partition: int, data: bytes, known: Node | None
    ) -> Node:
        """Write down what a part of a batch appends; returns the node as it is now.

        Args:
            batch: Which.
            partition: And which part of it.
            data: The same bytes mean the same rows, whichever attempt wrote them.
            known: The node that this is to follow; None: there is none yet.

        Raises:
            MetadataVersionConflict: another attempt wrote meanwhile.
        """
        path = f"{self.appended_path}/{batch}-{partition}"

        async def was_done() -> bool:
            node = await self.store.exists(path)
            return node is not None and node.data == data

        what = f"partition {partition} of batch {batch} of application {self.application}"
        try:
            if known is None:
                with contextlib.suppress(NodeExistsError):
                    await self._make(self.appended_path)
            operation = Create(path, data) if known is None else Set(path, data, *known.revision)
            await change_once(self.store, [operation], was_done, what)
        except (NodeExistsError, NoSuchNodeError) as error:
            raise MetadataVersionConflict(f"{what}: another attempt was first") from error
        node = await self.store.exists(path)
        if node is None or node.data != data:
            raise MetadataVersionConflict(f"{what}: another attempt was first")
        return node

    async def forget_appended(self, up_to_batch: int = 1 << 62) -> None:
        """Forget what parts of batches appended, up to one that is done."""
        names = await self._names(self.appended_path)
        done = [name for name in names if int(name.partition("-")[0]) <= up_to_batch]

        async def forget(name: str) -> None:
            path = f"{self.appended_path}/{name}"
            with contextlib.suppress(NoSuchNodeError):
                await with_living_session(self.store, lambda: self.store.delete(path))

        await gather_bounded(forget, done)

    # Inside --------------------------------------------------------------------------------

    async def _make(self, path: str) -> None:
        await with_living_session(self.store, lambda: create_with_parents(self.store, path))

    async def _names(self, path: str) -> list[str]:
        try:
            return await self.store.children(path)
        except NoSuchNodeError:
            return []

    async def _read_all(self, path: str, names: Sequence[str]) -> list[Node | None]:
        return await gather_bounded(lambda name: self.store.exists(f"{path}/{name}"), names)


async def list_applications(store: MetadataStore, root: str) -> list[str]:
    """Return the names of all applications below a root, sorted."""
    try:
        return sorted(unquote(name) for name in await store.children(root.rstrip("/")))
    except NoSuchNodeError:
        return []
