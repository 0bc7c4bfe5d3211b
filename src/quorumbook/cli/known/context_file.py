"""The user's file of contexts, and which cluster a command is about.

The file is read, checked, and replaced as a whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    import click

    from quorumbook.config import Settings

#: The source of a metadata URI that a context names.
BY_CONTEXT = "context"
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


def context_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts whose names begin so, for a shell that completes."""
    return [name for name in read_contexts().contexts if name.startswith(incomplete)]


def settings_meant(
    *,
    config_file: str | None,
    overrides: Sequence[str],
    metadata: str | None,
    context: str | None,
    peer_file: str | None = None,
    uses_contexts: bool = True,
) -> tuple[Settings, str | None]:
    """Return the options of a command, and which file was read for them.

    Args:
        config_file: What ``--config`` says.
        overrides: What ``--set`` says.
        metadata: What ``--metadata`` says.
        context: What ``--context`` says.
        peer_file: A configuration file of the peer.
        uses_contexts: False: the command makes a cluster of its own, or is about none.

    Raises:
        ConfigError: An option is unfit, or the context is.
    """
    from quorumbook.config import load
    from quorumbook.config.load import CONTEXT_VARIABLE

    def loaded(file: str | None) -> Settings:
        return load(file=file, peer_file=peer_file, overrides=overrides)

    if metadata is not None:
        return loaded(config_file).replaced("metadata.uri", metadata, "--metadata"), config_file
    if not uses_contexts:
        return loaded(config_file), config_file
    name = context or os.environ.get(CONTEXT_VARIABLE)
    if not name and not (found := loaded(config_file))["metadata.uri"].is_default:
        return found, config_file
    # Nobody else says which cluster: the context that is named here, or was chosen.
    meant = _context_meant(name)
    if meant is None:
        return loaded(config_file), config_file
    # All of it: the file may hold what the cluster demands, such as TLS.
    file = config_file or meant.config or None
    return loaded(file).replaced("metadata.uri", meant.metadata, BY_CONTEXT), file


def chosen_name(name: str | None) -> str:
    """Return the name of the context that is meant: one that was said, or the chosen one."""
    from quorumbook.config.load import CONTEXT_VARIABLE

    return name or os.environ.get(CONTEXT_VARIABLE) or read_contexts().current


def _context_meant(name: str | None) -> NamedContext | None:
    """Return the context of a name, or else the one that was chosen; None if none was.

    Raises:
        ConfigError: There is no such context, or its configuration file is gone.
    """
    known = read_contexts()
    name = name or known.current
    if not name:
        return None
    found = known.get(name)
    if found.config and not os.path.exists(found.config):
        raise ConfigError(
            f"the configuration file {found.config} of context {name} is not there; put it back, "
            "or name the cluster again: `quorumbook context add`"
        )
    return found


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
