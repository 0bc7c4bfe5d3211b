"""How the writer of a ledger ends: by a close, for which several callers may wait, or an abort."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from quorumbook.client.context import Context, change_metadata
from quorumbook.client.options import ClientOptions
from quorumbook.client.waiting.outcomes import copy_error, outcome_of
from quorumbook.client.writing.adds import AddDriver
from quorumbook.errors import ClientClosedError, LedgerFencedError, QuorumbookError
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.transitions import closed_metadata


class Ending:
    """The end of one writer; ``LedgerWriter`` says when it begins."""

    def __init__(
        self,
        context: Context,
        options: ClientOptions,
        adds: AddDriver,
        on_over: Callable[[], None] | None,
    ) -> None:
        self._context = context
        self._options = options
        self._adds = adds
        self._on_over = on_over
        #: Nothing may be appended any more.
        self.has_begun = False
        self._is_aborted = False
        self._closing: asyncio.Task[None] | None = None
        #: The ledger's metadata once it is closed.
        self.metadata: LedgerMetadata | None = None

    @property
    def is_closing(self) -> bool:
        """Whether a close is under way, or was successful."""
        return self._closing is not None

    def close(self, *, force: bool) -> None:
        """Begin to close the ledger behind what is pending; ``closed`` waits for it."""
        self.has_begun = True
        self._closing = self._context.spawn(self._close(force=force), is_awaited=True)

    async def closed(self) -> None:
        """Wait for the close, and raise what went wrong with it."""
        assert self._closing is not None
        await outcome_of(self._closing)

    def abort(self) -> None:
        """Take nothing more, and have a close that is under way fail."""
        self.has_begun = self._is_aborted = True

    async def stopped(self) -> None:
        """Wait until an aborted writer has nothing under way."""
        if self._closing is not None:
            await asyncio.wait([self._closing])
        await self._adds.keeper.stop()

    def detach(self) -> None:
        """Hear nothing more of the ledger."""
        self._adds.stop()
        if self._on_over is not None:
            self._on_over()

    async def _close(self, *, force: bool) -> None:
        state = self._adds.state
        if force:
            await self._force_before_close()
        try:
            with contextlib.suppress(QuorumbookError):
                await self._adds.confirmed(state.last_add_pushed)
            await self._adds.keeper.stop()
            is_over = isinstance(state.error, LedgerFencedError | ClientClosedError)
            if state.error is not None and (is_over or self._is_aborted):
                raise copy_error(state.error)
            last, length = state.close_point()
            self.metadata, _ = await change_metadata(
                self._context,
                state.metadata,
                self._adds.keeper.version,
                partial(closed_metadata, last_entry_id=last, length=length),
                timeout_s=self._options.operation_timeout_s,
            )
        finally:
            self.detach()
        if state.error is not None:
            raise copy_error(state.error)

    async def _force_before_close(self) -> None:
        """Force what is not; if that fails the ledger stays open, and close can be tried again."""
        try:
            with contextlib.suppress(QuorumbookError):
                await self._adds.confirmed(self._adds.state.last_add_pushed)
            if self._adds.has_unforced:
                await self._adds.force()
        except QuorumbookError:
            self._closing = None
            raise
