"""Files with the user and the password for a metadata store, which no URI holds."""

from __future__ import annotations

from quorumbook.auth.accounts import Account
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError


def read_login(path: str) -> Account:
    """Return who the first line of a file names, as ``USER:PASSWORD``.

    Raises:
        ConfigError: it cannot be read, or is not of that form.
    """
    lines = read_secret_file(path, "file of credentials").splitlines()
    try:
        user, colon, password = (lines[0] if lines else b"").strip().decode().partition(":")
    except UnicodeDecodeError:
        user = colon = password = ""
    if not user or not colon:
        raise ConfigError(
            f"file of credentials {path}: its first line is not USER:PASSWORD in UTF-8"
        )
    return Account(user, password)
