"""Why marked ledgers are not healed yet, and when that is tried again.

Below ``<root>/underreplication``, beside the peer's nodes, which know nothing of it:

    failures/urL<id>    JSON: reason, attempts, at_ms, retry_at_ms, replicas

The mark itself stays in the queue: the ledger still lacks copies.  A worker that failed leaves a
record here; the others read it before they try, so that they don't all fail one after the other.
Times are wall-clock milliseconds: a clock that is wrong costs an early or a late attempt.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

from quorumbook.errors import NoSuchNodeError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.metadata.nodes import set_or_create, with_living_session
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import MetadataStore

_NAME = re.compile(r"urL([0-9]{10,19})")
#: A ledger that could not be healed so often in a row is in quarantine.
QUARANTINE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class FailedHealing:
    """What is known of a ledger that could not be healed."""

    ledger_id: LedgerId
    #: What stands in the way, by name.
    reason: str
    #: How often it was tried in a row.
    attempts: int
    #: When it was tried last.
    at_ms: int
    #: When it is tried again, if nothing happens that gives reason to earlier.
    retry_at_ms: int
    #: The bookies that the mark named then.
    replicas: tuple[BookieId, ...] = ()

    @property
    def is_quarantined(self) -> bool:
        """Tell whether trying it did not help often enough."""
        return self.attempts >= QUARANTINE_ATTEMPTS


class Quarantine:
    """The records of one cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._root = f"{TreePaths(store.ledgers_root).underreplication}/failures"

    async def read(self, ledger_id: LedgerId) -> FailedHealing | None:
        """Return the record of a ledger; None if there is none, or none that can be read."""
        try:
            node = await self._store.get(self._path(ledger_id))
        except NoSuchNodeError:
            return None
        return _decode(ledger_id, node.data)

    async def write(self, failure: FailedHealing) -> None:
        """Remember a failure in the place of an earlier one."""
        fields = asdict(failure)
        path = self._path(fields.pop("ledger_id"))
        await set_or_create(self._store, path, json.dumps(fields).encode())

    async def remove(self, ledger_id: LedgerId) -> None:
        """Forget a ledger."""
        with contextlib.suppress(NoSuchNodeError):
            await with_living_session(
                self._store, lambda: self._store.delete(self._path(ledger_id))
            )

    async def list(self) -> AsyncIterator[FailedHealing]:
        """Yield all records that can be read, ascending by id."""
        try:
            names = await self._store.children(self._root)
        except NoSuchNodeError:
            return
        matches = (_NAME.fullmatch(name) for name in names)
        for ledger_id in sorted(int(match[1]) for match in matches if match):
            found = await self.read(ledger_id)
            if found is not None:
                yield found

    def _path(self, ledger_id: LedgerId) -> str:
        return f"{self._root}/urL{ledger_id:010d}"


def _decode(ledger_id: LedgerId, data: bytes) -> FailedHealing | None:
    """Read a record; what was damaged is only a hint less."""
    try:
        fields = json.loads(data)
        return FailedHealing(
            ledger_id,
            str(fields["reason"]),
            int(fields["attempts"]),
            int(fields["at_ms"]),
            int(fields["retry_at_ms"]),
            tuple(map(str, fields["replicas"])),
        )
    except (ValueError, KeyError, TypeError):
        return None
