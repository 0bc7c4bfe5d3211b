"""Who asks, and what they may do.

viewer     sees everything, entries and records included; changes nothing
operator   appends and consumes records, and does what can be taken back
admin      deletes, truncates, changes policies, makes tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from quorumbook.errors import ConfigError


class Role(IntEnum):
    """Each may do what those before it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """Return its name as people write it."""
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """Return the role of a name.

        Raises:
            ConfigError: There is none.
        """
        try:
            return cls[word.upper()]
        except KeyError:
            known = ", ".join(role.word for role in cls)
            raise ConfigError(f"{word!r:.40} is not a role; the roles are {known}") from None


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who was let in."""

    name: str
    role: Role
    #: ``loopback``, ``token``, ``certificate`` or ``oidc``.
    how: str
    #: Namespaces of streams that it is confined to; empty: all.
    namespaces: tuple[str, ...] = ()

    def may(self, role: Role) -> bool:
        """Tell whether it has at least this role."""
        return self.role >= role

    def may_see(self, namespace: str) -> bool:
        """Tell whether the streams of a namespace are among what it is let in for."""
        return not self.namespaces or namespace in self.namespaces


#: Whoever is on this machine, where nothing else is asked for.
ANYBODY = Who("loopback", Role.ADMIN, "loopback")


def certificate_roles(texts: Sequence[str]) -> dict[str, Role]:
    """Read ``NAME=ROLE``, by the common names of certificates.

    Raises:
        ConfigError: One is not of that form.
    """
    parts = assignments(texts, "admin.certificate_roles", "NAME")
    return {name: Role.of(word) for name, word in parts.items()}


def assignments(texts: Sequence[str], option: str, kind: str) -> dict[str, str]:
    """Take texts apart at their last ``=``; ``kind`` is what stands before it.

    Raises:
        ConfigError: One has no such, or nothing before it.
    """
    found = {}
    for text in texts:
        name, equals, word = text.rpartition("=")
        if not equals or not name:
            raise ConfigError(f"{option}: {text!r:.80} is not {kind}=ROLE")
        found[name] = word
    return found
