"""Files that hold secrets: who may own them, and who may read them.

Kubernetes mounts a secret as a symbolic link, so links are followed, and what counts is the file
at their end: it belongs to us or to the superuser, and not everybody may read it.
"""

from __future__ import annotations

import os
import stat

from quorumbook.errors import ConfigError

#: No secret is larger; a device that never ends is read no further.
_SIZE_LIMIT_BYTES = 1024 * 1024


def read_secret_file(path: str, option: str) -> bytes:
    """Return the content of a file with a secret.

    Args:
        path: Where it is.
        option: What names it, for the message.

    Raises:
        ConfigError: It cannot be read, belongs to somebody else, or everybody may read it.
    """
    try:
        # Without O_NONBLOCK a named pipe would hold us up for as long as nobody writes.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        # Some write the secret itself where the name of its file belongs.
        name = path if path.startswith(("/", "./", "../")) else "(the name of a file)"
        raise ConfigError(f"{option} {name} cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{option} {path} is not a file")
        if found.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"{option} {path} belongs to another user (uid {found.st_uid}), who can change "
                f"it; chown {os.geteuid()} {path}"
            )
        if found.st_mode & stat.S_IROTH:
            raise ConfigError(
                f"{option} {path} holds secrets and everybody may read it; chmod o-r {path} "
                "(in Kubernetes: defaultMode 0440 and fsGroup)"
            )
        content = os.read(fd, _SIZE_LIMIT_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > _SIZE_LIMIT_BYTES:
        raise ConfigError(f"{option} {path} is larger than a secret can be (1 MiB)")
    return content
