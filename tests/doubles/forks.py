"""Children made by fork, for what they may do with what their parent has open.

Each works under an alarm that ends it, so that one that hangs is an outcome like another.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from quorumbook.errors import QuorumbookError

FORKED = "this client was made before the process was forked; connect again in the child"
_HANGS_AFTER_S = 5


def in_child(work: Callable[[], Any]) -> str:
    """Return what comes of some work in a child: its result, its error, or that it hung."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_HANGS_AFTER_S)
        try:
            told = repr(work())
        except QuorumbookError as error:
            told = str(error)
        except BaseException as error:
            told = repr(error)
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return "hangs" if os.WIFSIGNALED(status) else told
