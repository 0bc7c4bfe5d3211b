"""Adds that bookies acknowledge before they sync them, and the force that makes up for it.

Only v3 has a flag for such adds, so their writers have a connection of their own to each bookie;
it carries their forces too.  That it is one connection matters: when it broke, nobody knows
whether the bookie behind it is still the one that acknowledged, or was started anew without what
it had not synced.

What an acknowledgement and a force mean for the last add confirmed is decided by
``ledger.append``; when to force is the writer's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quorumbook.client.transport.channels import ControlChannel
from quorumbook.client.transport.connection import AddListener
from quorumbook.errors import QuorumbookError, RemoteProtocolError, WriteFailedError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.status import Status, code_of, error_for
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

#: Transaction ids of adds begin here: their answers are told apart by ledger and entry.
_ADD_TXN = 1 << 62


class DeferredChannel(ControlChannel):
    """A v3 connection that carries adds beside requests."""

    def _received(self, data: bytes) -> None:
        touched: dict[LedgerId, AddListener] = {}
        run: v2.AddAnswers | None = None
        try:
            for response in self._decoder.feed(data):
                if response.operation is not Operation.ADD_ENTRY:
                    self._answered(response)
                    continue
                ledger_id, entry_id = response.ledger_id, response.entry_id
                if ledger_id is None or entry_id is None:
                    raise RemoteProtocolError(f"adds are refused altogether: {response.status!r}")
                code = code_of(response.status)
                if run is not None:
                    if run == (ledger_id, run.first_entry_id, entry_id - 1, code):
                        run = run._replace(last_entry_id=entry_id)
                        continue
                    self._deliver(run, touched)
                run = v2.AddAnswers(ledger_id, entry_id, entry_id, code)
            if run is not None:
                self._deliver(run, touched)
        finally:
            for listener in touched.values():
                listener.on_answers_end()

    def _deliver(self, run: v2.AddAnswers, touched: dict[LedgerId, AddListener]) -> None:
        listener = self._listeners.get(run.ledger_id)
        if listener is not None:
            listener.on_add_answers(self, run)
            touched[run.ledger_id] = listener

    def _fail_all(self, error: QuorumbookError) -> None:
        super()._fail_all(error)
        self._fail_listeners(error)


def seal_deferred_adds(
    digester: Digester,
    master_key: bytes,
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    lac: EntryId,
    length: int,
    payloads: Sequence[bytes],
) -> list[bytes]:
    """Seal consecutive entries and frame each as an add that need not be synced.

    The arguments are those of ``v2.seal_add_frames``.
    """
    entries, _ = digester.seal_many(ledger_id, first_entry_id, lac, length, payloads)
    return [
        v3.encode_add(
            _ADD_TXN | entry_id, ledger_id, entry_id, master_key, entry, is_deferred_sync=True
        )
        for entry_id, entry in enumerate(entries, first_entry_id)
    ]


async def force(ledger_id: LedgerId, channels: Sequence[DeferredChannel]) -> None:
    """Have every bookie of an ensemble sync what it has acknowledged.

    Which bookies acknowledged which entry is not remembered, so that all of them have to: less
    would prove nothing of any entry.

    Raises:
        WriteFailedError: not all of them did; the message names the others.
    """
    asked = {
        channel.bookie_id: channel.request(
            "a force", lambda txn_id: v3.encode_force(txn_id, ledger_id)
        )
        for channel in channels
    }
    outcomes = await asyncio.gather(*asked.values(), return_exceptions=True)
    problems: list[BaseException] = []
    for bookie_id, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            problems.append(outcome)
        elif outcome.status is not Status.OK:
            problems.append(error_for(outcome.status, ledger_id=ledger_id, bookie_id=bookie_id))
    if problems:
        causes = "; ".join(str(problem) for problem in problems)
        raise WriteFailedError(
            f"not every bookie of ledger {ledger_id} synced what it had acknowledged: {causes}",
            ledger_id=ledger_id,
        ) from problems[0]
