"""What one store saw last of the nodes it works on, so that a write need not read before it.

A view that is filled from here is a guess.  Its transaction compares everything that the guess
relies on, so one that is wrong writes nothing; it then reads what is there in its other branch.

- Only nodes that are there are kept.  One that is not known is guessed to be missing, and that is
  compared, too.
- How many children a node has is known if it was counted, or made here.  Deletions do not rewrite
  the parent, so a count may be too high, never too low: the guess that a node has children is no
  ground to refuse anything.
- A node that others write as well is guessed wrong again and again.  After each time it rests.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.metadata.tree import Row

_MAX_NODES = 1000
#: Larger ones are read; a thousand nodes are a few megabytes.
_MAX_DATA_BYTES = 4096
#: So many writes of a node that was guessed wrong read it first.
_REST = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as it was written last, as far as we know."""

    row: Row
    mod_revision: int
    is_counted: bool


class KnownNodes:
    """The nodes of one store, the latest behind the others."""

    def __init__(self) -> None:
        """Begin with none."""
        self._nodes: dict[str, Seen] = {}
        self._resting: dict[str, int] = {}
        #: The latest revision at which any was seen.
        self.revision = 0

    def find(self, path: str) -> Seen | None:
        """Return what is known of a node; None: nothing."""
        return self._nodes.get(path)

    def rests(self, path: str) -> bool:
        """Tell whether a node is better read; each time that is asked brings its rest to an end."""
        left = self._resting.get(path)
        if left is None:
            return False
        if left > 1:
            self._resting[path] = left - 1
        else:
            del self._resting[path]
        return True

    def learn(self, path: str, seen: Seen | None) -> None:
        """Remember a node; None: it is not there."""
        self._nodes.pop(path, None)
        if seen is not None and len(seen.row.data) <= _MAX_DATA_BYTES:
            self._nodes[path] = seen
            if len(self._nodes) > _MAX_NODES:
                del self._nodes[next(iter(self._nodes))]

    def was_wrong(self, path: str) -> None:
        """Let a node rest that somebody else had written."""
        if len(self._resting) < _MAX_NODES:
            self._resting[path] = _REST
