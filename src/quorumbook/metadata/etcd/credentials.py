"""TLS with etcd, and what its library's words about a connection mean."""

from __future__ import annotations

import re
import ssl

import grpc

from quorumbook.env import Env
from quorumbook.env.secret_files import read_secret_file
from quorumbook.env.tls import TlsContexts, TlsOptions, read_public_file

#: Patterns in what grpc says of a failure, and what that is.
_CAUSES = (
    ("Connection refused", "nobody listens there"),
    ("lookup|[Rr]esol", "no such host is known"),
    ("Hostname Verification", "its certificate is not made for this host name"),
    (
        "CERTIFICATE_VERIFY_FAILED: ([^:]+)",
        r"its certificate is refused (\1); put the CA that signed it into tls.ca_file",
    ),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    (
        "TSI_DATA_CORRUPTED|ALERT",
        "it broke TLS off: it may demand a certificate (tls.certificate_file and tls.key_file) or "
        "not accept ours",
    ),
    ("Socket closed", "it closed the connection; if it speaks TLS, say ?tls=true"),
    ("Deadline Exceeded", "it is silent"),
)


def credentials(options: TlsOptions | None, env: Env) -> grpc.ChannelCredentials | None:
    """Return what connections are secured with; None leaves them plain.

    Files are read once.

    Raises:
        ConfigError: one cannot be used; the message names it, the cause and the fix.
    """
    if options is None:
        return None
    # The library says nothing about files that it cannot use.
    TlsContexts(options, env.clock, server_side=False)
    ca_file = options.ca_file or ssl.get_default_verify_paths().cafile or ""
    certificate_file, key_file = options.certificate_file, options.key_file
    return grpc.ssl_channel_credentials(
        read_public_file(ca_file, "tls.ca_file") if ca_file else None,
        read_secret_file(key_file, "tls.key_file") if key_file else None,
        read_public_file(certificate_file, "tls.certificate_file") if certificate_file else None,
    )


def explain(details: str) -> str:
    """Say in a few words what was wrong with an endpoint."""
    for pattern, cause in _CAUSES:
        match = re.search(pattern, details)
        if match:
            return match.expand(cause)
    return details
