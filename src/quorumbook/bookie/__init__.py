"""The server: connections, request batches, fencing, read-only state, registration, life cycle."""

from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie

__all__ = ["Bookie", "BookieOptions"]
