"""Files with names and secrets: one line ``name:secret`` each, at a bookie with roles behind it.

    name:secret
    name:secret:role,role

Lines that begin with # don't count.  A file that has changed is read again, so that somebody can
be added or shut out without a restart; one that cannot be used leaves things as they were.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from quorumbook.env import logger
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError

_log = logger("auth")


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody, and what proves it."""

    name: str
    secret: str = field(repr=False)
    roles: frozenset[str] = frozenset()


class Accounts:
    """Those of one file.

    Args:
        path: The file.
        secret_length_min: Shorter secrets are refused.

    Raises:
        ConfigError: it cannot be used.
    """

    def __init__(self, path: str, *, secret_length_min: int = 1) -> None:
        if not path:
            raise ConfigError("auth_settings must name the file with names and secrets")
        self._path = path
        self._secret_length_min = secret_length_min
        self._signature = _signature(path)
        self._by_name = self._read()

    @property
    def first(self) -> Account:
        """Whom the first line names: the client."""
        self._refresh()
        return next(iter(self._by_name.values()))

    def get(self, name: str) -> Account | None:
        """Return whoever has this name."""
        self._refresh()
        return self._by_name.get(name)

    def _refresh(self) -> None:
        signature = _signature(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._by_name = self._read()
        except ConfigError as error:
            _log.error("names and secrets stay as they were: %s", error)
        else:
            _log.info("names and secrets were read again from %s", self._path)

    def _read(self) -> dict[str, Account]:
        path = self._path
        try:
            text = read_secret_file(path, "auth_settings").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text") from None
        accounts: dict[str, Account] = {}
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            if not line or line.startswith("#"):
                continue
            name, _, rest = line.partition(":")
            secret, _, roles = rest.partition(":")
            if not 0 < len(name.encode()) < 256 or len(secret) < self._secret_length_min:
                raise ConfigError(
                    f"{path} line {number} is not name:secret with a secret of at least "
                    f"{self._secret_length_min} characters"
                )
            listed = frozenset(role.strip() for role in roles.split(",") if role.strip())
            accounts[name] = Account(name, secret, listed)
        if not accounts:
            raise ConfigError(f"{path} names nobody; write a line name:secret")
        return accounts


def _signature(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
