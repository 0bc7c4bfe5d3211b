"""One budget for answers that nobody has taken in yet.

uvicorn hands a whole answer to its connection, whose buffer holds it for as long as the client
reads slowly.  Large answers are handed over in pieces here, each when the one before is taken in,
and count until then; a large one beyond the budget is refused with 503 before its head is sent.
An answer whose head is sent, such as one of events, goes on: there is one event of it at a time.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PIECE_BYTES = 64 * 1024
_BUDGET_BYTES = 64 << 20


class BoundedAnswers:
    """Passes requests on to an application, and its answers back in pieces.

    Args:
        app: Who answers.
        busy: What is answered instead of a large answer beyond the budget.
        budget_bytes: So much of large answers at a time; one alone may be larger.
    """

    def __init__(self, app: ASGIApp, busy: ASGIApp, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._app = app
        self._busy = busy
        self._budget_bytes = budget_bytes
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        head: Message | None = None
        is_refused = False

        async def in_pieces(message: Message) -> None:
            nonlocal head, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start":
                head = message
                return
            size = len(message.get("body", b""))
            if head is not None:
                if size > _PIECE_BYTES and 0 < self._held_bytes > self._budget_bytes - size:
                    is_refused = True
                    await self._busy(scope, receive, send)
                    return
                await send(head)
                head = None
            await self._hand_over(message, send)

        await self._app(scope, receive, in_pieces)

    async def _hand_over(self, message: Message, send: Send) -> None:
        body = message.get("body", b"")
        if len(body) <= _PIECE_BYTES:
            await send(message)
            return
        self._held_bytes += len(body)
        try:
            for first in range(0, len(body), _PIECE_BYTES):
                piece = body[first : first + _PIECE_BYTES]
                more = message.get("more_body", False) or first + _PIECE_BYTES < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._held_bytes -= len(body)
