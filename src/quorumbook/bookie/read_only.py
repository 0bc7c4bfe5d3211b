"""The operator's word that a bookie takes no plain adds, kept over restarts, and asked over HTTP.

In ``current/`` of the first ledger directory:

    READ_ONLY    JSON: reason, since_ms; written durably before it is answered

Over HTTP, under the peer's path; answers are JSON:

    GET /api/v1/bookie/state/readonly                           read_only, and why: reasons
    PUT /api/v1/bookie/state/readonly?read_only=true&reason=R   take no plain adds from now on
    PUT /api/v1/bookie/state/readonly?read_only=false           the operator has nothing against it
        {"readOnly": true}                                      or with the peer's body
        ...&if_reason=R                                         unless another reason is kept

The last is for whoever takes back his own word, and not what somebody else said since; either way
the answer is what holds now.  The peer keeps no reason.  What else makes a bookie read-only, full
disks and its configuration, is ``disks``'; an operator's "writable" does not overrule it (S81).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar
from urllib.parse import parse_qs

from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.http.server import Body
from quorumbook.env import Env, logger, run_job
from quorumbook.storage.directories import places

_log = logger("bookie")
T = TypeVar("T")
_PATH = "/api/v1/bookie/state/readonly"
PAGES = (f"GET {_PATH}", f"PUT {_PATH}")
_NAME = "READ_ONLY"


@dataclass(frozen=True, slots=True)
class OperatorNote:
    """Why, and since when."""

    reason: str
    since_ms: int


class OperatorsWord:
    """The note of one bookie, and what follows from it.

    Args:
        env: The outside world.
        directory: The first ledger directory.
        disks: Whom it is told.
    """

    def __init__(self, env: Env, directory: str, disks: DiskMonitor) -> None:
        self._env = env
        self._path = f"{places.current(directory)}/{_NAME}"
        self._disks = disks
        self._turn = asyncio.Lock()
        self.note: OperatorNote | None = None

    async def start(self) -> None:
        """Do what the note says that was left; one that cannot be read keeps writers away."""
        await self._take(await self._job(self._read))

    async def set(self, reason: str | None, *, if_reason: str | None = None) -> None:
        """Refuse plain adds from now on, for a reason; None: take them again.

        Args:
            reason: Why.
            if_reason: Where another reason than this one is kept, nothing is changed.
        """
        note = None if reason is None else OperatorNote(reason, self._env.clock.wall_ms())
        async with self._turn:
            kept = self.note
            if if_reason is not None and kept is not None and kept.reason != if_reason:
                return
            await self._job(lambda: self._write(note))
            await self._take(note)

    async def answer(self, method: str, target: str, body: Body) -> tuple[int, object]:
        """Return status and body for ``PAGES``."""
        wanted = parse_qs(target.partition("?")[2])
        if method == "PUT":
            # The peer's body, or parameters of ours.
            choice = wanted.get("read_only", [body.get("readOnly", "")])[0]
            if choice not in ("true", "false"):
                return 400, {"error": "say read_only=true or read_only=false"}
            reason = wanted.get("reason", ["no reason given"])[0]
            if_reason = wanted.get("if_reason", [None])[0]
            await self.set(reason if choice == "true" else None, if_reason=if_reason)
        return 200, self.state()

    def state(self) -> dict[str, object]:
        """Return whether plain adds are refused, and why."""
        reasons = self._disks.reasons()
        if self.note is not None:
            reasons = [f"operator: {self.note.reason}", *reasons]
        since_ms = None if self.note is None else self.note.since_ms
        is_read_only = self._disks.writability.is_read_only
        return {"read_only": is_read_only, "reasons": reasons, "since_ms": since_ms}

    async def _take(self, note: OperatorNote | None) -> None:
        self.note = note
        if note is not None:
            _log.warning("the operator wants no plain adds here: %s", note.reason)
        self._disks.set_operators_word(is_read_only=note is not None)

    async def _job(self, job: Callable[[], T]) -> T:
        worker = self._env.threads.start_worker("bookie-read-only")
        try:
            return await run_job(worker, job)
        finally:
            worker.stop()

    def _read(self) -> OperatorNote | None:
        if not self._env.disk.exists(self._path):
            return None
        try:
            fields = json.loads(self._env.disk.read_file(self._path))
            return OperatorNote(str(fields["reason"]), int(fields["since_ms"]))
        except (ValueError, KeyError, TypeError):
            return OperatorNote(f"{self._path} cannot be read", self._env.clock.wall_ms())

    def _write(self, note: OperatorNote | None) -> None:
        if note is not None:
            self._env.disk.write_file(self._path, [json.dumps(asdict(note)).encode()])
        else:
            # Also where there is no file: an earlier removal may have failed to become durable.
            self._env.disk.unlink(self._path)
            self._env.disk.sync_directory(self._path.rpartition("/")[0])
