"""Who asks, and what they may do.

viewer     sees everything, entries and records included; changes nothing
operator   appends and consumes records, and does what can be taken back
admin      deletes, truncates, changes policies, makes tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
class Grant:
    """A role, and where it holds: empty is everywhere."""

    role: Role
    namespaces: tuple[str, ...] = ()
    #: Names of clusters, where a server has several.
    clusters: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Grant:
        """Read ``ROLE``, ``ROLE@/NAMESPACE``, ``ROLE@CLUSTER``; more of both may follow.

        Raises:
            ConfigError: There is no such role.
        """
        word, *places = text.split("@")
        namespaces = tuple(place for place in places if place.startswith("/"))
        return cls(Role.of(word), namespaces, tuple(p for p in places if p not in namespaces))


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who was let in."""

    name: str
    role: Role
    #: ``loopback``, ``token``, ``certificate`` or ``oidc``.
    how: str
    #: Namespaces of streams that it is confined to; empty: all.
    namespaces: tuple[str, ...] = ()
    #: What the role and the namespaces follow from; empty: they are the same everywhere.
    grants: tuple[Grant, ...] = field(default=(), compare=False)

    @classmethod
    def by(cls, name: str, how: str, grants: Sequence[Grant]) -> Who:
        """Return somebody by what was granted: of the highest role, where that holds."""
        role = max(grant.role for grant in grants)
        confined = [grant.namespaces for grant in grants if grant.role is role]
        namespaces = tuple(sorted({*sum(confined, ())})) if all(confined) else ()
        return cls(name, role, how, namespaces, tuple(grants))

    def at(self, cluster: str) -> Who | None:
        """Return what it may do at a cluster; None: nothing."""
        if not self.grants:
            return self
        fitting = [each for each in self.grants if not each.clusters or cluster in each.clusters]
        if not fitting:
            return None
        return replace(Who.by(self.name, self.how, fitting), grants=self.grants)

    def may(self, role: Role) -> bool:
        """Tell whether it has at least this role."""
        return self.role >= role

    def may_see(self, namespace: str) -> bool:
        """Tell whether the streams of a namespace are among what it is let in for."""
        return not self.namespaces or namespace in self.namespaces


#: Whoever is on this machine, where nothing else is asked for.
ANYBODY = Who("loopback", Role.ADMIN, "loopback")


def certificate_roles(texts: Sequence[str]) -> dict[str, Grant]:
    """Read ``NAME=ROLE``, by the common names of certificates; see ``Grant.of``.

    Raises:
        ConfigError: One is not of that form.
    """
    parts = assignments(texts, "admin.certificate_roles", "NAME")
    return {name: Grant.of(text) for name, text in parts.items()}


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
