"""MIT Kerberos in name only: tokens are in the clear, and prove nothing.

What ``gssapi`` is asked for by ``auth/kerberos.py``, so that what follows from a login by Kerberos
is tested without a KDC.  ``monkeypatch.setitem(sys.modules, "gssapi", gssapi_toy)`` puts it there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NameType = SimpleNamespace(hostbased_service=1, kerberos_principal=2)
MechType = SimpleNamespace(kerberos=1)
RequirementFlag = SimpleNamespace(mutual_authentication=1)
_PROOF = b"the service's proof"


class GSSError(Exception):
    """Nothing raises it here."""


exceptions = SimpleNamespace(GSSError=GSSError)


def Name(text: str, kind: int) -> str:
    """Return a name as it is."""
    assert kind
    return text


class Credentials:
    """Who somebody says to be."""

    def __init__(self, *, name: str | None, usage: str, store: Any) -> None:
        self.name = name
        self.usage = usage
        self.store = store


class SecurityContext:
    """One side: a client sends its name as its ticket, and the server believes it."""

    def __init__(self, *, creds: Credentials, usage: str, **_more: Any) -> None:
        self.complete = False
        self.initiator_name = creds.name if usage == "initiate" else None
        self._is_client = usage == "initiate"

    def step(self, token: bytes | None) -> bytes | None:
        """Return the next token: the ticket, or the proof."""
        if self._is_client:
            self.complete = token == _PROOF
            return None if self.complete else str(self.initiator_name).encode()
        assert token is not None
        self.initiator_name, self.complete = token.decode(), True
        return _PROOF

    def wrap(self, message: bytes, _is_encrypted: bool) -> Any:
        """Return a message as it is."""
        return SimpleNamespace(message=message)

    def unwrap(self, message: bytes) -> Any:
        """Return a message as it is."""
        return SimpleNamespace(message=message)
