"""One process at one part of a batch: writes rows into ledgers that nobody reads yet.

The attempt's node comes before its ledgers, and names each before it is made: whoever dies here
leaves nothing that cannot be found.  Ledgers for a stream hold entries as its writer would write
them; a record's position counts from the ledger's beginning, and which segment that becomes is
said by the metadata alone.  Rows that are too few for a ledger are handed to the driver, which
writes those of many processes into one (``gathering``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorumbook.client.client import BookKeeper
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import LedgerExistsError, NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.protocol.digest import DigestType
from quorumbook.streams.errors import (
    AccessDeniedError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionError,
)
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.format.names import TRANSACTION_COMPONENT
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.metadata.policy import StreamPolicy, known
from quorumbook.streams.namespace import Namespace
from quorumbook.streams.stream_context import ManyContexts, StreamContext
from quorumbook.streams.transactions.drafts import (
    DraftWriter,
    LedgerDraft,
    StreamDraft,
    StreamRules,
)
from quorumbook.streams.transactions.grafting import Draft, HandedRows
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.origin import TRANSACTION_KEY, Origin
from quorumbook.streams.transactions.state import AttemptName, AttemptRecord, Identity
from quorumbook.streams.writing.pending import check_txids


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """How rows are written.

    Attributes:
        entry_bytes: Records are packed into entries of about this many bytes.
        max_ledger_bytes: A ledger of so many bytes of rows is followed by another.
        max_pending_bytes: So much is on its way to bookies at most.
        handed_bytes: So many bytes of rows are handed to the driver, instead of making a ledger;
            0: none are.
        creates_streams: Make a stream that is missing, instead of refusing its rows.
        shape: Of ledgers that are for no stream: ensemble, write quorum, ack quorum.
        digest_type: Of those.
        password: Of those.
    """

    entry_bytes: int = 64 * 1024
    max_ledger_bytes: int = 1 << 30
    max_pending_bytes: int = 16 << 20
    handed_bytes: int = 0
    creates_streams: bool = False
    shape: tuple[int, int, int] = (3, 3, 2)
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """What a process tells the driver; it can be pickled."""

    who: Identity
    batch: int
    partition: int
    attempt: int
    #: The attempt's node; None: it made no ledger.
    name: AttemptName | None = None
    drafts: tuple[Draft, ...] = ()
    #: What goes into ledgers of the driver's.
    handed: tuple[HandedRows, ...] = ()
    #: Whether the batch was committed before it began.
    is_skipped: bool = False


class _FewRows:
    """Rows of one stream that have no ledger, for there are few of them."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.txids: list[int] | None = None
        self.carried: list[bytes] | None = None
        self.size_bytes = 0

    def add(
        self, payloads: Sequence[bytes], txids: Sequence[int] | None, carried: list[bytes] | None
    ) -> None:
        if carried is not None or self.carried is not None:
            self.carried = self.carried or [b""] * len(self.payloads)
            self.carried += carried or [b""] * len(payloads)
        if txids is not None:
            self.txids = [*(self.txids or ()), *txids]
        self.payloads += payloads
        self.size_bytes += _size_of(payloads, carried)


