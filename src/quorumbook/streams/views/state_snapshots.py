"""Where a state machine's snapshots are: the state in a ledger, and a cursor that points to it.

The cursor's position is behind the last record that is in the state; its own state is

    00 'Q' 'B' 'S' 01 | JSON {"ledger": 7, "size_bytes": 123, "next_sequence_id": 42, "other": 9}

``ledger`` has the state, cut into entries; it is left out before there is one.  ``other`` is the
next snapshot's, half written, or the last one's: whoever makes another snapshot deletes it, so
that one who is killed leaves no ledger that nobody names.  Both change by the cursor's
compare-and-set, so of two who make a snapshot at the same time the later one wins.  The cursor
holds retention: what is behind a snapshot stays.
"""

from __future__ import annotations

import contextlib
import json
from typing import NamedTuple

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.streams.cursors.cursor import Cursor, list_cursors, open_cursor, read_cursor
from quorumbook.streams.errors import (
    CorruptRecordsError,
    CursorConflictError,
    DataLossError,
    StreamNotFoundError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.stream_context import StreamContext

_MAGIC = b"\x00QBS\x01"
_COMPONENT = b"state snapshot"
_ENTRY_BYTES = 512 * 1024
#: Others may replace the snapshot while it is read; nobody is that unlucky so often.
_ATTEMPTS = 16


class Snapshot(NamedTuple):
    """A state, and where in the stream it was."""

    data: bytes
    #: Behind the last record that is in it.
    position: Position
    next_sequence_id: int


class SnapshotStore:
    """The snapshots of one state machine; the newest is kept."""

    def __init__(self, context: StreamContext, name: str) -> None:
        """Take the stream's, and the cursor's name."""
        self._context = context
        self._name = name

    async def load(self) -> Snapshot | None:
        """Return the newest snapshot; None if there is none yet.

        Raises:
            DataLossError: its ledger is gone.
        """
        for _ in range(_ATTEMPTS):
            cursor = await read_cursor(self._context, self._name)
            found = _pointer(cursor)
            if cursor is None or "ledger" not in found:
                return None
            try:
                data = await self._read(found["ledger"])
            except NoSuchLedgerInMetadataError:
                continue
            if len(data) != found["size_bytes"]:
                raise CorruptRecordsError(
                    f"ledger {found['ledger']} has {len(data)} bytes of a snapshot of "
                    f"{found['size_bytes']}"
                )
            return Snapshot(data, cursor.position, found["next_sequence_id"])
        raise DataLossError(
            f"the ledger of snapshot {self._name} of stream {self._context.name} is gone"
        )

    async def save(self, snapshot: Snapshot) -> bool:
        """Store a newer snapshot, and delete the one before.

        Returns:
            Whether it is the newest now; else somebody else makes one, or made a newer one.
        """
        context = self._context
        cursor = await open_cursor(context, self._name, "earliest", holds_retention=True)
        old = _pointer(cursor)
        if "ledger" in old and cursor.position >= snapshot.position:
            return False
        policy = await context.policy()
        whose = {
            "application": b"quorumbook",
            "component": _COMPONENT,
            "namespace": context.nodes.paths.namespace.encode(),
            "stream": context.name.encode(),
        }
        ledger = await context.client.create_ledger(
            password=context.password, **policy.ledger_keywords(whose)
        )
        try:
            await cursor.reset(cursor.position, state=_encode({**old, "other": ledger.id}))
            await self._delete(old.get("other"))
            async with ledger:
                for start in range(0, len(snapshot.data), _ENTRY_BYTES):
                    await ledger.append(snapshot.data[start : start + _ENTRY_BYTES])
            new = {
                "ledger": ledger.id,
                "size_bytes": len(snapshot.data),
                "next_sequence_id": snapshot.next_sequence_id,
                **({"other": old["ledger"]} if "ledger" in old else {}),
            }
            await cursor.reset(snapshot.position, state=_encode(new))
        except (CursorConflictError, StreamNotFoundError):
            await ledger.abort()
            # The answer may have been lost, and the next one have begun since: this is what it
            # replaces then, and deletes.
            if _pointer(await read_cursor(context, self._name)).get("ledger") == ledger.id:
                return True
            await self._delete(ledger.id)
            return False
        await self._delete(old.get("ledger"))
        return True

    async def _read(self, ledger_id: LedgerId) -> bytes:
        async with self._context.client.open_ledger(
            ledger_id, password=self._context.password
        ) as reader:
            return b"".join([entry.payload async for entry in reader.read()])

    async def _delete(self, ledger_id: LedgerId | None) -> None:
        if ledger_id is not None:
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await self._context.client.delete_ledger(ledger_id)


async def snapshot_ledgers(context: StreamContext) -> list[LedgerId]:
    """Return the ledgers with snapshots of a stream, which go with it."""
    found = []
    for cursor in await list_cursors(context):
        pointer = _pointer(cursor)
        for ledger_id in (pointer[name] for name in ("ledger", "other") if name in pointer):
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                metadata = await context.client.ledger_metadata(ledger_id)
                # A cursor's state is anybody's to write.
                if metadata.custom_metadata.get("component") == _COMPONENT:
                    found.append(ledger_id)
    return found


def _encode(pointer: dict[str, int]) -> bytes:
    return _MAGIC + json.dumps(pointer, separators=(",", ":")).encode()


def _pointer(cursor: Cursor | None) -> dict[str, int]:
    """Return what a cursor's state says of snapshots; empty if that is nothing."""
    state = None if cursor is None else cursor.state
    if state is None or not state.startswith(_MAGIC):
        return {}
    try:
        return {str(k): int(v) for k, v in json.loads(state.removeprefix(_MAGIC)).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptRecordsError(f"{state!r} points to no snapshot: {error}") from error
