"""Requests of a chunk, all at once: a bookie decodes very many of them in pieces."""

from __future__ import annotations

from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import Request


def decode_all(decoder: RequestDecoder, data: bytes) -> list[Request]:
    """Feed a chunk, and take everything that is in it."""
    requests = decoder.feed(data)
    while decoder.is_behind:
        requests += decoder.feed(b"")
    return requests
