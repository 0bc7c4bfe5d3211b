"""The operations of one etcd store, in the order they were asked for.

Operations wait in a queue.  Those that wait together are a batch: one transaction reads every node
they need, as of one revision (``rows.EtcdView``); each is carried out in memory, and one that
fails leaves nothing behind and does not disturb the others; a second transaction writes what came
of it, if nothing they looked at has changed and the session goes on, else the batch begins again.
Nobody hears of a result before that.

A batch of writes, and of looks at what they create, does without the first one where the store
knows the nodes (``known``): it is carried out on a guess, and the transaction that writes reads
them if the guess was wrong.  A guess is no ground for an error: what a call refuses is decided on
what was read.  Large batches share one read among many calls, and are not guessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumbook.env import Env, logger
from quorumbook.errors import (
    MetadataFateUnknownError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from quorumbook.metadata.etcd.client import (
    TXN,
    CompactedError,
    EtcdClient,
    NoSuchLeaseError,
    messages,
)
from quorumbook.metadata.etcd.known import KnownNodes
from quorumbook.metadata.etcd.rows import (
    MULTI_LIMIT,
    TXN_OPERATIONS_MAX,
    EtcdTree,
    EtcdView,
    Need,
    session_key,
)

_log = logger("metadata")
_READS_PER_TXN = 120
#: etcd takes requests of 1.5 MiB.
_BATCH_BYTES = 1_200_000
_BACK_OFF_S = 0.002
#: So many calls are carried out on a guess at most.
_MAX_GUESSED = 8
_SEQUENCE = struct.Struct(">q")


@dataclass(slots=True)
class EtcdCall:
    """One operation on its way to etcd and back."""

    needs: Sequence[Need]
    work: Callable[[EtcdTree, EtcdView], Any]
    future: asyncio.Future[Any]
    is_write: bool = False
    size_bytes: int = 0
    #: Runs when the result is certain, in the order of the calls; takes it and its revision.
    on_done: Callable[[Any, int], None] | None = None
    result: Any = None
    error: BaseException | None = None

    def carry_out(self, tree: EtcdTree, view: EtcdView) -> None:
        """Do it in memory; what fails leaves nothing behind."""
        self.result = self.error = None
        view.begin()
        try:
            self.result = self.work(tree, view)
        except Exception as error:
            view.roll_back()
            self.error = error

    def fail(self, error: BaseException) -> None:
        """Have an error instead of a result."""
        self.result, self.error = None, error


@dataclass(slots=True)
class EtcdStep:
    """Something else that has its place in the order of operations: a session's begin or end."""

    work: Callable[[], Awaitable[Any]]
    future: asyncio.Future[Any]


@dataclass(slots=True)
class EtcdSession:
    """The present session of a store."""

    id: int = 0
    is_living: bool = False
    #: How many commits its key has counted.
    commits: int = 0
    #: The revision of the last of them that we know of, or of its begin.
    revision: int = 0
    on_over: Callable[[], None] = field(default=lambda: None)

    def is_over(self) -> None:
        """Take the news that it is over, and pass it on once."""
        if self.is_living:
            self.is_living = False
            self.on_over()


