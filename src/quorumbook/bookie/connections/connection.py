"""One connection to a bookie: bytes in, requests out; answers in, one write out.

``data_received`` decodes all complete frames of a chunk and hands them over as one batch.
Answers are collected and leave as one write: those given in the same step at its end, those of a
group commit in one sweep over all connections after the group (``Outbox``).  A connection that
breaks in the middle is dropped from the sweep and delays nobody.

A connection is not read while it is over one of its limits:

    ADDS      the bytes of its unanswered adds are over the budget, its own or the bookie's
    READS     reads of it wait for a turn
    ANSWERS   its peer does not take the answers away
    STOPPING  the bookie finishes what is under way
    BEHIND    requests of its last chunk wait for a turn of the loop, or for the journals
    FRAME     it began a large frame, and there is no room for it yet

A connection that must switch to TLS or authenticate first has a gate (``admission.py``), small
frames and a time limit until then.

When it gives its peer up is in ``time_limits.py``; what connections share, in ``registry.py``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from quorumbook.bookie.connections.add_budget import add_weight
from quorumbook.bookie.connections.admission import AdmissionGate
from quorumbook.bookie.connections.answer_budget import AnswerBudget
from quorumbook.bookie.connections.frame_budget import LARGE_BYTES
from quorumbook.bookie.connections.home import Home
from quorumbook.bookie.connections.limits import place_of
from quorumbook.bookie.connections.loop_turns import TurnsBelow, Weight
from quorumbook.bookie.connections.time_limits import PeerVerdict, TimeLimits
from quorumbook.env import logger
from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import BatchRead, ListEntries, Read, ReadLAC, ReadRun, Request

_log = logger("bookie.connection")

#: A read, when it arrived, for a long poll whether news woke it, whether adds were waited for.
WaitingRead: TypeAlias = tuple[
    Read | BatchRead | ReadRun | ReadLAC | ListEntries, int, bool | None, bool
]

ADDS, READS, ANSWERS, STOPPING, BEHIND, FRAME = 1, 2, 4, 8, 16, 32
#: Joining costs a copy; above this the pieces go out one behind the other.
_JOIN_BYTES_MAX = 128 * 1024


class BookieConnection(asyncio.Protocol):
    """A client's connection; used on the event loop only."""

    __slots__ = (
        "_answers", "_answers_bytes", "_closing", "_decoder", "_has_large_frame",
        "_is_carrying_out", "_is_forgotten", "_is_unread", "_limits", "_may_go", "_owner",
        "_paused_for", "_pending_bytes", "_sent_bytes", "_transport", "add_bytes", "address",
        "gate", "is_open", "is_pumping", "long_polls", "peer", "read_bytes", "read_size_estimate",
        "reads", "unsettled",
    )  # fmt: skip

    def __init__(self, owner: Home[BookieConnection]) -> None:
        self._owner = owner
        self._decoder = RequestDecoder(owner.options.max_frame_bytes)
        self._answers: list[bytes] = []
        self._answers_bytes = self._paused_for = self._pending_bytes = 0
        self._closing = False
        self._has_large_frame = False
        #: Requests of its chunk are: what answers them at once leaves at their end.
        self._is_carrying_out = False
        self._is_forgotten = False
        self._is_unread = False
        #: It is unproven, or rests: another one may get its place.
        self._may_go = True
        self._limits = TimeLimits(owner.options, owner.env.clock.now_ns())
        self._sent_bytes = 0
        self.is_open = False
        #: Where its peer is, and what messages call it: by its name too, once it has proven it.
        self.address = self.peer = "?"
        #: What looks at requests first; None when the connection may do everything.
        self.gate: AdmissionGate | None = None
        #: Bytes of adds that are not answered yet.
        self.add_bytes = 0
        #: Forces that are not answered yet.
        self.unsettled = 0
        #: Reads that wait for a turn; kept by ``reads.py``.
        self.reads: deque[WaitingRead] = deque()
        self.is_pumping = False
        #: Bytes that the reads under way are believed to return, and what one is believed to.
        self.read_bytes = 0
        self.read_size_estimate = 256 * 1024
        #: Its peer's reads that wait for news; ``LongPolls`` keeps them.
        self.long_polls: dict[object, None] = {}

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or turn it away while the bookie is not serving."""
        self._transport = cast(asyncio.Transport, transport)
        options = self._owner.options
        self._transport.set_write_buffer_limits(
            high=options.high_connection_answer_bytes, low=options.high_connection_answer_bytes // 4
        )
        name = transport.get_extra_info("peername")
        host = name[0] if isinstance(name, tuple) else str(name)
        self.address = self.peer = f"{host}:{name[1]}" if isinstance(name, tuple) else host
        if self._owner.opened(self, place_of(host)):
            self.is_open = True
            self.gate = self._owner.admission.gate(self)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Carry out all requests of a chunk."""
        if self._closing or not self.is_open:
            return
        owner = self._owner
        decoder = self._decoder
        if data and (owner.turn.is_over or self._is_heavy(len(data))):
            decoder.hold(data)
            self._wait_for_turn()
            self._take_in_pending(has_requests=False)
            return
        self._is_carrying_out = True
        try:
            requests = self._carry_out(data)
            while decoder.is_behind and self._has_the_turn():
                self._carry_out(b"")
        except RemoteProtocolError as error:
            self._note_broken_protocol(error)
            self.close()
            return
        except Exception:
            # A bug of ours costs this connection its answers, never the bookie its life.
            _log.exception("requests of %s failed", self.peer)
            self.give_up("an internal error")
            return
        finally:
            self._is_carrying_out = False
        owner.outbox.send(self)
        if decoder.is_behind and not self._closing:
            self._wait_for_turn()
        self._take_in_pending(has_requests=bool(requests))

    def _has_the_turn(self) -> bool:
        is_free = not (self._paused_for or self._closing or self._has_much(0))
        return is_free and not self._owner.turn.is_over

    def _note_broken_protocol(self, error: RemoteProtocolError) -> None:
        self._owner.metrics.connections_broken_protocol += 1
        _log.info("closing the connection of %s: %s", self.peer, error)

    def _is_heavy(self, size_bytes: int) -> bool:
        """Tell whether a chunk of that size waits for the journals.

        It is not decoded before, so that it is as if it came later: whatever it asks for stays in
        order, and a fence that comes meanwhile is ahead of it.
        """
        behind = self._owner.behind
        return self._has_much(size_bytes) and (behind.has_heavy or not behind.admits_heavy())

    def _has_much(self, size_bytes: int) -> bool:
        return self.add_bytes + self._decoder.pending_bytes + size_bytes > LARGE_BYTES

    def _wait_for_turn(self) -> None:
        self.pause(BEHIND)
        self._queue()

    def _queue(self) -> None:
        # Also while the journals are idle: of all who wait for the next turn, one makes them busy.
        if self._has_much(0):
            self._owner.behind.add(self, Weight.HEAVY)
        else:
            self._owner.behind.wait(self, self._decoder.behind_bytes, is_proven=self._is_proven())

    def _take_in_pending(self, *, has_requests: bool) -> None:
        owner = self._owner
        decoder = self._decoder
        pending = decoder.pending_bytes
        if self._has_large_frame and pending < self._pending_bytes:
            self._has_large_frame = False
            owner.frames.leave(self)
            owner.let_frames_in()
        if pending != self._pending_bytes:
            owner.count_partial_frame(self, self._pending_bytes, pending)
            self._pending_bytes = pending
        if not pending:
            self._limits.has_finished_frame()
            return
        if has_requests or not self.frame_since_ns:
            self._limits.finish_frame_by(owner.env.clock.now_ns())
            if self._may_go and self._is_proven():
                self._stays()
        frame_bytes = decoder.frame_bytes
        if frame_bytes > LARGE_BYTES and not self._has_large_frame and not self._closing:
            self._has_large_frame = True
            if not owner.frames.admits(self, frame_bytes, owner.adds.used_bytes):
                self.pause(FRAME)
        owner.bound_partial_frames()

    def go_on(self) -> None:
        """Carry out the next requests of the last chunk, unless a limit has to be kept first."""
        if self._paused_for == BEHIND:
            self.resume(BEHIND)
            if self._decoder.is_behind:
                self.data_received(b"")

    def _carry_out(self, data: bytes) -> list[Request]:
        """Carry out what the gate admits of the next requests, and return it."""
        requests = self._decoder.feed(data, may_rise=self.gate is not None)
        if requests and self.gate is not None:
            requests = self.gate.admit(requests, self._decoder.pending_bytes)
        if requests:
            if self._may_go:
                self._stays()
            self._owner.handler.handle(self, requests)
        return requests

    def _is_proven(self) -> bool:
        return self._owner.places.is_proven(self)

    def _stays(self) -> None:
        self._may_go = False
        self._owner.places.prove(self)

    def pause_writing(self) -> None:
        """Answers pile up: begin nothing more for this peer."""
        self._limits.take_by(self._owner.env.clock.now_ns())
        self.pause(ANSWERS)

    def resume_writing(self) -> None:
        """The peer took most of its answers."""
        self.resume(ANSWERS)
        self._owner.handler.resume(self)

    def eof_received(self) -> bool:
        """The peer sends no more: close, when it is this connection's turn."""
        self._owner.departures.add(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Do nothing more for this peer, and forget soon what waits for it."""
        if isinstance(exc, RemoteProtocolError):
            self._note_broken_protocol(exc)
        was_open, self.is_open = self.is_open, False
        self._closing = True
        self._answers = []
        self._answers_bytes = 0
        if was_open:
            self._owner.departures.add(self)

    def depart(self) -> None:
        """Close if the peer has left, forget it if the connection is gone."""
        if self.is_open:
            self.close()
        elif not self._is_forgotten:
            self._is_forgotten = True
            self._forget_frame()
            self._owner.answer_budget.forget(self)
            self._owner.handler.forget(self)
            self._owner.lost(self)

    # Called by its gate

    @property
    def is_closing(self) -> bool:
        """Tell whether nothing that its peer says counts any more."""
        return self._closing

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate its peer showed under TLS."""
        tls = self._transport.get_extra_info("ssl_object")
        return tls.getpeercert() or None if tls is not None else None

    def start_tls(self, context: ssl.SSLContext, done: Callable[[Exception | None], None]) -> None:
        """Send what is there in the clear, and go on with TLS from the next byte on."""
        self.flush()
        self._transport = self._owner.env.network.start_tls(
            self._transport, self, context, server_side=True, done=done,
            turns=TurnsBelow(self._owner.behind, self._is_proven),
        )  # fmt: skip

    def is_known_as(self, name: str) -> None:
        """Take the name that its peer has proven; what it changes is logged under it."""
        self.peer = f"{name} at {self.address}"

    def limit_frames(self, size_bytes: int) -> None:
        """Refuse larger frames from now on."""
        self._decoder.max_frame_bytes = size_bytes

    # Called by those who look after all connections

    def check(self, now_ns: int) -> None:
        """Give the peer up if it is over a time limit; called every now and then."""
        if self.gate is not None and not self._closing and self.gate.is_overdue(now_ns):
            self._give_up_slow("it has not authenticated, or not switched to TLS, in time")
            return
        verdict = self._limits.look(
            now_ns, self._sent_bytes - self._transport.get_write_buffer_size(),
            must_take=self.waits_for_peer, may_send=self.is_read, is_at_work=self.is_at_work,
            has_polls=bool(self.long_polls),
        )  # fmt: skip
        if verdict is PeerVerdict.UNREAD or verdict is PeerVerdict.UNFINISHED:
            self._give_up_slow(verdict.value)
        elif verdict is PeerVerdict.UNCLOSED:
            self.give_up(verdict.value)
        elif verdict is PeerVerdict.IDLE:
            self._owner.metrics.connections_idle += 1
            _log.info("closing the connection of %s: %s", self.peer, verdict.value)
            self.close()
        elif verdict is PeerVerdict.RESTS and not self._may_go:
            self._may_go = True
            self._owner.places.rest(self)

    @property
    def is_at_work(self) -> bool:
        """Tell whether something is under way for its peer, or its peer is in the midst of asking.

        Answers that it does not take, and polls that wait for news, are no work.
        """
        return bool(
            self.add_bytes or self.unsettled or self.reads or self.read_bytes
            or self._pending_bytes or self._paused_for or self._answers_bytes
        )  # fmt: skip

    @property
    def is_read(self) -> bool:
        """Tell whether its peer could send more: no limit stands in the way."""
        return not self._paused_for

    @property
    def frame_since_ns(self) -> int:
        """When the frame that is incomplete was begun; 0 if there is none."""
        return self._limits.frame_since_ns

    @property
    def pending_frame_bytes(self) -> int:
        """Bytes of the frame that is incomplete; none of a connection that is being cut."""
        return 0 if self._closing else self._pending_bytes

    # Called by those who carry out requests

    def answer(self, data: bytes) -> None:
        """Send an answer frame (or several, joined) with the next write."""
        if self._answers or self._begin_answers():
            self._answers.append(data)
            self._answers_bytes += len(data)

    def answer_pieces(self, pieces: list[bytes]) -> None:
        """Send one frame that comes in pieces, without joining them."""
        if self._answers or self._begin_answers():
            self._answers.extend(pieces)
            self._answers_bytes += sum(map(len, pieces))

    def _begin_answers(self) -> bool:
        """Have those that come now sent, by whoever does; tell whether there is a peer."""
        if self.is_open and not self._is_carrying_out:
            self._owner.outbox.add(self)
        return self.is_open

    def flush(self) -> None:
        """Write all answers that are there, in one call."""
        answers = self._answers
        if not answers:
            return
        size, self._answers, self._answers_bytes = self._answers_bytes, [], 0
        if not self.is_open:
            return
        transport = self._transport
        self._sent_bytes += size
        self._write(answers, size)
        left = transport.get_write_buffer_size()
        if left or self._is_unread:
            self._note(left)
        limit = self._owner.options.max_connection_answer_bytes
        if size > limit or left > limit:
            self._give_up_slow("it does not read its answers, and too many have piled up")

    def _write(self, answers: list[bytes], size: int) -> None:
        transport = self._transport
        if len(answers) == 1:
            transport.write(answers[0])
        elif size <= _JOIN_BYTES_MAX:
            transport.write(b"".join(answers))
        else:
            transport.writelines(answers)

    def _note(self, left_bytes: int) -> None:
        unread_bytes = left_bytes + self._answers_bytes
        self._is_unread = bool(unread_bytes)
        self._owner.answer_budget.note(self, unread_bytes, self._sent_bytes - left_bytes)

    def note_unread(self) -> None:
        """Have the budget of answers know what its peer has not taken, or not been sent."""
        self._note(self._transport.get_write_buffer_size())

    def stands_in_the_way(self) -> None:
        """Cut it: it takes nothing away, and others have no room for their answers."""
        self._give_up_slow("it does not read its answers, and others have no room for theirs")

    def flush_above(self, size_bytes: int) -> None:
        """Write the answers that are there, if they are that many; more will follow."""
        if self._answers_bytes >= size_bytes:
            self.flush()

    @property
    def answer_budget(self) -> AnswerBudget[BookieConnection]:
        """What all connections share."""
        return self._owner.answer_budget

    @property
    def unflushed_bytes(self) -> int:
        """How much of that is not written yet."""
        return self._answers_bytes

    @property
    def takes_answers(self) -> bool:
        """Tell whether more answers may be produced for this peer."""
        return (
            not self._paused_for & ANSWERS
            and self._answers_bytes < self._owner.options.high_connection_answer_bytes
        )

    @property
    def waits_for_peer(self) -> bool:
        """Tell whether its peer has to take answers first; ``resume`` follows then."""
        return bool(self._paused_for & ANSWERS)

    def hold_adds(self, size_bytes: int, run_count: int = 1) -> None:
        """Count adds that are under way; the connection pauses when it is over a budget."""
        weight = add_weight(size_bytes, run_count)
        self.add_bytes += weight
        if not self._owner.adds.hold(weight, run_count, self.add_bytes):
            self.pause(ADDS)

    def release_adds(self, size_bytes: int, run_count: int = 1) -> None:
        """Count adds as answered."""
        weight = add_weight(size_bytes, run_count)
        self.add_bytes -= weight
        may_go_on = self._owner.adds.release(weight, run_count, self.add_bytes)
        if may_go_on and self._paused_for & ADDS:
            self.resume(ADDS)
        self._owner.behind.wake()
        self._owner.let_frames_in()

    def pause(self, reason: int) -> None:
        """Stop reading for a reason."""
        if not self._paused_for and self.is_open:
            self._owner.metrics.pauses += 1
            self._transport.pause_reading()
        self._paused_for |= reason

    def resume(self, reason: int) -> None:
        """Take a reason back; without any left, read again."""
        if self._paused_for:
            self._paused_for &= ~reason
            if self._paused_for == BEHIND != reason:
                self._queue()
            if not self._paused_for and self.is_open and not self._closing:
                # While it was not read, its peer could not finish a frame.
                if self.frame_since_ns:
                    self._limits.finish_frame_by(self._owner.env.clock.now_ns())
                self._transport.resume_reading()

    def close(self) -> None:
        """Send what is there, then close; a peer that hinders it is given up later."""
        if not self._closing and self.is_open:
            self.flush()
            self._closing = True
            self._limits.close_by(self._owner.env.clock.now_ns())
            self._transport.close()

    def give_up(self, why: str) -> None:
        """Cut the connection at once, and say why."""
        if self.is_open:
            _log.warning("cutting the connection of %s: %s", self.peer, why)
            self.drop()

    def _give_up_slow(self, why: str) -> None:
        self._owner.metrics.connections_slow += 1
        self.give_up(why)

    def drop(self) -> None:
        """Cut the connection at once."""
        self._closing = True
        self._forget_frame()
        self._transport.abort()

    def _forget_frame(self) -> None:
        owner = self._owner
        owner.count_partial_frame(self, self._pending_bytes, 0)
        self._pending_bytes = 0
        owner.frames.leave(self)
        owner.let_frames_in()
