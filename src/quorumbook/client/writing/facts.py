"""What the writer of a ledger knows of it, and what it refuses; ``writer.py`` does the work."""

from __future__ import annotations

import asyncio

from quorumbook.client.options import ClientOptions
from quorumbook.client.waiting.closing import ClosingQuietly
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.waiting.window import Window
from quorumbook.client.writing.explicit_ids import ChosenAppends
from quorumbook.client.writing.pending import Group
from quorumbook.errors import LedgerClosedError, LocalProtocolError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.metadata import LedgerMetadata


class WriterFacts(ClosingQuietly):
    """The part of ``LedgerWriter`` that changes nothing; its writer gives it what it looks at."""

    _id: LedgerId
    _options: ClientOptions
    _state: AppendState
    _window: Window
    _chosen: ChosenAppends | None
    _payloads: list[bytes]
    _futures: list[asyncio.Future[EntryId]]
    _unpacked: list[Group]
    _max_payload_bytes: int
    _closed_metadata: LedgerMetadata | None
    _is_closing: bool
    _forked: LocalProtocolError | None

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._id

    @property
    def options(self) -> ClientOptions:
        """The options of this writer."""
        return self._options

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last wrote it."""
        return self._closed_metadata or self._state.metadata

    @property
    def last_add_pushed(self) -> EntryId:
        """The id of the newest entry appended so far, confirmed or not."""
        if self._chosen is not None:
            return self._chosen.last_entry_id
        unpacked = len(self._payloads) + sum(group.count for group in self._unpacked)
        return self._state.last_add_pushed + unpacked

    @property
    def last_add_confirmed(self) -> EntryId:
        """The newest entry that is safe, with all before it; -1 if there is none."""
        return self._state.last_add_confirmed

    @property
    def length(self) -> int:
        """How many payload bytes are confirmed."""
        return self._state.close_point()[1]

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be appended any more: closed, aborted or failed."""
        return self._is_closing or self._state.error is not None

    @property
    def is_degraded(self) -> bool:
        """Whether writing goes on with fewer bookies than wanted."""
        return self._state.is_degraded

    @property
    def pending_entries(self) -> int:
        """How many entries were appended and are not confirmed."""
        return self._window.used_entries

    @property
    def pending_bytes(self) -> int:
        """How many bytes the window holds, what slow bookies have not taken included."""
        return self._window.used_bytes

    def _check_size(self, payload: bytes) -> None:
        """Raise LocalProtocolError if a payload fits into no frame."""
        if len(payload) > self._max_payload_bytes:
            raise LocalProtocolError(
                f"an entry of {len(payload)} bytes is larger than the {self._max_payload_bytes} "
                "that fit into a frame; split it",
                ledger_id=self._id,
            )

    def _check_unnumbered(self) -> None:
        if self._chosen is not None:
            raise LocalProtocolError(
                f"entries of ledger {self._id} need an id: use append_at", ledger_id=self._id
            )

    def _check_open(self) -> None:
        """Raise what ended the writer, if it is ended."""
        self._check_error()
        if self._is_closing:
            raise LedgerClosedError(f"ledger {self._id} is closed", ledger_id=self._id)

    def _check_owner(self) -> None:
        if self._forked is not None:
            raise copy_error(self._forked)

    def _check_error(self) -> None:
        if self._state.error is not None:
            raise copy_error(self._state.error)
