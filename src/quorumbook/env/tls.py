"""Certificates from files, and what a failed handshake means to people.

``TlsOptions`` says which files; ``TlsContexts`` makes an ``ssl.SSLContext`` of them for one side,
and a new one when a file has changed: connections that exist keep what they began with, and a file
that cannot be used leaves the old certificates in use.  Files are PEM.

Both sides: TLS 1.2 and 1.3, no compression, no renegotiation; sessions are taken up again in 1.2
alone, where OpenSSL keeps them and Python cannot tell it not to.  A client checks the bookie's
certificate always, and that it is made for the host it connects to, unless ``verify_host`` is off;
the subject's common name does not count as a host name.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import ClassVar

from quorumbook.env.interfaces import Clock
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError
from quorumbook.options import Options, option

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions(Options):
    """TLS of one process, as a bookie or as a client."""

    SECTION: ClassVar[str] = "tls"

    # fmt: off
    certificate_file: str = option(
        "", "Our certificate in PEM form, followed by its intermediate certificates.",
        peer_key="tlsCertificatePath",
    )
    key_file: str = option(
        "", "Its private key in PEM form.",
        peer_key="tlsKeyStore",
    )
    key_password_file: str = option(
        "", "A file with the password of the key, if it is encrypted.",
        peer_key="tlsKeyStorePasswordPath",
    )
    ca_file: str = option(
        "",
        "Who may sign the other side's certificate, in PEM form; empty: whom the system trusts.",
        peer_key="tlsTrustStore",
    )
    crl_file: str = option(
        "",
        "Lists of revoked certificates in PEM form; with it, every issuer needs its list there.",
    )
    client_authentication: bool = option(
        False, "A bookie demands a certificate of clients; a client shows its own.",
        peer_key="tlsClientAuthentication",
    )
    require: bool = option(
        False, "A bookie carries out nothing for clients that have not switched to TLS.",
    )
    verify_host: bool = option(
        True, "A client checks that a bookie's certificate is made for the host it connects to.",
        peer_key="tlsHostnameVerificationEnabled",
    )
    protocols: tuple[str, ...] = option(
        ("TLSv1.2", "TLSv1.3"), "Versions of TLS that are spoken.",
        peer_key="tlsEnabledProtocols",
    )
    reload_interval_s: float = option(
        10.0, "How often, at most, the files are looked at for changes; 0 never does.",
        minimum=0, peer_key="tlsCertFilesRefreshDurationSeconds",
    )
    # fmt: on

    @property
    def files(self) -> tuple[str, ...]:
        """Return the paths that are given."""
        named = (self.certificate_file, self.key_file, self.key_password_file, self.ca_file)
        return tuple(path for path in (*named, self.crl_file) if path)


class TlsContexts:
    """The present context of one side; asked for at every handshake."""

    def __init__(self, options: TlsOptions, clock: Clock, *, server_side: bool) -> None:
        """Load the files.

        Raises:
            ConfigError: one cannot be used; the message names it, the cause and the fix.
        """
        self.options = options
        self._clock = clock
        self._server_side = server_side
        self._stamp = _stamp(options.files)
        self._context = _make(options, server_side=server_side)
        self._looked_ns = clock.now_ns()

    def current(self) -> ssl.SSLContext:
        """Return the context, of the files as they were when they were last looked at."""
        return self._context

    def refresh(self) -> bool:
        """Look whether files have changed, if it is time to, and load them; True if they did.

        Raises:
            ConfigError: a changed file cannot be used; the old certificates stay.  It is not
                loaded again before it changes again.
        """
        now_ns = self._clock.now_ns()
        interval_s = self.options.reload_interval_s
        if not interval_s or now_ns - self._looked_ns < interval_s * 1e9:
            return False
        self._looked_ns = now_ns
        stamp = _stamp(self.options.files)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._context = _make(self.options, server_side=self._server_side)
        return True


def _stamp(paths: tuple[str, ...]) -> list[tuple[int, int, int] | None]:
    """Return what changes when a file is written or replaced."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return stamps


def _make(options: TlsOptions, *, server_side: bool) -> ssl.SSLContext:
    side = ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(side)
    versions = [_VERSIONS.get(name.strip()) for name in options.protocols]
    known = [version for version in versions if version is not None]
    if not known or len(known) != len(versions):
        raise ConfigError(
            f"tls.protocols: {', '.join(options.protocols)} is not TLSv1.2, TLSv1.3 or both"
        )
    context.minimum_version, context.maximum_version = min(known), max(known)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    _load_own(context, options, server_side=server_side)
    _load_trust(context, options, server_side=server_side)
    if server_side:
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_REQUIRED if options.client_authentication else ssl.CERT_NONE
    else:
        context.check_hostname = options.verify_host
        context.hostname_checks_common_name = False
    return context


def _load_own(context: ssl.SSLContext, options: TlsOptions, *, server_side: bool) -> None:
    if not options.certificate_file or not options.key_file:
        if server_side or options.client_authentication:
            raise ConfigError(
                "tls.certificate_file and tls.key_file must both be set for TLS "
                + ("on a bookie" if server_side else "with tls.client_authentication")
            )
        return
    if not server_side and not options.client_authentication:
        return
    password = b""
    if options.key_password_file:
        password = read_secret_file(options.key_password_file, "tls.key_password_file").strip()
    read_public_file(options.certificate_file, "tls.certificate_file")
    read_secret_file(options.key_file, "tls.key_file")
    try:
        context.load_cert_chain(options.certificate_file, options.key_file, lambda: password)
    except ssl.SSLError as error:
        raise ConfigError(_why_not_loaded(options, error)) from None
    except ValueError:
        raise ConfigError(f"the password in {options.key_password_file} is too long") from None


