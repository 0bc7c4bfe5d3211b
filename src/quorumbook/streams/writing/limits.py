"""What a policy allows a stream's writer: how fast it goes, and how much the stream may hold."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait, gather_bounded
from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.streams.cursors.lag import segment_extent
from quorumbook.streams.errors import QuotaExceededError
from quorumbook.streams.format.segment_text import Truncation
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.limits")
_SECOND = 1_000_000_000
#: What is not used for so long is lost.
_CREDIT_S = 0.1
#: A stream that is full is measured again so often, at most.
_LOOK_S = 1.0


async def quota_of(context: StreamContext, policy: StreamPolicy) -> Quota | None:
    """Return how much a stream may hold, measured; None if there is no limit."""
    if not policy.max_total_bytes:
        return None
    quota = Quota(context, policy.max_total_bytes)
    await quota.measure()
    return quota


class RateLimit:
    """Entries are sent while there is credit, and may overdraw it; pure.

    Args:
        records_per_s: 0: any number.
        bytes_per_s: 0: any number.
        now_ns: Monotonic.
    """

    def __init__(self, records_per_s: float, bytes_per_s: float, now_ns: int) -> None:
        self._rates = (records_per_s, bytes_per_s)
        self._credit = [rate * _CREDIT_S for rate in self._rates]
        self._now_ns = now_ns

    def wait_s(self, now_ns: int) -> float:
        """Return how long nothing may be sent."""
        passed_s = max(now_ns - self._now_ns, 0) / _SECOND
        self._now_ns = max(now_ns, self._now_ns)
        for n, rate in enumerate(self._rates):
            self._credit[n] = min(self._credit[n] + passed_s * rate, rate * _CREDIT_S)
        pairs = zip(self._credit, self._rates, strict=True)
        # A little more than nothing, so that whoever waits is not woken in vain.
        return max((1e-6 - credit / rate for credit, rate in pairs if rate and credit <= 0),
                   default=0.0)  # fmt: skip

    def take(self, records: int, size_bytes: int) -> None:
        """Note that so much is sent."""
        for n, amount in enumerate((records, size_bytes)):
            self._credit[n] -= amount


class Quota:
    """How much a stream holds, measured now and then, and what its writer added since."""

    def __init__(self, context: StreamContext, max_total_bytes: int) -> None:
        """Take the limit; ``measure`` comes before the first ``take``."""
        self._context = context
        self._max_bytes = max_total_bytes
        self._sizes: dict[LedgerId, int] = {}
        self._stored_bytes = 0
        #: Appended, and perhaps not in what was measured.
        self._added_bytes = 0
        self._pending_bytes = 0
        self._measured_ns = 0
        self._measuring: asyncio.Task[None] | None = None

    async def measure(self) -> None:
        """Find out what the stream holds, as its ledgers say."""
        context = self._context
        self._measured_ns = context.store.env.clock.now_ns()
        # In the ledgers by now; of all that comes later nobody knows whether it is measured.
        settled_bytes = self._added_bytes - self._pending_bytes
        segments = [
            segment
            for segment in await context.nodes.segments()
            if segment.truncation is not Truncation.TRUNCATED
        ]
        unknown = [each for each in segments if each.ledger_id not in self._sizes]
        found = await gather_bounded(lambda each: segment_extent(context, each), unknown)
        growing_bytes = 0
        for segment, (size_bytes, _) in zip(unknown, found, strict=True):
            if segment.is_in_progress:
                growing_bytes += size_bytes
            else:
                self._sizes[segment.ledger_id] = size_bytes
        known_bytes = sum(self._sizes.get(each.ledger_id, 0) for each in segments)
        self._stored_bytes = growing_bytes + known_bytes
        # Only now: where the measurement fails they are in no other number.
        self._added_bytes -= settled_bytes

    def check(self, size_bytes: int) -> None:
        """Look whether so much more may be appended.

        Raises:
            QuotaExceededError: the stream would hold too much; what was let go of since is seen
                a little later.
        """
        if size_bytes > self.room_bytes:
            now = self._max_bytes - self.room_bytes
            self._look_again()
            raise QuotaExceededError(
                f"stream {self._context.name} holds about {now} bytes; {size_bytes} more are over "
                f"its limit of {self._max_bytes} (max_total_bytes in its policy): truncate it, "
                "or have retention let go of more"
            )

    @property
    def room_bytes(self) -> int:
        """How much more may be appended."""
        return self._max_bytes - self._stored_bytes - self._added_bytes

    def take(self, size_bytes: int, future: asyncio.Future[Any]) -> None:
        """Count what is appended."""
        self._added_bytes += size_bytes
        self._pending_bytes += size_bytes

        def settled(_: asyncio.Future[Any]) -> None:
            self._pending_bytes -= size_bytes

        future.add_done_callback(settled)

    def _look_again(self) -> None:
        is_early = self._context.store.env.clock.now_ns() - self._measured_ns < _LOOK_S * _SECOND
        if not is_early and (self._measuring is None or self._measuring.done()):
            self._measuring = asyncio.get_running_loop().create_task(self._measure_again())

    async def _measure_again(self) -> None:
        try:
            await self.measure()
        except QuorumbookError as error:
            _log.warning("stream %s: its size: %s", self._context.name, error)

    async def stop(self) -> None:
        """Measure no more."""
        if self._measuring is not None:
            await cancel_and_wait([self._measuring])
