"""What a child made by fork leaves alone: the connections, threads and futures of its parent.

A fork copies the memory of a process and shares its sockets; of its threads only one goes on.  So
whatever a client has under way in the parent never ends in the child, and what the child would
write into a shared socket the bookie at the other end takes for the parent's.

    generation                 how often this process, and those it was forked from, were forked
    check_owner(generation)    raises LocalProtocolError if something was made before a fork
    watch(owner, abandon)      has ``abandon`` called with the owner in every child
    sever_in_children(made)    has the child's end of a connection replaced by a dead one
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import weakref
from typing import Any, Protocol, TypeVar

from quorumbook.errors import LocalProtocolError

generation = 0
OwnerT_contra = TypeVar("OwnerT_contra", contravariant=True)


class Abandon(Protocol[OwnerT_contra]):
    """What becomes of something that is of no use in a child of the process that made it."""

    def __call__(
        self, owner: OwnerT_contra, error: LocalProtocolError, /, *, may_act: bool
    ) -> None:
        """In the child: refuse everything from now on.

        Args:
            owner: What was made before the fork.
            error: What to say.
            may_act: The fork was made on the thread of its loop, so nothing is half done and
                what is pending can be failed; otherwise flags are all that may be touched.
        """
        ...


_owners: weakref.WeakKeyDictionary[Any, tuple[int, Abandon[Any]]] = weakref.WeakKeyDictionary()
_transports: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()
#: Those that cannot be referred to weakly, as uvloop's with TLS; closed ones go with the next.
_others: list[asyncio.BaseTransport] = []


def watch(owner: OwnerT_contra, abandon: Abandon[OwnerT_contra]) -> None:
    """Have something abandoned in every child; called on the thread of its loop."""
    _owners[owner] = threading.get_ident(), abandon


def sever_in_children(transport: asyncio.BaseTransport) -> None:
    """Keep children from writing into a connection, and from reading what is the parent's."""
    try:
        _transports.add(transport)
    except TypeError:
        _others[:] = [each for each in _others if not each.is_closing()]
        _others.append(transport)


def check_owner(made_in: int) -> None:
    """Raise LocalProtocolError if something was made in another generation."""
    if made_in != generation:
        raise forked_error()


def forked_error() -> LocalProtocolError:
    """Return what a child is told."""
    return LocalProtocolError(
        "this client was made before the process was forked; connect again in the child"
    )


def _after_fork() -> None:
    global generation
    generation += 1
    for transport in [*_transports, *_others]:
        with contextlib.suppress(Exception):
            _sever(transport)
    _transports.clear()
    _others.clear()
    owners = list(_owners.items())
    _owners.clear()
    for owner, (thread, abandon) in owners:
        with contextlib.suppress(Exception):
            abandon(owner, forked_error(), may_act=thread == threading.get_ident())


def _sever(transport: asyncio.BaseTransport) -> None:
    shared = transport.get_extra_info("socket")
    if shared is None or shared.fileno() < 0:
        return
    ours, other = socket.socketpair()
    other.close()
    with ours:
        os.dup2(ours.fileno(), shared.fileno(), inheritable=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
