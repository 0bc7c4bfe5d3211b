"""Who is at the other end: the interface of authentication plug-ins, and the built-in ones.

Both sides of a connection need it, and bookie and client don't import each other; so it is a room
of its own.  ``plugins.py`` has the interface, which is public, and finds a plug-in by its name;
``shared_secret.py`` (on ``scram.py``), ``certificate_role.py`` and ``sasl.py`` are plug-ins, the
last on ``digest_md5.py`` and ``kerberos.py``, which ZooKeeper speaks as well.  When messages
travel, what is refused meanwhile and for how long is the affair of
``bookie/connections/admission.py`` and ``client/transport/handshake.py``; encryption is of ``env``.
"""

from quorumbook.auth.plugins import (
    BookiePlugin,
    BookieSession,
    ClientPlugin,
    ClientSession,
    LastMessage,
    Peer,
    Principal,
    Step,
)

__all__ = [
    "BookiePlugin",
    "BookieSession",
    "ClientPlugin",
    "ClientSession",
    "LastMessage",
    "Peer",
    "Principal",
    "Step",
]
