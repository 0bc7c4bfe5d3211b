"""What became of a write whose answer was lost with its connection.

Two facts decide.  If it was carried out, its zxid is in a window: above that of the last answer
that came, and up to that of the ``sync`` that began the next connection.  And what it wrote is
still to be seen, unless somebody has changed it since.  Where both leave room for two stories, the
fate is unknown, and it is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from quorumbook.metadata.store import ANY_VERSION, Check, Create, Delete, Node, Operation, Set

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
    def claimed(self) -> set[str]:
        """Sequential nodes that other writes whose answers were lost have made."""
        ...

    @property
    def look(self) -> Callable[[str], Awaitable[Sight | None]]:
        """Returns a node, or None."""
        ...

    @property
    def children(self) -> Callable[[str], Awaitable[list[str]]]:
        """Returns the names of the children."""
        ...


#: The result of one operation, or what else is known.
_Outcome = str | int | None | Fate


async def settle(operations: Sequence[Operation], eyes: Eyes) -> list[str | int | None] | Fate:
    """Return the results of a write that was carried out, or its fate.

    Several operations happened together or not at all, so what is known of one goes for all.
    """
    if not any(isinstance(each, Create | Set | Delete) for each in operations):
        return Fate.NOT_DONE
    for operation in sorted(operations, key=_telling):
        outcome = await _outcome(operation, eyes)
        if outcome is Fate.UNKNOWN:
            continue
        if isinstance(outcome, Fate):
            return outcome
        if len(operations) == 1:
            return [outcome]
        return _results(operations)
    return Fate.UNKNOWN


def _telling(operation: Operation) -> int:
    """Sort operations by how well they can be recognized."""
    match operation:
        case Create(ephemeral=True, sequential=False):
            return 0
        case Set() if operation.version != ANY_VERSION:
            return 1
        case Create():
            return 2
        case Delete():
            return 3
    return 4


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


async def _outcome(operation: Operation, eyes: Eyes) -> _Outcome:
    match operation:
        case Create(sequential=True):
            return await _of_sequential(operation, eyes)
        case Create():
            return _of_create(operation, await eyes.look(operation.path), eyes)
        case Set():
            return _of_set(operation, await eyes.look(operation.path), eyes)
        case Delete():
            return _of_delete(await eyes.look(operation.path), eyes)
        case Check():
            return Fate.UNKNOWN


def _of_create(operation: Create, sight: Sight | None, eyes: Eyes) -> _Outcome:
    if sight is None or not _is_within(sight.node.creation_id, eyes):
        # Asking again tells what stands in the way.
        return Fate.NOT_DONE
    node = sight.node
    if operation.ephemeral:
        # Nobody else creates in our session.
        return operation.path if node.owner == eyes.session_id else Fate.NOT_DONE
    if node.owner or (node.version == 0 and node.data != operation.data):
        return Fate.NOT_DONE
    # Somebody else may have created the same at the same time.
    return Fate.UNKNOWN


async def _of_sequential(operation: Create, eyes: Eyes) -> _Outcome:
    if not operation.ephemeral:
        return Fate.UNKNOWN
    parent, prefix = operation.path.rpartition("/")[::2]
    for name in await eyes.children(parent or "/"):
        digits = name.removeprefix(prefix)
        path = f"{parent}/{name}"
        if len(digits) != _SEQUENCE_DIGITS or not name.startswith(prefix) or path in eyes.claimed:
            continue
        sight = await eyes.look(path)
        if (
            sight is not None
            and sight.node.owner == eyes.session_id
            and _is_within(sight.node.creation_id, eyes)
            and path not in eyes.claimed
        ):
            eyes.claimed.add(path)
            return path
    return Fate.NOT_DONE


def _of_set(operation: Set, sight: Sight | None, eyes: Eyes) -> _Outcome:
    if sight is None:
        return Fate.UNKNOWN
    is_changed = sight.modified_zxid > eyes.window[0]
    if not is_changed:
        return Fate.NOT_DONE
    is_ours = _is_within(sight.modified_zxid, eyes) and sight.node.data == operation.data
    if operation.version == ANY_VERSION:
        return sight.node.version if is_ours else Fate.UNKNOWN
    if sight.node.version == operation.version + 1:
        return sight.node.version if is_ours else Fate.NOT_DONE
    return Fate.UNKNOWN


def _of_delete(sight: Sight | None, eyes: Eyes) -> _Outcome:
    if sight is None:
        return None
    if sight.node.creation_id <= eyes.window[0]:
        return Fate.NOT_DONE
    return Fate.UNKNOWN


def _is_within(zxid: int, eyes: Eyes) -> bool:
    return eyes.window[0] < zxid <= eyes.window[1]
