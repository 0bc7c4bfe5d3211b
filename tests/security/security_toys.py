"""Plug-ins as a user would write them; the first is that of the golden exchanges."""

from __future__ import annotations

from quorumbook.auth.plugins import Peer, Principal, Step
from quorumbook.errors import SecurityError


class GoldenBookie:
    """hello -> challenge, response -> ok, anything else is refused."""

    name = "GoldenAuth"

    def __init__(self, settings: str = "") -> None:
        self.settings = settings

    def identify(self, peer: Peer) -> Principal | None:
        return None

    def session(self, peer: Peer) -> GoldenBookie:
        return self

    def answer(self, payload: bytes) -> Step:
        if payload == b"hello":
            return Step(b"challenge")
        if payload == b"response":
            return Step(b"ok", Principal("golden"))
        raise SecurityError("that is neither hello nor response")


class GoldenClient:
    """The other side of it."""

    name = "GoldenAuth"

    def __init__(self, settings: str = "") -> None:
        self.settings = settings

    def session(self, peer: Peer) -> GoldenClient:
        return self

    def start(self) -> bytes:
        return b"hello"

    def answer(self, payload: bytes) -> bytes | None:
        return b"response" if payload == b"challenge" else None


class Broken(GoldenBookie):
    """Fails in a way nobody thought of, with what it was sent in its message."""

    def answer(self, payload: bytes) -> Step:
        raise KeyError(payload)


class Nameless:
    """No plug-in."""

    def __init__(self, settings: str) -> None:
        pass
