"""Children made by fork, for what they may do with what their parent has open.

Work is done under an alarm that ends it, so that one that hangs is an outcome like another.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from quorumbook.errors import QuorumbookError

FORKED = "this client was made before the process was forked; connect again in the child"
_HANGS_AFTER_S = 5


def in_child(work: Callable[[], Any]) -> str:
    """Return what comes of some work in a child: its result, its error, or that it hung."""
    (told,) = each_in_child([work])
    return told


def each_in_child(works: Sequence[Callable[[], Any]]) -> list[str]:
    """Return what comes of each, done in turn in one child; after one that hangs all do.

    To fork a process of tests, which is large, takes a third of a second.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for work in works:
            signal.alarm(_HANGS_AFTER_S)
            os.write(writing, json.dumps(_outcome(work)).encode() + b"\n")
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = [json.loads(line) for line in pipe]
    os.waitpid(child, 0)
    return told + ["hangs"] * (len(works) - len(told))


def _outcome(work: Callable[[], Any]) -> str:
    try:
        return repr(work())
    except QuorumbookError as error:
        return str(error)
    except BaseException as error:
        return repr(error)
