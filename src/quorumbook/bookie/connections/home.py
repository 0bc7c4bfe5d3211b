"""What a connection is given: what all of its bookie share, and who carries out requests."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from quorumbook.bookie.connections.add_budget import AddBudget
from quorumbook.bookie.connections.admission import Admission
from quorumbook.bookie.connections.answer_budget import AnswerBudget, ReadingConnection
from quorumbook.bookie.connections.frame_budget import FrameBudget, SendingConnection
from quorumbook.bookie.connections.limits import Places
from quorumbook.bookie.connections.loop_turns import Departures, Outbox, Turn, TurnQueue
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.env import Env
from quorumbook.protocol.requests import Request


class _SharingConnection(SendingConnection, ReadingConnection, Hashable, Protocol):
    """What the budgets ask of a connection."""


C = TypeVar("C", bound=_SharingConnection)
C_contra = TypeVar("C_contra", contravariant=True)


class RequestHandler(Protocol[C_contra]):
    """Who carries out requests."""

    def handle(self, connection: C_contra, requests: list[Request]) -> None:
        """Begin all requests of a chunk; answers go to ``connection.answer``, now or later."""
        ...

    def resume(self, connection: C_contra) -> None:
        """Go on with the connection's waiting reads: its peer takes answers again."""
        ...

    def has_much_room(self, on_room: Callable[[], None]) -> bool:
        """Tell whether adds of somebody who sends much may come; if not, call back later."""
        ...

    def forget(self, connection: C_contra) -> None:
        """Drop what waits for a connection that is gone."""
        ...


class Home(Protocol[C]):
    """What a connection shares with the others of its bookie, and tells them."""

    env: Env
    options: BookieOptions
    metrics: BookieMetrics
    handler: RequestHandler[C]
    admission: Admission
    places: Places[C]
    adds: AddBudget
    frames: FrameBudget[C]
    answer_budget: AnswerBudget[C]
    turn: Turn
    outbox: Outbox
    departures: Departures
    behind: TurnQueue

    def opened(self, connection: C, place: str) -> bool:
        """Take a new connection in; False turns it away."""

    def lost(self, connection: C) -> None:
        """A connection is gone."""

    def let_frames_in(self) -> None:
        """Go on reading large frames for which there is room now."""

    def count_partial_frame(self, connection: C, before_bytes: int, now_bytes: int) -> None:
        """Count how much has come of a frame that is not complete."""

    def bound_partial_frames(self) -> None:
        """Give up the oldest frames where there are too many bytes of them."""