def _why_not_loaded(options: TlsOptions, error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).upper()
    certificate, key = options.certificate_file, options.key_file
    if "VALUES_MISMATCH" in reason or "TYPE_MISMATCH" in reason:
        return (
            f"tls.key_file {key} is not the key of the first certificate in {certificate}; "
            "give the two that belong together"
        )
    if "KEY_TOO_SMALL" in reason or "TOO_WEAK" in reason:
        return f"the key in {certificate} is too weak; issue one with at least 2048 bits"
    if "BAD_DECRYPT" in reason or "PASSWORD" in reason:
        return f"{key} is encrypted with another password; put it into tls.key_password_file"
    return (
        f"{certificate} and {key} are not a certificate and a key in PEM form ({reason.lower()}); "
        "`openssl pkcs12 -in STORE -out FILE -nodes` makes one of a PKCS12 store"
    )


def _load_trust(context: ssl.SSLContext, options: TlsOptions, *, server_side: bool) -> None:
    if server_side and not options.client_authentication:
        return
    for path, name in ((options.ca_file, "tls.ca_file"), (options.crl_file, "tls.crl_file")):
        if path:
            read_public_file(path, name)
            try:
                context.load_verify_locations(cafile=path)
            except ssl.SSLError:
                what = "certificate" if name == "tls.ca_file" else "revocation list"
                raise ConfigError(f"{name} {path} has no {what} in PEM form") from None
    if options.crl_file:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    if not options.ca_file:
        if server_side:
            raise ConfigError(
                "tls.ca_file must be set with tls.client_authentication: it says whose clients "
                "may come in"
            )
        context.load_default_certs()


def read_public_file(path: str, name: str) -> bytes:
    """Return the content of a file of certificates.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read: {error.strerror}") from None


#: OpenSSL's numbers of what is wrong with a certificate: what it is, and what to do.
_VERIFY = {
    9: ("is not valid yet", "look at the clocks of both hosts"),
    10: ("has expired", "renew it"),
    3: (
        "has an issuer without a revocation list in tls.crl_file",
        "add the issuer's list to the file",
    ),
    12: ("has an issuer whose revocation list is out of date", "renew the list in tls.crl_file"),
    18: ("is self-signed", "have it signed by a CA, or put it into tls.ca_file if it is meant"),
    19: ("is signed by a CA that is not trusted", "put that CA into tls.ca_file if it is meant"),
    20: (
        "has an unknown issuer",
        "its owner must have all intermediate certificates in tls.certificate_file, and we its CA "
        "in tls.ca_file",
    ),
    23: ("was revoked", "issue a new one"),
    26: (
        "is not made for this side of a connection",
        "its extended key usage must be serverAuth for a bookie and clientAuth for a client",
    ),
    62: (
        "is not made for this host name",
        "issue one that names it as DNS in its subject alternative name",
    ),
    64: (
        "is not made for this address",
        "issue one that names it as IP in its subject alternative name",
    ),
}
_VERIFY[21] = _VERIFY[20]

#: Parts of OpenSSL's names of what the other side told us, in this order.
_ALERTS = (
    (
        # Not what we were told, but what we found.
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "it shows no certificate",
        "its owner sets tls.certificate_file, tls.key_file and tls.client_authentication",
    ),
    (
        "CERTIFICATE_REQUIRED",
        "it demands a certificate",
        "set tls.certificate_file and tls.key_file, and for bookies tls.client_authentication",
    ),
    ("CERTIFICATE_EXPIRED", "our certificate has expired", "renew it"),
    ("CERTIFICATE_REVOKED", "our certificate was revoked", "issue a new one"),
    ("UNKNOWN_CA", "it does not know who signed our certificate", "add our CA to its tls.ca_file"),
    (
        "CERTIFICATE",
        "it does not accept our certificate",
        "its log says why; check the CA and the extended key usage",
    ),
    ("PROTOCOL_VERSION", "it speaks other versions of TLS", "compare tls.protocols"),
    ("UNSUPPORTED_PROTOCOL", "it speaks other versions of TLS", "compare tls.protocols"),
    (
        "HANDSHAKE_FAILURE",
        "it refused the handshake",
        "its log says why; it may want a certificate",
    ),
    ("NO_SHARED_CIPHER", "we have no cipher in common", "look at its list of ciphers"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS", "set TLS up on both sides"),
)


def explain(error: Exception, *, host: str = "") -> str:
    """Say in one line why a TLS connection failed, and what to do."""
    name = f" of {host}" if host else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause, fix = _VERIFY.get(
            error.verify_code, (f"is refused ({error.verify_message})", "issue a new one")
        )
        return f"the certificate{name} {cause}; {fix}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").upper()
        for part, cause, fix in _ALERTS:
            if part in reason:
                return f"{cause}; {fix}"
        return f"TLS failed ({reason.lower() or error})"
    if isinstance(error, ConnectionError | EOFError):
        return "the connection was closed in the TLS handshake; the other side's log says why"
    return str(error)
