"""Carries out the ensemble changes that a writer's append machine asks for.

A change chooses new bookies, makes sure that they accept connections, and records them by
compare-and-set; the machine then has everything unconfirmed sent to them.  Where no bookie is
left and the machine goes on with fewer, it is looked after here until the ensemble is whole again:
a bookie that appears takes the failed one's place, and a failed one that accepts connections again
is taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

from quorumbook.client.context import Context, change_metadata
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    BookieUnavailableError,
    InternalError,
    NotEnoughBookiesError,
    QuorumbookError,
    ReadOnlyBookieError,
    SecurityError,
)
from quorumbook.ids import BookieId
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.append_effects import ChangeEnsemble
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.transitions import changed_metadata

_log = logger("client.writer")
#: How often a degraded writer looks for a bookie, and how long it leaves one alone that failed
#: again right after it was taken back.
_LOOK_S = 1.0
_LONGEST_LOOK_S = 30.0


class EnsembleKeeper:
    """Ensemble changes and degraded mode of one writer."""

    def __init__(
        self,
        context: Context,
        state: AppendState,
        version: int,
        on_progress: Callable[[], None],
        *,
        require_replacement: bool = False,
    ) -> None:
        """Keep the ensemble of a writer.

        Args:
            context: The client's.
            state: The writer's machine.
            version: The version of its metadata.
            on_progress: Runs after each call of the machine, to carry out its effects.
            require_replacement: Whether the writer stops where no bookie is left.
        """
        self.version = version
        self._context = context
        self._state = state
        self._on_progress = on_progress
        self._require_replacement = require_replacement
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        #: Why the bookie at a position failed.
        self._errors: dict[int, QuorumbookError] = {}
        self._returns: dict[BookieId, int] = {}

    def on_failure(self, index: int, error: QuorumbookError) -> None:
        """Remember why a position failed."""
        self._errors[index] = error

    async def could_replace(self, bookie_ids: Collection[BookieId]) -> bool:
        """Tell whether a change that replaces some members would find a bookie."""
        state = self._state
        if not bookie_ids or state.is_changing:
            return False
        bookies = self._context.bookies
        with contextlib.suppress(QuorumbookError):
            await bookies.writable()
            return await self._has_replacement()
        return False

    def start_change(self, change: ChangeEnsemble) -> None:
        """Carry out an ensemble change."""
        task = self._context.spawn(self._run(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start_watch(self) -> None:
        """Look for bookies until the ensemble is whole again."""
        if self._watch is None:
            self._watch = self._context.spawn(self._look_for_bookies())

    async def stop(self) -> None:
        """Stop whatever is under way."""
        tasks = [*self._tasks]
        if self._watch is not None:
            tasks.append(self._watch)
        await cancel_and_wait(tasks)

    async def _run(self, change: ChangeEnsemble) -> None:
        state = self._state
        try:
            await self._change(change)
        except NotEnoughBookiesError as error:
            _log.info("ledger %d: %s", state.metadata.ledger_id, error)
            refusals = [e for e in self._errors.values() if isinstance(e, SecurityError)]
            state.on_no_replacement(refusals[0] if refusals else None)
        except QuorumbookError as error:
            state.on_ensemble_change_failed(error)
        except Exception as error:
            failure = InternalError(f"an ensemble change failed: {error!r}")
            failure.__cause__ = error
            state.on_ensemble_change_failed(failure)
        self._on_progress()

    async def _change(self, change: ChangeEnsemble) -> None:
        state = self._state
        chosen = await self._choose(change, state.metadata)

        def apply(current: LedgerMetadata) -> LedgerMetadata | None:
            wanted, indexes = changed_metadata(current, change, chosen)
            return wanted if indexes else None

        metadata, self.version = await change_metadata(
            self._context,
            state.metadata,
            self.version,
            apply,
            timeout_s=self._context.options.operation_timeout_s,
        )
        _log.info(
            "ledger %d: from entry %d on the ensemble is %s",
            metadata.ledger_id,
            metadata.last_fragment.first_entry_id,
            ", ".join(metadata.ensemble),
        )
        # Whoever wrote it: what stands there tells who was replaced.
        replaced = [i for i, failed in change.failed.items() if metadata.ensemble[i] != failed]
        for index in replaced:
            self._errors.pop(index, None)
        state.on_ensemble_changed(metadata, replaced)

    async def _choose(
        self, change: ChangeEnsemble, metadata: LedgerMetadata
    ) -> Mapping[int, BookieId]:
        """Choose replacements; quarantined bookies only if the writer stops without them."""
        state = self._state
        is_refused = any(each in state.refusals for each in change.failed.values())
        is_needed = self._require_replacement or is_refused or not state.is_viable
        return await self._context.bookies.replace(
            change.failed,
            metadata,
            metadata.ensemble,
            excluded=state.refusals,
            is_needed=is_needed,
        )

    async def _has_replacement(self) -> bool:
        state = self._state
        taken = *state.ensemble, *state.refusals
        return await self._context.bookies.has_replacement(state.metadata, taken)

    async def _look_for_bookies(self) -> None:
        changed = asyncio.Event()
        remove = self._context.bookies.on_change(changed.set)
        try:
            while self._state.failed and self._state.error is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await changed.wait()
                changed.clear()
                if self._state.is_changing:
                    continue
                with contextlib.suppress(QuorumbookError):
                    # Asks again if the registrations could not be read when they changed.
                    await self._context.bookies.writable()
                # While it is patient, a failed bookie keeps its place.
                if self._state.is_degraded and await self._has_replacement():
                    self._state.retry_replacement()
                    self._on_progress()
                if not self._state.is_changing:
                    await self._take_back()
        finally:
            remove()
            self._watch = None

    async def _is_reason_gone(self, index: int, bookie_id: BookieId) -> bool:
        error = self._errors.get(index)
        if isinstance(error, ReadOnlyBookieError):
            with contextlib.suppress(QuorumbookError):
                return bookie_id in await self._context.bookies.writable()
        return error is None or isinstance(error, BookieUnavailableError)

    async def _take_back(self) -> None:
        """Use failed members that accept connections, or writes, again."""
        for index, bookie_id in self._state.failed.items():
            if not await self._is_reason_gone(index, bookie_id):
                continue
            channel = self._context.bookies.fast(bookie_id)
            try:
                await channel.connected()
            except QuorumbookError:
                continue
            returns = self._returns.get(bookie_id, 0)
            self._returns[bookie_id] = returns + 1
            if returns:
                await asyncio.sleep(min(_LOOK_S * 2**returns, _LONGEST_LOOK_S))
            _log.info("ledger %d: bookie %s is back", self._state.metadata.ledger_id, bookie_id)
            self._state.on_bookie_back(index, bookie_id)
            self._on_progress()
