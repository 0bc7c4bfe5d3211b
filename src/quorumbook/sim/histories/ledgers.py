"""What everybody was told, and whether it can all be true.

What must be true is in ``invariants``.  Here is what concerns whole ledgers; their bookies,
readers, fragments and calls are judged by the modules of that name, streams and what is built on
them by ``streams``, ``groups`` and ``transactions``, and whether all ends well by ``life``.

A violation is a sentence; ``story`` tells what is known of the ledger it is about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.ledger.metadata_format import decode
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.metadata.tree import Row
from quorumbook.sim.histories.calls import Calls
from quorumbook.sim.histories.fragments import wrong_change, wrong_shape
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.kernel import SECOND, Kernel

#: Of the ledgers that are not a stream's.
PASSWORD = b"secret"
_LEDGER_NODE = re.compile(r"/ledgers/([0-9/]+)/L([0-9]+)")
_SEGMENT_BEGUN = re.compile(r"/inprogress_[0-9]+$")
_MARK = re.compile(r"/ledgers/underreplication/ledgers/.+/urL([0-9]+)")


@dataclass(slots=True)
class LedgerHistory:
    """What is known of one ledger."""

    ledger_id: LedgerId
    ack_quorum_size: int
    #: By entry id: its writer sends them in order.
    sent: list[bytes] = field(default_factory=list)
    acknowledged: set[EntryId] = field(default_factory=set)
    #: Its writer was told that an append failed.
    has_failed: bool = False
    #: What its writer has had confirmed; nobody knows that of others' ledgers.
    writer_confirmed: Callable[[], EntryId] | None = None
    #: The highest entry that anybody was shown.
    shown: EntryId = -1
    metadata: LedgerMetadata | None = None
    #: Somebody asked for its deletion, which may have happened.
    is_doomed: bool = False
    #: A stranger told bookies another key of it.
    is_claimed: bool = False
    #: A segment of a stream: its records are judged by ``StreamHistory``.
    is_of_stream: bool = False
    events: list[str] = field(default_factory=list)

    @property
    def promised(self) -> EntryId:
        """The highest entry that must not be lost."""
        return max(self.shown, max(self.acknowledged, default=-1))


class History:
    """All ledgers of a run, and what is wrong with them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ledgers: dict[LedgerId, LedgerHistory] = {}
        self.violations: list[str] = []
        #: How often clients were told something, be it an error.
        self.operations = 0
        #: How many copies of entries were looked at on bookies.
        self.audited = 0
        #: Called when a ledger is new in the metadata.
        self.on_new: Callable[[LedgerId], None] = lambda _: None
        #: Called when a segment of a stream was begun, or changed before it is completed.
        self.on_segment: Callable[[], None] = lambda: None
        #: Ledgers of which the metadata say that they lack copies.
        self.marked: set[LedgerId] = set()
        #: Somebody replicates ledgers, and may exchange bookies of any.
        self.has_workers = False
        #: How often clients saw rare states that no log tells of.
        self.sightings: Counter[str] = Counter()
        #: What clients wait for.
        self.calls = Calls(kernel)
        self._seen: dict[str, bytes] = {}

    @property
    def own_ids(self) -> list[LedgerId]:
        """The ledgers that are nobody's but their writers'."""
        return [i for i, ledger in self.ledgers.items() if not ledger.is_of_stream]

    @property
    def acknowledged(self) -> int:
        """How many entries were acknowledged."""
        return sum(len(each.acknowledged) for each in self.ledgers.values())

    def is_gone(self, ledger_id: LedgerId) -> bool:
        """Tell whether a ledger was deleted."""
        ledger = self.ledgers[ledger_id]
        return ledger.is_doomed and ledger.metadata is None

    def is_nobodys(self, ledger_id: LedgerId) -> bool:
        """Tell whether a ledger is gone, or became a stranger's before anybody had it."""
        ledger = self.ledgers[ledger_id]
        return ledger.is_doomed and (ledger.metadata is None or ledger.is_claimed)

    def violation(self, broken: Invariant, text: str, ledger_id: LedgerId | None = None) -> None:
        """Note that something cannot be true."""
        text = f"{broken.title}: {text}"
        self._kernel.trace.note("history", "VIOLATION", text)
        told = text if ledger_id is None else f"{text}\n{self.story(ledger_id)}"
        self.violations.append(told)

    def tell(self, ledger_id: LedgerId, who: str, what: str) -> None:
        """Take down what happened to a ledger."""
        self._kernel.trace.note(who, f"ledger {ledger_id}: {what}")
        seconds = self._kernel.now_ns / SECOND
        self.ledgers[ledger_id].events.append(f"  {seconds:10.6f} {who:<10} {what}")

    def story(self, ledger_id: LedgerId) -> str:
        """Return all that is known of a ledger."""
        ledger = self.ledgers[ledger_id]
        head = (
            f"ledger {ledger_id}: {len(ledger.sent)} entries sent, "
            f"{len(ledger.acknowledged)} acknowledged, shown up to {ledger.shown}"
        )
        return "\n".join([head, *ledger.events])

    # What clients are told

    def created(
        self,
        ledger_id: LedgerId,
        who: str,
        ack_quorum_size: int,
        confirmed: Callable[[], EntryId],
    ) -> LedgerHistory:
        """Somebody made a ledger; ``confirmed`` tells what is confirmed to him at any time."""
        self.operations += 1
        ledger = self.ledgers.setdefault(ledger_id, LedgerHistory(ledger_id, ack_quorum_size))
        ledger.writer_confirmed = confirmed
        self.tell(ledger_id, who, "created")
        return ledger

    def acked(self, ledger_id: LedgerId, who: str, entry_id: EntryId) -> None:
        """The writer was told that an entry is safe."""
        self.operations += 1
        ledger = self.ledgers[ledger_id]
        if entry_id and entry_id - 1 not in ledger.acknowledged:
            text = f"entry {entry_id} is acknowledged before the one before it"
            self.violation(Invariant.NO_OUT_OF_ORDER_ENTRIES, text, ledger_id)
        ledger.acknowledged.add(entry_id)
        self.tell(ledger_id, who, f"entry {entry_id} acknowledged")
        self._check_end(ledger)

    def forced(self, ledger_id: LedgerId, who: str, last: EntryId) -> None:
        """The writer was told that everything up to an entry is safe."""
        self.operations += 1
        ledger = self.ledgers[ledger_id]
        ledger.acknowledged.update(range(last + 1))
        self.tell(ledger_id, who, f"entries up to {last} forced")
        self._check_end(ledger)

    def doomed(self, ledger_id: LedgerId, who: str) -> None:
        """Somebody is about to delete a ledger."""
        self.ledgers[ledger_id].is_doomed = True
        self.tell(ledger_id, who, "is to be deleted")

    def failed(self, who: str, error: BaseException) -> None:
        """Somebody was told that something failed, whatever became of it."""
        self.operations += 1
        self._kernel.trace.note(who, "fails", type(error).__name__)

    def read(self, ledger_id: LedgerId, who: str, entry_id: EntryId, payload: bytes) -> None:
        """Somebody was shown an entry."""
        self.operations += 1
        self._shown(ledger_id, who, entry_id, payload)

    def found(self, ledger_id: LedgerId, bookie: str, entry_id: EntryId, payload: bytes) -> None:
        """A bookie holds a copy of an entry."""
        self.audited += 1
        self._shown(ledger_id, bookie, entry_id, payload)

    def _shown(self, ledger_id: LedgerId, who: str, entry_id: EntryId, payload: bytes) -> None:
        ledger = self.ledgers[ledger_id]
        if entry_id >= len(ledger.sent):
            text = f"{who} was shown entry {entry_id}, which nobody sent"
            self.violation(Invariant.ENTRIES_ARE_WHAT_WAS_SENT, text, ledger_id)
        elif ledger.sent[entry_id] != payload:
            text = f"{who} was shown another content of entry {entry_id}"
            self.violation(Invariant.ENTRIES_ARE_WHAT_WAS_SENT, text, ledger_id)
        ledger.shown = max(ledger.shown, entry_id)
        self._check_end(ledger)

    def confirmed(self, ledger_id: LedgerId, who: str, entry_id: EntryId) -> None:
        """Somebody was told a last add confirmed."""
        self.operations += 1
        ledger = self.ledgers[ledger_id]
        if entry_id > ledger.shown:
            ledger.shown = entry_id
            self.tell(ledger_id, who, f"last add confirmed is {entry_id}")
        if entry_id >= len(ledger.sent):
            text = f"{who} was told {entry_id} as last add confirmed"
            self.violation(Invariant.NOTHING_SHOWN_IS_TAKEN_BACK, text, ledger_id)
        metadata = ledger.metadata
        is_open = metadata is not None and not metadata.is_closed
        if is_open and ledger.writer_confirmed is not None:
            confirmed = ledger.writer_confirmed()
            if entry_id > confirmed:
                text = f"{who} was told that {entry_id} is confirmed, and only {confirmed} is"
                self.violation(Invariant.NOTHING_SHOWN_IS_TAKEN_BACK, text, ledger_id)
        self._check_end(ledger)

    def closed(self, ledger_id: LedgerId, who: str, confirmed: EntryId) -> None:
        """Its writer was told that it is closed."""
        self.operations += 1
        metadata = self.ledgers[ledger_id].metadata
        if self.ledgers[ledger_id].has_failed:
            text = f"{who} closed as if nothing was wrong, and had been told that an append failed"
            self.violation(Invariant.ERRORS_SAY_WHAT_IS_WRONG, text, ledger_id)
        if metadata is not None and metadata.last_entry_id != confirmed:
            text = f"{who} closed at {confirmed}, and the ledger ends at {metadata.last_entry_id}"
            self.violation(Invariant.ONE_END, text, ledger_id)

    def opened(self, ledger_id: LedgerId, who: str, last: EntryId, length: int) -> None:
        """Somebody was told where a ledger ends."""
        self.operations += 1
        ledger = self.ledgers[ledger_id]
        self.tell(ledger_id, who, f"sees its end at entry {last}")
        metadata = ledger.metadata
        if metadata is None and ledger.is_doomed:
            return
        if metadata is None or not metadata.is_closed:
            text = f"{who} sees an end that is not in the metadata"
            self.violation(Invariant.ONE_END, text, ledger_id)
        elif (metadata.last_entry_id, metadata.length) != (last, length):
            self.violation(
                Invariant.ONE_END,
                f"{who} sees the end at {last} ({length} bytes), the metadata says "
                f"{metadata.last_entry_id} ({metadata.length} bytes)",
                ledger_id,
            )

    # What the metadata says

    def watch(self, find: Callable[[str], Row | None]) -> None:
        """Look at every change of a ledger's metadata; a function returns what a node holds."""
        self._find = find

    def changed(self, paths: set[str]) -> None:
        """Nodes changed."""
        for path in sorted(paths):
            found = _LEDGER_NODE.fullmatch(path)
            if found is None:
                self._mark_changed(path)
                continue
            ledger_id = int((found[1] + found[2]).replace("/", ""))
            row = self._find(path)
            if row is None:
                self._metadata_gone(ledger_id)
            if row is None or self._seen.get(path) == row.data:
                continue
            self._seen[path] = row.data
            metadata = decode(ledger_id, row.data, row.ctime_ms)
            self._metadata_changed(ledger_id, metadata)

    def _mark_changed(self, path: str) -> None:
        found = _MARK.fullmatch(path)
        if found is None:
            if _SEGMENT_BEGUN.search(path) and self._find(path) is not None:
                self.on_segment()
            return
        if self._find(path) is None:
            self.marked.discard(int(found[1]))
        else:
            self.marked.add(int(found[1]))

    def _metadata_gone(self, ledger_id: LedgerId) -> None:
        ledger = self.ledgers[ledger_id]
        ledger.metadata = None
        self.tell(ledger_id, "metadata", "deleted")
        if not ledger.is_doomed and not ledger.is_of_stream:
            text = "the ledger is gone, and nobody deleted it"
            self.violation(Invariant.NO_LIVE_LEDGER_IS_DELETED, text, ledger_id)

    def _metadata_changed(self, ledger_id: LedgerId, after: LedgerMetadata) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = LedgerHistory(ledger_id, after.ack_quorum_size)
        before, ledger.metadata = ledger.metadata, after
        # Writers so old that they did not say are ours, too.
        ledger.is_of_stream = after.password not in (PASSWORD, None)
        fragments = " ".join(f"{f.first_entry_id}:{','.join(f.ensemble)}" for f in after.fragments)
        self.tell(ledger_id, "metadata", f"{after.state.name} {after.last_entry_id} {fragments}")
        wrong = wrong_shape(after)
        if before is not None:
            wrong = wrong or wrong_change(before, after, has_workers=self.has_workers)
        if wrong is not None:
            self.violation(Invariant.VALID_ENSEMBLE_SEQUENCE, wrong, ledger_id)
        if before is None:
            self.on_new(ledger_id)
            return
        if after.state.value < before.state.value:
            text = f"{before.state.name} became {after.state.name}"
            self.violation(Invariant.ONE_END, text, ledger_id)
        if before.is_closed and (before.last_entry_id, before.length) != (
            after.last_entry_id,
            after.length,
        ):
            text = f"a closed ledger's end moved from {before.last_entry_id}"
            self.violation(Invariant.ONE_END, text, ledger_id)
        self._check_end(ledger)

    def _check_end(self, ledger: LedgerHistory) -> None:
        metadata = ledger.metadata
        if (
            metadata is not None
            and metadata.state is LedgerState.CLOSED
            and metadata.last_entry_id < ledger.promised
        ):
            is_acked = max(ledger.acknowledged, default=-1) > metadata.last_entry_id
            self.violation(
                Invariant.NO_DIVERGENCE_BETWEEN_CLIENT_AND_METADATA
                if is_acked
                else Invariant.NOTHING_SHOWN_IS_TAKEN_BACK,
                f"the ledger ends at {metadata.last_entry_id}, but {ledger.promised} was promised",
                ledger.ledger_id,
            )
            # Once is enough.
            ledger.acknowledged = {i for i in ledger.acknowledged if i <= metadata.last_entry_id}
            ledger.shown = min(ledger.shown, metadata.last_entry_id)


def holders(metadata: LedgerMetadata, entry_id: EntryId) -> set[BookieId]:
    """Return the bookies that the metadata names for an entry."""
    ensemble = metadata.fragment_of(entry_id).ensemble
    places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
    return {ensemble[place] for place in places}