class Attempt:
    """Writes rows; made by ``Application.attempt``."""

    def __init__(
        self,
        client: BookKeeper,
        namespace: Namespace | None,
        nodes: TransactionNodes,
        who: Identity,
        name: AttemptName,
        options: DraftOptions,
        planned_ms: int,
    ) -> None:
        """Prepare; nothing is made before the first row.

        Args:
            client: Who makes the ledgers.
            namespace: Where the streams are; None: rows are for ledgers only.
            nodes: The application's.
            who: Who works on the batch.
            name: Its own.
            options: How rows are written.
            planned_ms: The transaction id of records without one: when the batch was planned.
        """
        self._client = client
        self._namespace = namespace
        self._contexts = None if namespace is None else ManyContexts(namespace)
        self._nodes = nodes
        self._who = who
        self._name = name
        self._options = options
        self._planned_ms = planned_ms
        self._rules: dict[str, tuple[StreamRules, StreamPolicy]] = {}
        self._ledgers: list[LedgerId] = []
        #: Those that the attempt's node names; None: there is none yet.
        self._recorded: frozenset[LedgerId] | None = None
        self._recording = asyncio.Lock()
        #: Looks soon whether the attempt was cleaned up.
        self._looking: asyncio.Task[bool] | None = None
        self._open: dict[str, DraftWriter] = {}
        self._done: list[Draft] = []
        self._held: dict[str, _FewRows] = {}
        self._held_bytes = 0

    @property
    def name(self) -> AttemptName:
        """Its own."""
        return self._name

    @property
    def ledgers(self) -> Sequence[LedgerId]:
        """Those that it has made, or was about to."""
        return self._ledgers

    async def append(
        self,
        stream: str,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
    ) -> None:
        """Write rows, in order; returns when there is room for more.

        Those of several streams may be written at the same time.

        Args:
            stream: For which stream; empty: for none, as a ledger of rows.
            payloads: The rows.
            txids: Their transaction ids.
            attributes: Key, headers and event time of each.

        Raises:
            StreamNotFoundError: there is no such stream.
            AccessDeniedError: nobody may write it.
            StreamSealedError: nothing can be appended to it any more.
            TransactionLostError: the attempt was cleaned up meanwhile.
            RecordTooLargeError: a row is, or its key and headers are.
        """
        if not payloads:
            return
        carried = None
        if attributes is not None:
            carried = [b"" if each is None else each.encode() for each in attributes]
        if (
            stream
            and stream not in self._open
            and await self._hold(stream, payloads, txids, carried)
        ):
            return
        await self.write(stream, payloads, txids, carried)

    async def write(
        self,
        stream: str,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        carried: Sequence[bytes] | None,
    ) -> None:
        """Write rows into a ledger, with what each carries encoded; see ``append``."""
        draft = self._open.get(stream)
        if draft is not None and draft.size_bytes >= self._options.max_ledger_bytes:
            await self._seal(stream)
            draft = None
        if draft is None:
            draft = self._open[stream] = await self._begin(stream)
        await draft.append(payloads, txids, carried)

    async def take_drafts(self, stream: str) -> list[Draft]:
        """Seal a stream's ledger; return what was written since the last call; raises as finish."""
        if stream in self._open:
            await self._seal(stream)
        taken = [draft for draft in self._done if draft.stream == stream]
        self._done = [draft for draft in self._done if draft.stream != stream]
        return taken

    async def finish(self) -> AttemptResult:
        """Seal all ledgers, and return what the driver needs.

        Raises:
            TransactionLostError: the attempt was cleaned up meanwhile.
        """
        await gather_bounded(self._seal, list(self._open))
        return AttemptResult(
            who=self._who,
            batch=self._name.batch,
            partition=self._name.partition,
            attempt=self._name.attempt,
            name=self._name if self._ledgers else None,
            drafts=tuple(self._done),
            handed=tuple(
                HandedRows(
                    stream=stream,
                    payloads=tuple(held.payloads),
                    txids=None if held.txids is None else tuple(held.txids),
                    carried=None if held.carried is None else tuple(held.carried),
                )
                for stream, held in self._held.items()
            ),
        )

    async def give_up(self) -> None:
        """Let go of everything; what was written is cleaned up by the driver, or later."""
        for draft in self._open.values():
            with contextlib.suppress(QuorumbookError):
                await draft.give_up()
        self._open.clear()

    async def make_segment_ledger(
        self, context: StreamContext, notes: Mapping[str, bytes] | None = None
    ) -> LedgerWriter:
        """Make a ledger for a stream that this attempt's node names; the caller fills it.

        Args:
            context: The stream's.
            notes: What its custom metadata has beside the usual.

        Raises:
            TransactionLostError: the attempt was cleaned up meanwhile.
        """
        policy = await context.policy()
        shape = policy.ensemble_size, policy.write_quorum_size, policy.ack_quorum_size
        digest_type = DigestType[known(policy.digest)]
        return await self._make_ledger(
            context.name, tuple(map(known, shape)), digest_type, policy, notes
        )

    # Inside --------------------------------------------------------------------------------

    async def _hold(
        self,
        stream: str,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        carried: list[bytes] | None,
    ) -> bool:
        """Keep rows for the driver; False: there are too many, and those from before are written.

        What all streams' rows take together is bounded, for all parts' rows meet in one process.
        """
        held = self._held.get(stream)
        size = _size_of(payloads, carried)
        if self._held_bytes + size <= self._options.handed_bytes:
            self._held_bytes += size
            rules = (await self._rules_of(stream))[0]
            if held is None:
                held = self._held[stream] = _FewRows()
            if txids is not None:
                before = held.txids[-1] if held.txids else -1
                check_txids(txids, len(payloads), before if rules.checks_txids else None)
            held.add(payloads, txids, carried)
            return True
        if held is not None:
            del self._held[stream]
            self._held_bytes -= held.size_bytes
            await self.write(stream, held.payloads, held.txids, held.carried)
        return False

    async def _seal(self, stream: str) -> None:
        try:
            draft = await self._open[stream].finish()
        except NoSuchLedgerInMetadataError as error:
            raise self._nodes.lost(self._name) from error
        # Others were taken meanwhile, with the list that was there then.
        self._done.append(draft)
        del self._open[stream]

    async def _begin(self, stream: str) -> DraftWriter:
        options = self._options
        if not stream:
            ledger = await self._make_ledger("", options.shape, options.digest_type, StreamPolicy())
            return LedgerDraft(ledger)
        rules, policy = await self._rules_of(stream)
        shape = policy.ensemble_size, policy.write_quorum_size, policy.ack_quorum_size
        digest_type = DigestType[known(policy.digest)]
        ledger = await self._make_ledger(stream, tuple(map(known, shape)), digest_type, policy)
        return StreamDraft(ledger, rules, self._nodes.store.env.clock.wall_ms)

    async def _rules_of(self, stream: str) -> tuple[StreamRules, StreamPolicy]:
        if stream not in self._rules:
            self._rules[stream] = await self._read_rules(stream)
        return self._rules[stream]

    async def _read_rules(self, name: str) -> tuple[StreamRules, StreamPolicy]:
        if self._namespace is None or self._contexts is None:
            raise TransactionError(f"stream {name} is in no namespace: give the argument namespace")
        context = self._contexts.of(name)
        context.check_writable()
        try:
            policy, access = await context.policy_and_access()
            self._check_access(name, access)
            last_txid = await context.nodes.max_txid()
        except StreamNotFoundError:
            self._check_access(name, await context.access())
            if not self._options.creates_streams:
                raise
            await self._namespace.create_stream(name, exist_ok=True)
            last_txid = await context.nodes.max_txid()
            policy = await context.policy()
        if last_txid == END_TXID:
            raise StreamSealedError(f"stream {name} is sealed: nothing is appended any more")
        rules = StreamRules(
            name=context.name,
            codec=policy.codec,
            entry_bytes=self._options.entry_bytes,
            txid=max(self._planned_ms, last_txid),
            checks_txids=policy.txid != "free",
        )
        return rules, policy

    @staticmethod
    def _check_access(stream: str, access: AccessControl) -> None:
        if access.denies_write:
            raise AccessDeniedError(f"nobody may write stream {stream}")

    async def _record(self, ledger_id: LedgerId) -> None:
        """Have the attempt's node name a ledger; those that come meanwhile go together."""
        async with self._recording:
            if self._recorded is not None and ledger_id in self._recorded:
                return
            ledgers = tuple(self._ledgers)
            record = AttemptRecord(query=self._who.query, run=self._who.run, ledgers=ledgers)
            await self._nodes.record_attempt(self._name, record, is_new=self._recorded is None)
            self._recorded = frozenset(ledgers)

    async def _is_wanted(self) -> bool:
        """Tell whether the attempt is still there; those that ask at the same time ask together."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> bool:
        # Who comes from now on has made a ledger that this look may be too early for.
        self._looking = None
        return await self._nodes.has_attempt(self._name)

    async def _make_ledger(
        self,
        stream: str,
        shape: tuple[int, ...],
        digest_type: DigestType,
        policy: StreamPolicy,
        notes: Mapping[str, bytes] | None = None,
    ) -> LedgerWriter:
        custom = {
            "application": b"quorumbook",
            "component": TRANSACTION_COMPONENT,
            TRANSACTION_KEY: Origin(self._nodes.application, self._name).encode(),
            "run": self._who.run.encode(),
            **policy.placement_metadata(),
        }
        custom |= notes or {}
        if stream and self._namespace is not None:
            custom |= {"namespace": self._namespace.path.encode(), "stream": stream.encode()}
        while True:
            ledger_id = await self._client.reserve_ledger_id()
            self._ledgers.append(ledger_id)
            await self._record(ledger_id)
            try:
                ledger = await self._client.create_ledger(
                    ledger_id=ledger_id,
                    ensemble_size=shape[0],
                    write_quorum_size=shape[1],
                    ack_quorum_size=shape[2],
                    digest_type=digest_type,
                    password=b"" if stream else self._options.password,
                    custom_metadata=custom,
                    bookie_labels=policy.labels() or None,
                    max_pending_bytes=self._options.max_pending_bytes,
                )
                break
            except LedgerExistsError:
                # Somebody guessed the id; what is theirs is not this attempt's to clean up.
                self._ledgers.remove(ledger_id)
        if not await self._is_wanted():
            # Cleaned up between its node and its ledger: nobody else would delete that any more.
            await ledger.abort()
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await self._client.delete_ledger(ledger_id)
            raise self._nodes.lost(self._name)
        return ledger


def _size_of(payloads: Sequence[bytes], carried: Sequence[bytes] | None) -> int:
    """Return about how many bytes rows take in a message."""
    return sum(map(len, payloads)) + sum(map(len, carried or ())) + 16 * len(payloads)
