"""What is stored of a cursor, in two nodes; pure.

    …/subscribers/<name>          the position that is read next, in base64
    …/subscribers/<name>/cursor   ours, as JSON: what else a cursor is, and at which position
    …/subscribers/<name>/readLock the peer's lock of who reads by it alone

The peer sets the first without looking, and knows nothing of the second: it says at which position
it was written, so that an application's state never goes with a position it does not belong to.
Records that are acknowledged one by one are in the second too (``acks``); the peer reads them
again.
"""

from __future__ import annotations

import base64
import contextlib
import json
from dataclasses import dataclass, replace
from typing import Any

from quorumbook.streams.cursors.acks import Acks
from quorumbook.streams.errors import (
    CorruptRecordsError,
    InvalidStreamNameError,
    StreamError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.position import BEFORE_FIRST_POSITION, Position, parse_position

_VERSION = 1
REST_NAME = "cursor"
#: What the metadata store takes in a node, less the rest of the JSON; in base64.
MAX_STATE_SIZE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorState:
    """What is stored of a cursor."""

    #: The record that is read next.
    position: Position
    #: What the application stored with the position; None if the position is another's.
    state: bytes | None = None
    #: Whether retention keeps the records that the cursor has not passed.
    holds_retention: bool = False
    #: Whether retention deleted records that it had not passed.
    is_overrun: bool = False
    #: What was acknowledged one by one; None if nothing ever was from here on.
    acks: Acks | None = None
    #: Who moves it now, as a member of a group; nothing to those who move it without looking.
    owner: str = ""
    #: Why the second node cannot be read, if it cannot: what was in it is not known.
    damage: StreamError | None = None

    def keeps_more_than(self, before: CursorState) -> bool:
        """Tell whether records have to stay for it that need not have stayed before."""
        return self.position < before.position or (
            self.holds_retention and not before.holds_retention
        )

    def encode_rest(self) -> bytes:
        """Return the data of the second node."""
        rest: dict[str, Any] = {"version": _VERSION, "position": str(self.position)}
        if self.holds_retention:
            rest["holds_retention"] = True
        if self.is_overrun:
            rest["overrun"] = True
        if self.state is not None:
            rest["state"] = base64.b64encode(self.state).decode()
        if self.acks is not None:
            rest["acks"] = self.acks.to_json()
        if self.owner:
            rest["owner"] = self.owner
        return json.dumps(rest, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, rest: bytes | None) -> CursorState:
        """Read both nodes; a position that cannot be read is the beginning, as the peer has it.

        Raises:
            UnsupportedFormatError: of a newer release.
            CorruptRecordsError: the second is none.
        """
        position = BEFORE_FIRST_POSITION
        with contextlib.suppress(CorruptRecordsError, UnicodeDecodeError):
            position = Position.from_text(data.decode("ascii"))
        if rest is None:
            return cls(position=position)
        try:
            found = json.loads(rest)
            version = found["version"]
            if version != _VERSION:
                raise UnsupportedFormatError(f"a cursor is of version {version}, not {_VERSION}")
            is_at_its_position = parse_position(found["position"]) == position
            state, acks = found.get("state"), found.get("acks")
            return cls(
                position=position,
                state=base64.b64decode(state) if state is not None and is_at_its_position else None,
                holds_retention=bool(found.get("holds_retention")),
                is_overrun=bool(found.get("overrun")) and is_at_its_position,
                acks=Acks.from_json(acks) if acks is not None and is_at_its_position else None,
                owner=str(found.get("owner", "")),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecordsError(f"{rest!r} is nothing that a cursor has: {error}") from error

    @classmethod
    def decode_damaged(cls, data: bytes, error: StreamError, where: str) -> CursorState:
        """Return what is known of a cursor whose second node is damaged, or of a newer release.

        Retention heeds it in case it was told to.

        Args:
            data: Of the first node.
            error: What reading the second one came to.
            where: What to call it.
        """
        damage = type(error)(f"{where} cannot be read: {error}")
        return replace(cls.decode(data, None), holds_retention=True, damage=damage)


def check_cursor_name(name: str) -> None:
    """Raise InvalidStreamNameError if no cursor can be called that."""
    if name in ("", ".", "..") or any(c in "/<>" or ord(c) < ord("!") for c in name):
        raise InvalidStreamNameError(
            f"a cursor cannot be called {name!r}: names are not empty and have no slashes, blanks, "
            "< or >"
        )
