"""How this machine is, apart from its disks: versions, clock, limits, its name, its ports."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import importlib.util
import os
import platform
import resource
import socket
import struct
import sys
from collections.abc import Mapping
from importlib.metadata import version

from quorumbook.admin.facts.verdict import VerdictReason
from quorumbook.cli.diagnosis.checks import failed, fine, warned

#: The head of the kernel's ``struct timex`` on 64-bit Linux, and its whole size.
_TIMEX, _TIMEX_BYTES = struct.Struct("Ixxxxqqqqi"), 208
_UNSYNCHRONISED = 0x40
_MOST_ERROR_MS = 1000
_ANSWER_TIMEOUT_S, _ANSWER_BYTES = 2.0, 64


def version_check() -> VerdictReason:
    """Return which versions run here."""
    text = (
        f"Quorumbook {version('quorumbook')}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.system()} {platform.release()}"
    )
    if importlib.util.find_spec("uvloop") is None:
        fix = "pip install uvloop"
        return warned("versions", f"{text}; without uvloop appends are half as fast", fix)
    return fine("versions", text)


def clock_check() -> VerdictReason:
    """Return whether something keeps the clock right."""
    state = _kernel_clock()
    if state is None:
        return fine("clock", "this system does not say whether its clock is synchronised")
    status, most_error_ms = state
    return clock_judged(is_synchronised=not status & _UNSYNCHRONISED, error_ms=most_error_ms)


def clock_judged(*, is_synchronised: bool, error_ms: float) -> VerdictReason:
    """Return what the kernel's word on its clock means."""
    fix = "run chronyd, ntpd or systemd-timesyncd"
    if not is_synchronised:
        return warned("clock", "this system knows of nothing that synchronises its clock", fix)
    if error_ms > _MOST_ERROR_MS:
        return warned("clock", f"the clock may be wrong by {error_ms / 1000:.3g} s", fix)
    return fine("clock", f"synchronised, wrong by {error_ms:.3g} ms at most")


def _kernel_clock() -> tuple[int, float] | None:
    """Return the kernel's status word and its largest error in ms; None where it cannot be asked.

    The status says "unsynchronised" from the start until a time service tells the kernel otherwise.
    """
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        return None
    _modes, _offset, _frequency, most_error_us, _error_us, status = _TIMEX.unpack_from(buffer)
    return status, most_error_us / 1000


def files_check() -> VerdictReason:
    """Return whether a bookie may open as many files as it wants."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files_judged(sys.maxsize if hard == resource.RLIM_INFINITY else hard)


def files_judged(limit: int) -> VerdictReason:
    """Return what a limit of open files means for a bookie."""
    from quorumbook.bookie.connections.limits import (
        CONNECTIONS_MAX,
        DESCRIPTORS_MIN,
        limits_within,
        storage_descriptors,
    )

    fix = "raise the limit: ulimit -n, or LimitNOFILE of its unit"
    if limit < DESCRIPTORS_MIN:
        text = f"a process may open {limit} files, and a bookie needs {DESCRIPTORS_MIN} at least"
        return failed("files", text, fix)
    connections = limits_within(limit, 0, 0, 0).in_all
    word = "any number of" if limit == sys.maxsize else f"{limit:,}"
    text = f"a process may open {word} files, enough for {connections:,} connections to a bookie"
    if connections < CONNECTIONS_MAX // 10:
        wanted = CONNECTIONS_MAX + storage_descriptors(CONNECTIONS_MAX)
        return warned("files", text, f"{fix} ({wanted:,} is enough for all)")
    return fine("files", text)


def name_check(host: str, listen: str) -> VerdictReason:
    """Return whether others find a bookie of this machine by its name.

    Args:
        host: What the bookie would register; empty: the machine's own name.
        listen: Where it would listen.
    """
    name = host or socket.gethostname()
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        fix = "add it to DNS or /etc/hosts, or set bookie.advertised_host to one that resolves"
        return failed("name", f"{name} cannot be resolved: {reason}", fix)
    return name_judged(name, found, listen)


def name_judged(name: str, addresses: set[str], listen: str) -> VerdictReason:
    """Return what the addresses of a name mean for a bookie that listens somewhere."""
    from quorumbook.bookie.http.access import is_loopback_only

    known = ", ".join(sorted(addresses))
    text = f"bookies register as {name}" + (f", which is {known}" if addresses != {name} else "")
    is_local = is_loopback_only(addresses)
    if is_local and listen != "localhost" and not is_loopback_only([listen]):
        fix = "set bookie.advertised_host to an address that other machines reach"
        return warned("name", f"{text}: other machines would connect to themselves", fix)
    return fine("name", f"{text}, for this machine alone" if is_local else text)


def port_check(option: str, host: str, port: int, serving: Mapping[int, str]) -> VerdictReason:
    """Return whether a port is free, or one of ours serves there.

    Args:
        option: The option that names the port.
        host: Where it would be listened at.
        port: Which one; 0 is a free one.
        serving: What is known to serve at ports of this machine.
    """
    if port == 0:
        return fine("port", f"{option} is 0: a free port is taken")
    if port in serving:
        return fine("port", f"{port} ({option}) is in use by {serving[port]}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            return _not_bound(option, host, port, error)
    return fine("port", f"{port} ({option}) is free")


def _not_bound(option: str, host: str, port: int, error: OSError) -> VerdictReason:
    if error.errno == errno.EADDRINUSE:
        text = f"{port} ({option}) is in use, by nothing that this cluster knows"
        return warned("port", text, f"stop what uses it, or choose another: --set {option}=PORT")
    if error.errno == errno.EACCES:
        fix = f"choose one from 1024 on (--set {option}=PORT), or grant CAP_NET_BIND_SERVICE"
        return failed("port", f"{port} ({option}) may not be used by user {os.geteuid()}", fix)
    text = f"{port} ({option}) cannot be listened at on {host}: {error.strerror or error}"
    return failed("port", text, "set the host to an address of this machine")


def admin_serves(host: str, port: int) -> bool:
    """Tell whether an admin server or a console answers at a port; blocks.

    One with TLS is not recognised: nobody says whom its certificate is from.
    """
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_TIMEOUT_S)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", "/heartbeat")
        return connection.getresponse().read(_ANSWER_BYTES) == b"OK\n"
    return False
