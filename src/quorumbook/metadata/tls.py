"""What a metadata URI says about TLS, with the names of the options in ``[tls]``.

    tls=true                   speak TLS; each of the others says so too
    tls.ca_file=FILE           who is trusted to sign the servers' certificates; the system's CAs
                               without it
    tls.certificate_file=FILE  our own certificate, where the servers want one
    tls.key_file=FILE          its key
    tls.key_password_file=FILE what the key is encrypted with
    tls.crl_file=FILE          certificates that were revoked
    tls.verify_host=false      do not check that a certificate is made for its server

Files are PEM; what they must hold, and how a failure reads, is ``env.tls``'s.
"""

from __future__ import annotations

from quorumbook.env.shown import shown
from quorumbook.env.tls import TlsOptions
from quorumbook.errors import ConfigError

_FILES = ("ca_file", "certificate_file", "key_file", "key_password_file", "crl_file")
#: All names.
TLS_OPTIONS = ("tls", "tls.verify_host", *(f"tls.{name}" for name in _FILES))


def parse_tls(uri: str, options: dict[str, str]) -> TlsOptions | None:
    """Return what a URI's options say of TLS; None if they don't want it.

    Raises:
        ConfigError: they contradict each other.
    """
    files = {name: options.get(f"tls.{name}", "") for name in _FILES}
    has_files = any(files.values())
    verify_host = _switch(uri, options, "tls.verify_host", default=True)
    if not _switch(uri, options, "tls", default=has_files or not verify_host):
        if has_files:
            raise ConfigError(
                f"metadata URI {shown(uri)!r}: tls=false goes with no other option of TLS"
            )
        return None
    if bool(files["certificate_file"]) is not bool(files["key_file"]):
        raise ConfigError(
            f"metadata URI {shown(uri)!r}: name tls.certificate_file and tls.key_file, both or "
            "neither"
        )
    return TlsOptions(
        certificate_file=files["certificate_file"],
        key_file=files["key_file"],
        key_password_file=files["key_password_file"],
        ca_file=files["ca_file"],
        crl_file=files["crl_file"],
        client_authentication=bool(files["key_file"]),
        verify_host=verify_host,
    )


def _switch(uri: str, options: dict[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text not in (None, "true", "false"):
        raise ConfigError(f"metadata URI {shown(uri)!r}: {name} is true or false, not {text!r}")
    return default if text is None else text == "true"
