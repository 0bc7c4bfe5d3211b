"""The package's description on an index: the README, whose links lead somewhere from there, too.

README.md links to files beside it, which an index does not have.  While the package is built, such
links become those of the repository, if pyproject.toml names its address (`make release-address`);
until then their words stay and the links go, and so do pictures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link to a file, or a picture; not one to an address, or to a heading of the page itself.
_LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    """Hatchling's hook of what pyproject.toml leaves open."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, address)}


def described(readme: str, address: str | None) -> str:
    """Return a README that needs no files beside it."""

    def replaced(link: re.Match[str]) -> str:
        picture, words, target = link.group("picture", "words", "target")
        if address is None:
            return "" if picture else words
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return _LINK.sub(replaced, readme)
