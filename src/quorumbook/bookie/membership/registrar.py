"""Keeps a bookie registered in the metadata store as what it is: writable or read-only.

``BookieRegistration`` registers it anew whenever its session ended (R31); here its state follows
the disks, tried again while the store does not answer.  Entries of existing ledgers are served
all the while: that needs no metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import LocalProtocolError, MetadataError
from quorumbook.ids import BookieId
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.store import MetadataStore

_log = logger("bookie.registrar")
_RETRY_S = 1.0


class Registrar:
    """Registers one bookie.

    Args:
        store: Where it is registered.
        bookie_id: Under which name.
        info: How clients reach it.
        is_read_only: What it is now.
        metrics: Shows the state.
    """

    def __init__(
        self,
        store: MetadataStore,
        bookie_id: BookieId,
        info: BookieServiceInfo,
        *,
        is_read_only: Callable[[], bool],
        metrics: BookieMetrics,
    ) -> None:
        self._registration = BookieRegistration(store)
        self._registration.on_changed = lambda _: self._show()
        self._bookie_id = bookie_id
        self._info = info
        self._is_read_only = is_read_only
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._registered_read_only = False
        #: A move that failed may be done all the same, now or in the next session.
        self._is_moving = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_registered(self) -> bool:
        """Tell whether the bookie can be found."""
        return self._registration.is_registered

    async def start(self) -> None:
        """Register; then keep it so.

        Raises:
            MetadataError: the store does not answer.
        """
        self._registered_read_only = self._is_read_only()
        # The directories are locked and the cookie fits, so a node of this id that is still
        # there is of this bookie's former process.
        await self._registration.register(
            self._bookie_id, self._info, self._registered_read_only, take_over=True
        )
        self._show()
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self, timeout_s: float = 2.0) -> None:
        """Take the registration back, as far as the store answers."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait([task])
        try:
            async with patience.timeout(timeout_s):
                await self._registration.unregister()
        except (MetadataError, LocalProtocolError, TimeoutError) as error:
            _log.warning("the registration goes with its session: %s", error)
        await self._registration.close()
        self._metrics.server_status = -1

    def changed(self) -> None:
        """The bookie may have become read-only or writable."""
        self._changed.set()

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                while self._is_moving or self._is_read_only() != self._registered_read_only:
                    wanted, self._is_moving = self._is_read_only(), True
                    if wanted:
                        await self._registration.set_read_only()
                    else:
                        await self._registration.set_writable()
                    self._registered_read_only, self._is_moving = wanted, False
                    self._show()
            except MetadataError as error:
                _log.warning("the bookie's state is not registered yet: %s", error)
            except Exception:
                _log.exception("the bookie's state is not registered yet")
            else:
                continue
            self._changed.set()
            await asyncio.sleep(_RETRY_S)

    def _show(self) -> None:
        if self._registration.is_registered:
            self._metrics.server_status = int(not self._registered_read_only)
        else:
            self._metrics.server_status = -1
