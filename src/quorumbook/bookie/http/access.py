"""Which HTTP requests are carried out: whom they ask for, and who may change something.

Pure; ``server.py`` reads requests and answers them.

``Host``    A web page of a name that its owner points at us would speak to us as to itself, so a
            request that names a host names one of ours: the address that it reached, ``localhost``
            where that is a loopback address, the host that is listened on, or a configured name.
            Off loopback every literal address will do: there are ways to us by addresses that we
            cannot know, and no page can make a literal address mean another machine.
``Origin``  Only browsers send it, and no page of ours changes anything: a change with it is
            refused.
token       A change (anything but GET, HEAD and OPTIONS) carries ``Authorization: Bearer TOKEN``
            with one of the lines of the token file.  Without such a file only a server that
            listens on loopback alone changes anything, for whoever is on this machine, as Java's
            tools and curl expect it.  Off loopback, what makes a bookie work hard counts as a
            change.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError

_OPTION = "http.token_file"
_TOKEN_LENGTH_MIN = 16
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Refusal(NamedTuple):
    """Why a request is not carried out."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """What the configuration says of it."""

    #: Where it listens, and by what further names it may be asked for.
    names: Collection[str] = ()
    #: Empty: there are no tokens.
    token_file: str = field(default="", repr=False)

    def check(self) -> None:
        """Refuse a token file that is unfit.

        Raises:
            ConfigError: It cannot be used.
        """
        if self.token_file:
            read_tokens(self.token_file)

    def refusal(
        self,
        method: str,
        headers: Sequence[tuple[str, str]],
        reached: str,
        *,
        on_loopback: bool,
        is_guarded: bool = False,
    ) -> Refusal | None:
        """Tell why a request is refused; None if it is not.

        Args:
            method: The request's.
            headers: Names in lower case, and values.
            reached: The address of ours that the connection came to.
            on_loopback: The server listens on loopback alone.
            is_guarded: It makes the server work hard, or tells of its inside.

        Raises:
            ConfigError: The token file cannot be used any more.
        """
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) > 1:
            return Refusal(400, "there is more than one Host")
        if hosts and not self._is_ours(hosts[0], reached, on_loopback=on_loopback):
            return Refusal(
                421, "the name in Host is not one of this server's; add it to http.names"
            )
        if method in _SAFE_METHODS and (on_loopback or not is_guarded):
            return None
        given = dict(headers)
        if "origin" in given:
            return Refusal(403, "web pages change nothing here (the request has an Origin)")
        if self.token_file:
            kind, _, token = given.get("authorization", "").partition(" ")
            if kind.lower() == "bearer" and _is_one_of(token.strip(), read_tokens(self.token_file)):
                return None
            return Refusal(
                401,
                f"a {'look at this' if method in _SAFE_METHODS else 'change'} needs "
                "`Authorization: Bearer TOKEN`, with a token of http.token_file",
            )
        if not on_loopback:
            return Refusal(
                403,
                "this server listens off loopback and has no http.token_file, so nothing can be "
                "changed over it, and nobody can have it read all of its index",
            )
        return None

    def _is_ours(self, host: str, reached: str, *, on_loopback: bool) -> bool:
        name = _name_of(host)
        address = _address(name)
        if address is not None:
            return not on_loopback or address == _address(reached)
        if name == "localhost":
            return on_loopback or _is_loopback(reached)
        return name in {each.lower().rstrip(".") for each in self.names}


def is_loopback_only(addresses: Collection[str]) -> bool:
    """Tell whether a server that listens on these addresses is reached from this machine alone."""
    return all(_is_loopback(each) for each in addresses)


def read_tokens(path: str) -> tuple[str, ...]:
    """Return the tokens of a file, one a line; the first is what a client sends.

    Raises:
        ConfigError: It cannot be used.
    """
    try:
        lines = read_secret_file(path, _OPTION).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{_OPTION} {path} holds characters beyond ASCII") from None
    tokens = tuple(t for line in lines if (t := line.strip()) and not t.startswith("#"))
    if not tokens or any(len(each) < _TOKEN_LENGTH_MIN for each in tokens):
        raise ConfigError(
            f"{_OPTION} {path} must hold a token of at least {_TOKEN_LENGTH_MIN} characters on "
            f"each line; make one: (umask 077; openssl rand -hex 24 > {path})"
        )
    return tokens


def _is_one_of(token: str, known: Collection[str]) -> bool:
    given = token.encode("utf-8", "replace")
    # All of them are looked at, so that the time does not tell which it was.
    return sum(hmac.compare_digest(given, each.encode()) for each in known) > 0


def _name_of(host: str) -> str:
    """Return the host of a ``Host`` header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _is_loopback(text: str) -> bool:
    address = _address(text.partition("%")[0])
    return address is not None and address.is_loopback
