"""The user's file of contexts: read, checked, replaced as a whole."""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

from quorumbook.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NamedContext(NamedTuple):
    """One named cluster."""

    metadata: str
    #: A configuration file; empty: none.
    config: str = ""

    @classmethod
    def checked(cls, name: str, uri: str, config: str) -> NamedContext:
        """Return a context that holds no secret.

        Raises:
            ConfigError: The name is none, or the URI has a password.
        """
        from quorumbook.env.shown import shown

        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r:.80} is not a name of a context: letters, digits and ._-")
        if shown(uri) != uri:
            raise ConfigError(
                "the metadata URI holds a secret, which a context does not keep; put it into a "
                "file that the URI or the configuration names"
            )
        if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
            uri = f"sqlite:///{os.path.abspath(uri.removeprefix('sqlite:///'))}"
        return cls(uri, config)


class Contexts(NamedTuple):
    """All of them."""

    contexts: dict[str, NamedContext]
    current: str = ""

    def get(self, name: str) -> NamedContext:
        """Return one.

        Raises:
            ConfigError: There is none of this name.
        """
        if name not in self.contexts:
            raise ConfigError(f"there is no context {name}; `quorumbook context ls` lists them")
        return self.contexts[name]

    def row(self, name: str) -> dict[str, object]:
        """Return what is shown of one."""
        found = self.get(name)
        return {
            "name": name,
            "current": name == self.current,
            "metadata": found.metadata,
            "config": found.config or None,
        }


def _path() -> str:
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "quorumbook", "contexts.json")


def read_contexts() -> Contexts:
    """Return what the user's file holds.

    Raises:
        ConfigError: It cannot be read.
    """
    path = _path()
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        contexts = {
            str(name): NamedContext(str(each["metadata"]), str(each.get("config") or ""))
            for name, each in found["contexts"].items()
        }
        return Contexts(contexts, str(found.get("current") or ""))
    except FileNotFoundError:
        return Contexts({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path} is not a file of contexts; move it away") from None


def write_contexts(known: Contexts) -> None:
    """Replace the user's file."""
    path = _path()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    data = {
        "current": known.current,
        "contexts": {name: each._asdict() for name, each in sorted(known.contexts.items())},
    }
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
    os.replace(f"{path}.new", path)
