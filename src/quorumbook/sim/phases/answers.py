"""The directed phase ``answers``: what clients ask for in rare moments, and are answered.

flushed     who asks what is confirmed hears first from a bookie that knows nothing (S17)
remembered  all bookies start again when something was flushed, and often seen (S36, S48)
older       bookies are told an older number than they know (S40)
refused     a writer that failed is closed right away (S18)
ended       a ledger is closed by several at once, and appended to behind that (S32)
bare        the metadata of a ledger have neither a password nor a type of digest (S20)
deleted     a ledger that is gone is opened, or was being followed when it went (S21)
used        an id is used a second time (S34)
third       a bookie fails when the others have acknowledged everything (S30)
bounded     more bookies fail than a writer may replace (S31)
moved       a read is under way when all copies go to other bookies (S33)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quorumbook.autorecovery.copying.healing import Healer
from quorumbook.client.context import client_context
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import (
    DuplicateEntryIdError,
    LedgerClosedError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import digester, master_key
from quorumbook.protocol.v3 import client as v3
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import PASSWORD
from quorumbook.sim.histories.readers import Reading
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases import script
from quorumbook.sim.phases.script import (
    MOMENT_S,
    SLOW_SYNC_NS,
    NotReachedError,
    OneLedger,
    Script,
)
from quorumbook.sim.process import SYNC_NS, Machine

#: What it wants of the plan.
PLAN: dict[str, Any] = {**script.PLAN, "rough_s": 4.0}
#: How many close a ledger at once.
_CLOSES = 3


class Answers(Script):
    """Whatever is asked for."""

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (
            self._flushed,
            self._remembered,
            self._older,
            self._refused,
            self._ended,
            self._bare,
            self._deleted,
            self._used,
            self._third,
            self._bounded,
            self._moved,
        )

    # What is confirmed

    async def _flushed(self) -> None:
        ledger, (first, *knowing), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, first)
        last = await self._flush(ledger)
        reader, client = await self._user()
        for machine in knowing:
            self._network.cut(machine.name, reader.name)
        self._kernel.after(int(MOMENT_S * SECOND), self._let_answer, reader, knowing)
        await self._look(ledger, reader, client, last)

    async def _remembered(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2))
        is_at_once = self._tape.chance(0.5)
        for machine in self._bookies:
            machine.sync_ns = SLOW_SYNC_NS if is_at_once else SYNC_NS
        last = await self._flush(ledger)
        if not is_at_once:
            await self._look(ledger, *await self._user(), last)
        for _ in range(self._tape.pick((1, 2))):
            for machine in self._bookies:
                self._end(self._tape.pick((machine.kill, machine.cut_power)))
            await asyncio.sleep(MOMENT_S)
            for machine in self._bookies:
                machine.sync_ns = SYNC_NS
                machine.boot_up()
            await self._until(lambda: self._life.cluster.is_whole, 5.0)
        await self._look(ledger, *await self._user(), last)

    async def _older(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2))
        last = await self._flush(ledger)
        reader, client = await self._user()
        seal, key = digester(self._life.plan.digest_type, PASSWORD), master_key(PASSWORD)
        older = self._tape.below(last)
        packet = seal.lac_packet(ledger.ledger_id, older)

        async def tell() -> None:
            bookies = client_context(client).bookies
            for machine in members:
                await bookies.control(machine.name).request(
                    "an older number",
                    lambda txn_id: v3.encode_write_lac(
                        txn_id, ledger.ledger_id, older, key, packet
                    ),
                )

        await self._asked(reader, tell)
        await self._look(ledger, reader, client, last)

    async def _flush(self, ledger: OneLedger) -> EntryId:
        """Have some entries confirmed to everybody; return the last one."""
        await self._append(ledger, 2)
        outcome = await self._asked(ledger.writer, ledger.appends.writer.flush)
        if outcome is not None:
            raise NotReachedError
        return ledger.sent - 1

    async def _look(
        self, ledger: OneLedger, reader: Machine, client: SimClient, last: EntryId
    ) -> None:
        """Have somebody ask what is confirmed, who must know of an entry."""

        async def look() -> EntryId:
            found = await self._open(ledger, client, recover=False)
            await found.close()
            return found.last_add_confirmed

        told = await self._asked(reader, look)
        if isinstance(told, QuorumbookError):
            raise NotReachedError
        self._life.history.confirmed(ledger.ledger_id, reader.name, told)
        if told < last:
            text = f"{reader.name} is told that {told} is confirmed, and {last} was flushed"
            self._wrong(Invariant.WHAT_WAS_FLUSHED_IS_SEEN, text, ledger.ledger_id)

    # How a ledger ends

    async def _refused(self) -> None:
        ledger, (_, *others), spares = await self._written((3, 3, 2))
        for machine in (*others, *spares):
            self._end(machine.kill)
        ledger.burst(self._tape.pick((1, 3)))
        await self._until(lambda: ledger.is_acknowledged, 3.0)
        await self._asked(ledger.writer, partial(self._close, ledger))
        await self._until(lambda: self._is_closed(ledger), 1.0)

    async def _ended(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2))
        ledger.burst(self._tape.pick((1, 4)))
        writer = ledger.appends.writer

        async def end() -> None:
            closes = [asyncio.ensure_future(self._close(ledger)) for _ in range(_CLOSES)]
            await asyncio.sleep(self._tape.pick((0, 0.0005)))
            try:
                writer.append_nowait(b"late")
            except LedgerClosedError:
                pass
            else:
                text = "an entry is taken that was appended behind a close"
                self._wrong(Invariant.ERRORS_SAY_WHAT_IS_WRONG, text, ledger.ledger_id)
            await asyncio.gather(*closes)

        await self._asked(ledger.writer, end)

    async def _close(self, ledger: OneLedger) -> None:
        process = ledger.writer.process
        assert process is not None
        await actors.close(self._life.history, process, ledger.appends.writer)

    async def _bare(self) -> None:
        user, client = await self._user()
        format_version = self._tape.pick((2, 3))

        async def make() -> LedgerWriter:
            ledger_id = await client.reserve_ledger_id()
            chosen = sorted(await client_context(client).bookies.writable())[:3]
            metadata = LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=3,
                write_quorum_size=3,
                ack_quorum_size=2,
                fragments=(Fragment(0, tuple(chosen)),),
                format_version=format_version,
            )
            context = client_context(client)
            made, version = await LedgerManager(context.store).create(metadata)
            return LedgerWriter(context, client.options, made, version, PASSWORD)

        writer = await self._asked(user, make)
        process = user.process
        if process is None or not isinstance(writer, LedgerWriter):
            raise NotReachedError
        history = self._life.history
        one = history.created(writer.id, user.name, 2, lambda: writer.last_add_confirmed)
        appends = actors.Appends(self._life, process, writer, one, False, False)
        ledger = OneLedger(writer.id, user, appends, one)
        await self._append(ledger, self._tape.pick((1, 3)))
        self._end(user.kill)
        self._visit(ledger, actors.read_closed)
        what = "a ledger whose metadata have no password is not recovered with the one given"
        await self._must(lambda: self._is_closed(ledger), what, ledger)

    async def _deleted(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2))
        follower, others = await self._user()

        async def follow() -> None:
            reader = await self._open(ledger, others, recover=False)
            async for _ in reader.tail():
                pass

        ends = self._ask(follower, follow)
        await asyncio.sleep(MOMENT_S)
        self._end(ledger.writer.kill)
        user, client = await self._user()
        self._life.history.doomed(ledger.ledger_id, user.name)
        await self._asked(user, partial(client.delete_ledger, ledger.ledger_id))
        await self._until(lambda: self._life.history.is_gone(ledger.ledger_id), 1.0)
        recover = self._tape.chance(0.5)
        told = await self._asked(user, partial(self._open, ledger, client, recover=recover))
        self._must_be_gone(ledger, user, told)
        what = f"{follower.name} goes on following a ledger that is gone"
        await self._must(lambda: bool(ends), what, ledger)
        self._must_be_gone(ledger, follower, ends[0])

    def _must_be_gone(self, ledger: OneLedger, who: Machine, told: object) -> None:
        if not isinstance(told, NoSuchLedgerInMetadataError):
            text = f"{who.name} opens a ledger that is gone, and is told {told!r}"
            self._wrong(Invariant.ERRORS_SAY_WHAT_IS_WRONG, text, ledger.ledger_id)

    async def _used(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2), explicit_entry_ids=True)
        await self._append(ledger, 3)
        again = self._tape.below(ledger.sent)

        async def use() -> None:
            try:
                ledger.appends.writer.append_at_nowait(again, b"again")
            except DuplicateEntryIdError:
                return
            text = f"id {again} is taken a second time"
            self._wrong(Invariant.ERRORS_SAY_WHAT_IS_WRONG, text, ledger.ledger_id)

        await self._asked(ledger.writer, use)
        await self._append(ledger, 1)

    # Who has the entries

    async def _third(self) -> None:
        ledger, (third, *_), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, third)
        await self._append(ledger, self._tape.pick((1, 2)))
        self._end(third.kill)
        await asyncio.sleep(MOMENT_S)
        self._heal(ledger.writer, third)
        if self._tape.chance(0.5):
            third.boot_up()
            await self._until(lambda: third.serves, 2.0)
        await self._append(ledger, 1)
        what = f"{third.name} failed behind the last entry, and is not replaced with the next one"
        await self._must(lambda: third.name not in self._ensemble_of(ledger), what, ledger)

    async def _bounded(self) -> None:
        most = self._tape.pick((1, 2))
        ledger, _, _ = await self._written((3, 3, 2), max_ensemble_changes=most)
        for _ in range(most + 1):
            name = self._tape.pick(self._ensemble_of(ledger))
            gone = next(each for each in self._bookies if each.name == name)
            self._end(gone.kill)
            await asyncio.sleep(MOMENT_S)
            await self._append(ledger, 1)
            gone.boot_up()
            await self._until(lambda machine=gone: machine.serves, 2.0)  # type: ignore[misc]
        metadata = ledger.history.metadata
        changes = 0 if metadata is None else len(metadata.fragments) - 1
        if changes > most:
            text = f"its writer changed the ensemble {changes} times, and may {most} times"
            self._wrong(Invariant.LIMITS_ARE_KEPT, text, ledger.ledger_id)

    async def _moved(self) -> None:
        ledger, _, spares = await self._written((2, 2, 2))
        await self._append(ledger, self._tape.pick((1, 3)))
        if await self._asked(ledger.writer, partial(self._close, ledger)) is not None:
            raise NotReachedError
        names = self._ensemble_of(ledger)
        members = [each for each in self._bookies if each.name in names]
        reader, client = await self._user()
        handle = await self._asked(reader, partial(self._open, ledger, client, recover=True))
        if isinstance(handle, QuorumbookError):
            raise NotReachedError
        known = [each.name for each in self._bookies]
        await self._asked(reader, partial(client_context(client).bookies.refusing, known))
        self._keep_from(reader, *self._bookies)
        is_read = False

        async def read() -> None:
            nonlocal is_read
            reading = Reading(self._life.history, ledger.ledger_id, reader.name)
            async for entry in handle.read():
                reading.shown(entry.entry_id, entry.payload)
            is_read = True

        self._ask(reader, read)
        await asyncio.sleep(MOMENT_S)
        mover, healer = await self._user()
        heal = Healer(client_context(healer), PASSWORD).heal
        await self._asked(mover, partial(heal, ledger.ledger_id, leave=names))
        await self._until(lambda: set(names).isdisjoint(self._ensemble_of(ledger)), 1.0)
        for machine in members:
            await self._collected(machine, ledger.ledger_id)
        # Only the successor of who was asked first has them, and answers later than that one.
        name = self._ensemble_of(ledger)[1]
        gone = next(each for each in spares if each.name == name)
        self._end(gone.kill)
        await asyncio.sleep(MOMENT_S)
        self._heal(reader, gone, *members)
        await asyncio.sleep(MOMENT_S)
        self._heal(reader, *spares)
        what = f"{reader.name} does not find the entries where they were moved to"
        await self._must(lambda: is_read, what, ledger)

    # Their steps

    async def _open(self, ledger: OneLedger, client: SimClient, *, recover: bool) -> LedgerReader:
        return await client.open_ledger(ledger.ledger_id, password=PASSWORD, recover=recover)

    def _let_answer(self, client: Machine, machines: Sequence[BookieMachine]) -> None:
        for machine in machines:
            self._network.heal(machine.name, client.name)

    async def _collected(self, machine: BookieMachine, ledger_id: LedgerId) -> None:
        """Have a bookie forget a ledger, which it need not keep."""
        bookie = machine.bookie
        if bookie is None:
            raise NotReachedError
        await self._asked(machine, partial(bookie.storage.delete_ledgers, [ledger_id]))

    def _wrong(self, broken: Invariant, text: str, ledger_id: LedgerId) -> None:
        self._life.history.violation(broken, text, ledger_id)
