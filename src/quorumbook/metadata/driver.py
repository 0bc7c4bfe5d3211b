"""What the stores of all drivers do alike: ending, telling of a session's end, and forks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumbook.env import Env
from quorumbook.env.forks import watch
from quorumbook.errors import LocalProtocolError
from quorumbook.metadata.store import Operation
from quorumbook.metadata.tree import Callbacks


class DriverStore:
    """One session on a tree; a driver implements the rest of ``store.MetadataStore``."""

    def __init__(self, uri: str, env: Env, ledgers_root: str, multi_limit: int) -> None:
        """Take what the store was opened with, and how many operations a ``multi`` may have."""
        self.uri = uri
        self.env = env
        self.ledgers_root = ledgers_root
        self.multi_limit = multi_limit
        self._on_expired = Callbacks()
        self._is_closed = False
        self._forked: LocalProtocolError | None = None
        watch(self, DriverStore.abandon)

    def on_session_expired(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have a callback run whenever a session ends; return its removal."""
        return self._on_expired.add(callback)

    def abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: refuse everything; see ``env.forks``."""
        del may_act
        self._forked, self._is_closed = error, True

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._forked or LocalProtocolError(f"metadata store {self.uri} is closed")

    def _check_size(self, operations: Sequence[Operation]) -> None:
        """Raise LocalProtocolError for more operations than one ``multi`` may have."""
        if len(operations) > self.multi_limit:
            raise LocalProtocolError(f"more than {self.multi_limit} operations in one multi")
