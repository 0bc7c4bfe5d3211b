"""Addresses as they may be shown in messages and kept in files: without names and passwords.

Valid metadata URIs hold none.  What is refused is shown too, and people put passwords into it.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_SECRET = re.compile("secret|passw|pwd|token|credential|access.?key", re.IGNORECASE)
#: Up to the last ``@`` before the query; with a ``?`` in a password there is no path before it.
_LOGIN = re.compile(r"^(?:[^?#\s]*|[^/\s]*)@")
_OPTION = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")


def names_secret(text: str) -> bool:
    """Tell whether an option is called like something that nobody else may know."""
    return _SECRET.search(text) is not None


def shown(address: str) -> str:
    """Return an address without name and password, and without options that are called so."""
    scheme, mark, rest = address.rpartition("://")
    rest = _LOGIN.sub(f"{HIDDEN}@", rest)
    return scheme + mark + _OPTION.sub(_option, rest)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    is_hidden = names_secret(name) and not name.endswith("_file")
    return f"{name}={HIDDEN if is_hidden else value}"
