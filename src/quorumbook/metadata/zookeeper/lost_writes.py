"""What became of a write whose answer was lost with its connection.

If it was carried out, its zxid is in a window: above that of the last answer that came, and up to
that of the ``sync`` that began the next connection.  So a node that nobody touched within the
window proves that it was not, whatever the other operations of the same step look like; and an
ephemeral node of our session proves that it was, for nobody else can have made it.

Bytes prove nothing: a rival may have written the same.  Where the tree leaves room for two
stories, the fate is unknown, and it is the caller's affair: only the caller knows whether those
bytes could be somebody else's, and whether that matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple, Protocol

from quorumbook.errors import MetadataUnauthorizedError
from quorumbook.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Node,
    Operation,
    Set,
    split,
)

_SEQUENCE_DIGITS = 10


class Fate(Enum):
    """What is known without the results."""

    NOT_DONE = "not carried out"
    UNKNOWN = "unknown"


class Sight(NamedTuple):
    """A node as it is now."""

    node: Node
    #: The zxid of the last change of its data.
    modified_zxid: int
    #: The zxid at which a child was last created or deleted.
    children_zxid: int


class Eyes(Protocol):
    """Looks at the tree as it is after the window."""

    @property
    def window(self) -> tuple[int, int]:
        """The zxid that the write is above, and the one it is at most."""
        ...

    @property
    def session_id(self) -> int:
        """The session that wrote."""
        ...

    @property
    def claimed(self) -> set[tuple[str, int]]:
        """Path and creation of ephemeral nodes that other lost writes were found to have made."""
        ...

    @property
    def look(self) -> Callable[[str], Awaitable[Sight | None]]:
        """Returns a node, or None."""
        ...

    @property
    def children(self) -> Callable[[str], Awaitable[list[str]]]:
        """Returns the names of the children."""
        ...


class _Evidence(Enum):
    """What the tree proves of one operation, and so of all that happened together with it."""

    DONE = "carried out"
    NOT_DONE = "not carried out"
    NONE = "both can be"


async def settle(operations: Sequence[Operation], eyes: Eyes) -> list[str | int | None] | Fate:
    """Return the results of a write that was carried out, or its fate."""
    if not any(isinstance(each, Create | Set | Delete) for each in operations):
        return Fate.NOT_DONE
    if len(operations) == 1 and isinstance(operations[0], Create) and operations[0].sequential:
        return await _of_sequential(operations[0], eyes)
    found = {each.path: await eyes.look(each.path) for each in operations}
    evidence = [await _evidence(each, found[each.path], eyes) for each in operations]
    if _Evidence.NOT_DONE in evidence:
        return Fate.NOT_DONE
    if _Evidence.DONE in evidence:
        return _results(operations)
    if len(operations) == 1:
        return _of_one(operations[0], found[operations[0].path], eyes)
    if all(
        isinstance(each, Check)
        or (isinstance(each, Create) and not each.sequential and found[each.path] is None)
        for each in operations
    ):
        # Nothing of it is there: asking again is as good, whatever became of it.
        return Fate.NOT_DONE
    return Fate.UNKNOWN


def _results(operations: Sequence[Operation]) -> list[str | int | None] | Fate:
    """Return the results of operations that are known to have been carried out."""
    results: list[str | int | None] = []
    for each in operations:
        match each:
            case Create(sequential=True):
                return Fate.UNKNOWN
            case Create():
                results.append(each.path)
            case Set():
                if each.version == ANY_VERSION:
                    return Fate.UNKNOWN
                results.append(each.version + 1)
            case _:
                results.append(None)
    return results


async def _evidence(operation: Operation, sight: Sight | None, eyes: Eyes) -> _Evidence:
    match operation:
        case Create() | Delete():
            parent, _ = split(operation.path)
            above = None
            with contextlib.suppress(MetadataUnauthorizedError):
                above = await eyes.look(parent)
            if above is not None and _is_before(above.children_zxid, eyes):
                return _Evidence.NOT_DONE
            if sight is not None and _is_before(sight.node.creation_id, eyes):
                return _Evidence.NOT_DONE
            if isinstance(operation, Create) and _is_own(operation, sight, eyes):
                return _Evidence.DONE
        case Set() if sight is not None:
            if _is_before(sight.modified_zxid, eyes) or _is_overruled(operation, sight, eyes):
                return _Evidence.NOT_DONE
    return _Evidence.NONE


def _is_own(operation: Create, sight: Sight | None, eyes: Eyes) -> bool:
    """Tell whether an ephemeral node was made by this operation, and by no other of ours."""
    if sight is None or operation.sequential or not operation.ephemeral:
        return False
    node = sight.node
    key = (operation.path, node.creation_id)
    if (
        node.owner != eyes.session_id
        or not _is_within(node.creation_id, eyes)
        or (node.version == 0 and node.data != operation.data)
        or key in eyes.claimed
    ):
        return False
    eyes.claimed.add(key)
    return True


def _is_overruled(operation: Set, sight: Sight, eyes: Eyes) -> bool:
    """Tell whether another write was the one that took this version."""
    if operation.version == ANY_VERSION or not _is_before(sight.node.creation_id, eyes):
        return False
    if sight.node.version <= operation.version:
        return True
    if sight.node.version > operation.version + 1:
        return False
    return sight.node.data != operation.data or not _is_within(sight.modified_zxid, eyes)


def _of_one(operation: Operation, sight: Sight | None, eyes: Eyes) -> list[str | int | None] | Fate:
    """Judge an operation that stands alone, and of which nothing is proven."""
    match operation:
        case Create():
            is_telling = (
                sight is None
                or operation.ephemeral
                or sight.node.is_ephemeral
                or not _is_within(sight.node.creation_id, eyes)
                or (sight.node.version == 0 and sight.node.data != operation.data)
            )
            # Asking again tells what stands in the way, or creates it.
            return Fate.NOT_DONE if is_telling else Fate.UNKNOWN
        case Set() if (
            sight is not None
            and operation.version == ANY_VERSION
            and _is_within(sight.modified_zxid, eyes)
            and sight.node.data == operation.data
        ):
            # Nothing was compared, and what was to be there is there.
            return [sight.node.version]
        case Delete() if sight is None:
            return [None]
    return Fate.UNKNOWN


async def _of_sequential(operation: Create, eyes: Eyes) -> list[str | int | None] | Fate:
    if not operation.ephemeral:
        evidence = await _evidence(operation, None, eyes)
        return Fate.NOT_DONE if evidence is _Evidence.NOT_DONE else Fate.UNKNOWN
    parent, prefix = operation.path.rpartition("/")[::2]
    for name in await eyes.children(parent or "/"):
        digits = name.removeprefix(prefix)
        if len(digits) != _SEQUENCE_DIGITS or not name.startswith(prefix):
            continue
        path = f"{parent}/{name}"
        if _is_own(replace(operation, path=path, sequential=False), await eyes.look(path), eyes):
            return [path]
    return Fate.NOT_DONE


def _is_before(zxid: int, eyes: Eyes) -> bool:
    return zxid <= eyes.window[0]


def _is_within(zxid: int, eyes: Eyes) -> bool:
    return eyes.window[0] < zxid <= eyes.window[1]