class EtcdCalls:
    """Carries out operations."""

    def __init__(
        self,
        client: EtcdClient,
        env: Env,
        session: EtcdSession,
        *,
        patience_s: float,
    ) -> None:
        self._client = client
        self._env = env
        self._session = session
        #: How long a request waits for an etcd that does not answer.
        self.patience_s = patience_s
        self._known = KnownNodes()
        self._waiting: deque[EtcdCall | EtcdStep] = deque()
        self._is_more = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    def submit(self, item: EtcdCall | EtcdStep) -> None:
        """Hand in an operation."""
        self._waiting.append(item)
        self._is_more.set()

    async def stop(self) -> None:
        """Stop at once; whoever still waits hears of it."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        for item in self._waiting:
            if not item.future.done():
                item.future.set_exception(MetadataUnavailableError("the store was closed"))

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._is_more.clear()
                await self._is_more.wait()
            if isinstance(self._waiting[0], EtcdStep):
                step = self._waiting.popleft()
                assert isinstance(step, EtcdStep)
                await self._take_step(step)
            elif batch := self._batch():
                await self._carry_out(batch)

    async def _take_step(self, step: EtcdStep) -> None:
        try:
            result = await step.work()
        except Exception as error:
            if not step.future.done():
                step.future.set_exception(error)
        else:
            if not step.future.done():
                step.future.set_result(result)

    def _batch(self) -> list[EtcdCall]:
        """Return the next operations, as many as fit into one transaction."""
        batch: list[EtcdCall] = []
        paths: set[str] = set()
        needs = size = 0
        while self._waiting and isinstance(call := self._waiting[0], EtcdCall):
            # A look at what is there for a write takes no room.
            needs += sum(call.is_write or need.path not in paths for need in call.needs)
            paths.update(need.path for need in call.needs)
            size += call.size_bytes
            if batch and (needs > MULTI_LIMIT or size > _BATCH_BYTES):
                break
            self._waiting.popleft()
            # What was cancelled before it was begun is not begun.
            if not call.future.done():
                batch.append(call)
        return batch

    async def _carry_out(self, batch: list[EtcdCall]) -> None:
        view = None
        try:
            view = await self._transact(batch)
        except Exception as error:
            # Whatever it is, those who wait must hear of it and the queue must go on.
            for call in batch:
                call.fail(error)
        for call in batch:
            if call.future.done():
                continue
            if call.error is not None:
                call.future.set_exception(call.error)
                continue
            if call.on_done is not None and view is not None:
                call.on_done(call.result, view.revision)
            call.future.set_result(call.result)

    async def _transact(self, batch: list[EtcdCall]) -> EtcdView:
        needs = [need for call in batch for need in call.needs]
        view, is_done = await self._guess(batch, needs)
        if view is not None and is_done:
            return view
        assumed: set[str] = set()
        attempts = 0
        while True:
            if view is None:
                view = EtcdView([*needs, *map(Need, sorted(assumed))], self._session.id)
                await self._fill(view)
            if not view.session_revision:
                self._session.is_over()
            self._apply_all(batch, view)
            assumed |= view.assumed
            writes = view.writes()
            if not writes:
                self._learn(batch, view, 0)
                return view
            comparisons = view.comparisons()
            if comparisons is not None:
                session_alone = EtcdView((), self._session.id)
                if revision := await self._commit(view, comparisons, writes, session_alone):
                    self._learn(batch, view, revision)
                    return view
                attempts += 1
                # Others write the same nodes; the more of them, the longer the way aside.
                await asyncio.sleep(self._env.random.random() * min(attempts, 20) * _BACK_OFF_S)
            view = None

    async def _guess(
        self, batch: list[EtcdCall], needs: list[Need]
    ) -> tuple[EtcdView | None, bool]:
        """Write on what was seen last.

        Returns:
            A view, and True if it was written; one with what is there instead, and False;
            None if nothing was tried.
        """
        looks = {need.path for call in batch if not call.is_write for need in call.needs}
        written = [need for call in batch if call.is_write for need in call.needs]
        view = EtcdView(written, self._session.id)
        may_guess = len(batch) <= _MAX_GUESSED and looks <= {need.path for need in written}
        if not may_guess or not view.guess(self._known, self._session.revision):
            return None, False
        self._apply_all(batch, view)
        if any(call.error is not None for call in batch) or not looks <= view.made:
            return None, False
        if not (writes := view.writes()):
            return None, False
        after = EtcdView([*needs, *map(Need, sorted(view.assumed))], self._session.id)
        comparisons = view.comparisons()
        if comparisons is None or after.reads > TXN_OPERATIONS_MAX:
            return None, False
        if revision := await self._commit(view, comparisons, writes, after):
            self._learn(batch, view, revision)
            return view, True
        if not after.revision:
            return None, False
        after.tell_wrong(self._known, view)
        return after, False

    def _apply_all(self, batch: list[EtcdCall], view: EtcdView) -> None:
        tree = EtcdTree(view)
        for call in batch:
            self._apply(call, tree, view)

    async def _fill(self, view: EtcdView) -> None:
        """Read everything as of one revision, however many transactions that takes."""
        while True:
            requests = view.requests()
            responses: list[Any] = []
            revision = 0
            with contextlib.suppress(CompactedError):
                for start in range(0, len(requests), _READS_PER_TXN):
                    part = requests[start : start + _READS_PER_TXN]
                    for request in part:
                        request.revision = revision
                    txn = messages["TxnRequest"](
                        success=[messages["RequestOp"](request_range=each) for each in part]
                    )
                    answer, _ = await self._client.call(TXN, txn, timeout_s=self.patience_s)
                    revision = revision or answer.header.revision
                    responses += [each.response_range for each in answer.responses]
                view.fill(responses, revision)
                return

    def _apply(self, call: EtcdCall, tree: EtcdTree, view: EtcdView) -> None:
        if call.is_write and not self._session.is_living:
            call.fail(SessionExpiredError(f"metadata session {self._session.id} is over"))
        else:
            call.carry_out(tree, view)

    async def _commit(
        self, view: EtcdView, comparisons: list[Any], writes: list[Any], after: EtcdView
    ) -> int:
        """Write what came of a view; where that fails, fill another with what is there.

        Returns:
            The revision; 0 if nothing was written.
        """
        session = self._session
        session.commits += 1
        number = _SEQUENCE.pack(session.commits)
        own = messages["PutRequest"](key=session_key(session.id), value=number, lease=session.id)
        txn = view.commit(comparisons, writes, own, after)
        try:
            answer, is_repeated = await self._client.call(TXN, txn, timeout_s=self.patience_s)
        except NoSuchLeaseError:
            # Of the owner of a node that goes at this moment, or our own; the next view tells.
            return 0
        if answer.succeeded:
            session.revision = answer.header.revision
        else:
            found = [each.response_range for each in answer.responses]
            kvs = found[0].kvs
            if is_repeated and not kvs:
                raise MetadataFateUnknownError(
                    "etcd was away during a write, and the session ended meanwhile: it may have "
                    "happened or not"
                )
            if not is_repeated or kvs[0].value != number:
                after.fill(found, answer.header.revision)
                return 0
            session.revision = kvs[0].mod_revision
        return session.revision

    def _learn(self, batch: list[EtcdCall], view: EtcdView, revision: int) -> None:
        if len(batch) <= _MAX_GUESSED:
            view.tell(self._known, revision)
        else:
            view.tell_nothing(self._known)
