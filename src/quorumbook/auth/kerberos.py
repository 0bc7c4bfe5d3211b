"""SASL's mechanism GSSAPI (RFC 4752), which is Kerberos here; both sides of one exchange.

    client   a ticket for the service
    server   a proof that it is the service (if the client asks for one, as ours does)
    client   empty
    server   wrapped: 1 byte of layers (1: none), 3 bytes of 0
    client   wrapped: the layer that it chose (1), 3 bytes of 0, a name or nothing
    server   nothing

Tickets are the affair of MIT Kerberos, which ``gssapi`` (the extra ``kerberos``) binds; it reads
``/etc/krb5.conf``.  A client asks the KDC for a ticket, so ``KerberosClient`` waits for another
host and belongs into a thread; ``KerberosServer`` does not wait.
"""

from __future__ import annotations

import importlib
import shlex
from dataclasses import dataclass, fields
from typing import Any

from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError, SecurityError

_NO_LAYER = b"\x01\x00\x00\x00"
_CHOICE_BYTES = 4


@dataclass(frozen=True, slots=True)
class KerberosIdentity:
    """Who we are, and by what we show it."""

    #: ``name/host@REALM``; empty: who the tickets, or the keytab, are of.
    principal: str = ""
    #: A file with the principal's key; empty: the tickets of ``kinit``, for a server the default.
    keytab: str = ""
    #: What the principal of a server begins with.
    service: str = "bookkeeper"
    #: A regular expression for the principals that a server lets in.
    allowed: str = ".*bookkeeper.*"

    @classmethod
    def parse(cls, text: str, names: tuple[str, ...]) -> KerberosIdentity:
        """Read ``name=value name=value``.

        Raises:
            ConfigError: it is not of that form.
        """
        try:
            pairs = [each.partition("=") for each in shlex.split(text)]
        except ValueError as error:
            raise ConfigError(f"auth_settings: {error}") from None
        given = {name: value for name, _, value in pairs}
        assert set(names) <= {field.name for field in fields(cls)}
        if len(given) < len(pairs) or not all(given.values()) or not given.keys() <= set(names):
            raise ConfigError(
                "auth_settings is not of the form "
                + " ".join(f"{name}={name.upper()}" for name in names)
            )
        return cls(**given)

    def check(self) -> None:
        """Look whether it can be used.

        Raises:
            ConfigError: the library is missing, or the keytab is not safe.
        """
        _library()
        if self.keytab:
            read_secret_file(self.keytab, "keytab")


class KerberosClient:
    """The client's side of one exchange.

    Args:
        identity: Who we are.
        host: The host of the service, as its principal names it.
    """

    def __init__(self, identity: KerberosIdentity, host: str) -> None:
        self._identity = identity
        self._host = host
        self._context: Any = None
        #: Whether the last message was made: the server answers it with nothing.
        self.is_complete = False

    def respond(self, token: bytes = b"") -> bytes:
        """Return the next message; waits for the KDC.

        Raises:
            SecurityError: there is no ticket, or the server is not who it should be.
        """
        library = _library()
        try:
            if self._context is None:
                self._context = self._begin(library)
            if not self._context.complete:
                return self._context.step(token or None) or b""
            choice = self._context.unwrap(token).message
            if len(choice) != _CHOICE_BYTES or not choice[0] & _NO_LAYER[0]:
                raise SecurityError("its SASL asks for more than authentication")
            self.is_complete = True
            return bytes(self._context.wrap(_NO_LAYER, False).message)
        except library.exceptions.GSSError as error:
            raise SecurityError(f"Kerberos: {_explain(error)}") from None

    def _begin(self, library: Any) -> Any:
        identity = self._identity
        store = None
        if identity.keytab:
            # Tickets that a keytab gets stay in memory, and are renewed there.
            store = {
                "client_keytab": identity.keytab,
                "ccache": f"MEMORY:quorumbook-{identity.principal}-{identity.keytab}",
            }
        credentials = library.Credentials(
            name=_name(library, identity.principal), usage="initiate", store=store
        )
        service = f"{identity.service}@{self._host}"
        return library.SecurityContext(
            name=library.Name(service, library.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=library.MechType.kerberos,
            flags=library.RequirementFlag.mutual_authentication,
        )


class KerberosServer:
    """The server's side of one exchange."""

    def __init__(self, identity: KerberosIdentity) -> None:
        self._identity = identity
        self._context: Any = None
        self._has_offered = False
        #: Who the client has proven to be, once it has.
        self.principal = ""

    def respond(self, token: bytes) -> bytes | None:
        """Return the next message; None behind the last, when ``principal`` is known.

        Raises:
            SecurityError: the client proves nothing.
        """
        library = _library()
        try:
            if self._context is None:
                self._context = self._begin(library)
            if not self._context.complete:
                proof = self._context.step(token)
                if proof or not self._context.complete:
                    return proof or b""
            if not self._has_offered:
                self._has_offered = True
                return bytes(self._context.wrap(_NO_LAYER, False).message)
            choice = self._context.unwrap(token).message
        except library.exceptions.GSSError as error:
            raise SecurityError(f"Kerberos: {_explain(error)}") from None
        name = str(self._context.initiator_name)
        if len(choice) < _CHOICE_BYTES or choice[0] != _NO_LAYER[0]:
            raise SecurityError("it chose another SASL layer than none")
        if choice[_CHOICE_BYTES:] not in (b"", name.encode()):
            raise SecurityError("it wants to be let in under another name than its own")
        self.principal = name
        return None

    def _begin(self, library: Any) -> Any:
        identity = self._identity
        store = {"keytab": identity.keytab} if identity.keytab else None
        credentials = library.Credentials(
            name=_name(library, identity.principal), usage="accept", store=store
        )
        return library.SecurityContext(creds=credentials, usage="accept")


def _library() -> Any:
    try:
        return importlib.import_module("gssapi")
    except ImportError as error:
        raise ConfigError(
            f"Kerberos needs MIT Kerberos and pip install 'quorumbook[kerberos]' ({error})"
        ) from None


def _name(library: Any, principal: str) -> Any:
    return library.Name(principal, library.NameType.kerberos_principal) if principal else None


def _explain(error: Any) -> str:
    """Return what Kerberos itself says, without the numbers of GSSAPI around it."""
    causes = error.get_all_statuses(error.min_code, False) if error.min_code else ()
    return "; ".join(causes or error.get_all_statuses(error.maj_code, True))
