"""Bearer tokens: 256 random bits each, kept as hashes in a file that is read again when it changes.

    {"tokens": [{"name": "ci", "role": "operator", "sha256": "9f86…", "created_ms": 1700000000000,
                 "expires_ms": null, "namespaces": [], "clusters": []}]}

A token is shown once, when it is made.  The file belongs to its owner alone; it is replaced as a
whole, under a lock, so that two who change it lose nothing.  A plain hash is enough: nobody can
go through 256 bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from quorumbook.admin.access.roles import Grant, Role, Who
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError

_OPTION = "admin.token_file"
_PREFIX = "qb_"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_TOKENS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it is kept."""

    name: str
    role: str
    sha256: str
    created_ms: int
    #: None: never.
    expires_ms: int | None = None
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def row(self) -> dict[str, object]:
        """Return what may be shown of it."""
        row = asdict(self)
        del row["sha256"]
        row |= {"namespaces": list(self.namespaces), "clusters": list(self.clusters)}
        return row


class TokenFile:
    """The tokens of one file.

    Args:
        path: Where it is; it is made with the first token.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def check(self) -> None:
        """Refuse a file that is unfit.

        Raises:
            ConfigError: It cannot be used.
        """
        self.tokens()

    def tokens(self) -> tuple[Token, ...]:
        """Return all tokens, expired ones included.

        Raises:
            ConfigError: The file cannot be used.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ConfigError(f"{_OPTION} {self.path}: {error.strerror}") from None
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen != self._seen:
            self._tokens = _parse(read_secret_file(self.path, _OPTION), self.path)
            self._seen = seen
        return self._tokens

    def who(self, secret: str) -> Who | None:
        """Return whose token it is, None if it is none or has expired.

        Raises:
            ConfigError: The file cannot be used.
        """
        digest = _digest(secret)
        now_ms = int(time.time() * 1000)
        found = None
        # All of them are looked at, so that the time does not tell which it was.
        for token in self.tokens():
            if hmac.compare_digest(token.sha256, digest) and (
                token.expires_ms is None or now_ms < token.expires_ms
            ):
                found = token
        if found is None:
            return None
        grant = Grant(Role.of(found.role), found.namespaces, found.clusters)
        return Who.by(found.name, "token", [grant])

    def add(
        self,
        name: str,
        role: Role,
        *,
        lifetime_s: float | None,
        namespaces: tuple[str, ...] = (),
        clusters: tuple[str, ...] = (),
    ) -> tuple[str, Token]:
        """Make a token and return it; nobody can see it again.

        Raises:
            ConfigError: There is a token of this name, or the name is none.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r:.80} is not a name of a token: use letters, digits and ._@- (64 at most)"
            )
        secret = _PREFIX + secrets.token_urlsafe(32)
        now_ms = int(time.time() * 1000)
        expires_ms = None if lifetime_s is None else now_ms + int(lifetime_s * 1000)
        token = Token(
            name, role.word, _digest(secret), now_ms, expires_ms, namespaces, clusters
        )  # fmt: skip
        with self._locked():
            tokens = self.tokens()
            if any(each.name == name for each in tokens):
                raise ConfigError(
                    f"there is a token {name} already; revoke it, or take another name"
                )
            if len(tokens) >= _TOKENS_MAX:
                raise ConfigError(f"{self.path} holds {_TOKENS_MAX} tokens; revoke some")
            self._write((*tokens, token))
        return secret, token

    def revoke(self, name: str) -> bool:
        """Forget a token, and tell whether there was one."""
        with self._locked():
            tokens = self.tokens()
            left = tuple(each for each in tokens if each.name != name)
            if len(left) == len(tokens):
                return False
            self._write(left)
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{_OPTION} {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        data = json.dumps({"tokens": [asdict(each) for each in tokens]}, indent=1).encode()
        temporary = f"{self.path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, self.path)
        self._seen = None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _parse(data: bytes, path: str) -> tuple[Token, ...]:
    try:
        return tuple(_token(each) for each in json.loads(data)["tokens"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # What it says is not repeated: somebody may have written a secret there.
        raise ConfigError(
            f"{_OPTION} {path} is not a file of tokens; `quorumbook token add` makes one"
        ) from None


def _token(fields: dict[str, Any]) -> Token:
    expires_ms = fields.get("expires_ms")
    token = Token(
        str(fields["name"]),
        Role.of(str(fields["role"])).word,
        str(fields["sha256"]),
        int(fields["created_ms"]),
        None if expires_ms is None else int(expires_ms),
        tuple(map(str, fields.get("namespaces", ()))),
        tuple(map(str, fields.get("clusters", ()))),
    )
    if not re.fullmatch(r"[0-9a-f]{64}", token.sha256):
        raise ValueError(token.name)
    return token
