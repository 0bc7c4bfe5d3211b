"""A run apart from the rest of its interpreter: its logs and its rubbish end with it.

What the dead had under way is never finished, so it is neither closed nor awaited: Python finds it
with the next collection of garbage, runs its ``finally``, and complains.  That happens here, at the
end of the run, unheard, and what a ``finally`` begins goes to a loop that is dead: asyncio would
keep it for one of its own.  Nobody else may hold what belongs to the run, as a log record does that
has an error in it: so records go to the run's own handler only.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator

from quorumbook.sim.loop import on_a_dead_loop

_PASSES = 5


@contextlib.contextmanager
def apart(logs: logging.Handler) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Run a world in this block, and let no trace of it go on.

    Args:
        logs: Gets what bookies and clients log from its level on; nothing else does.

    Yields:
        A function that takes what lets go of the world.
    """
    farewells: list[Callable[[], None]] = []
    hook = sys.unraisablehook
    # A collection in the middle would end what the dead had open, at a moment of its own choice.
    gc.freeze()
    gc.disable()
    try:
        with _logs_to(logs):
            yield farewells.append
    finally:
        sys.unraisablehook = lambda _: None
        with _logs_to(logging.NullHandler()), warnings.catch_warnings():
            # Coroutines that were about to begin never will.
            warnings.simplefilter("ignore")
            with on_a_dead_loop():
                while farewells:
                    farewells.pop()()
            # What ends in one pass may leave something for the next, on the loop of its time.
            for _ in range(_PASSES):
                with on_a_dead_loop():
                    if not gc.collect():
                        break
        sys.unraisablehook = hook
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def _logs_to(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger("quorumbook")
    before = root.handlers[:], root.level, root.propagate
    # Nobody asks where in the sources a record comes from, and to find out takes the longest.
    sources = logging._srcfile  # noqa: SLF001 - as its manual says
    logging._srcfile = None  # noqa: SLF001
    root.handlers[:] = [handler]
    root.setLevel(handler.level)
    root.propagate = False
    # What somebody wants to hear less of, or more, is for his own process.
    own_levels = {
        each: each.level
        for name, each in root.manager.loggerDict.items()
        if name.startswith("quorumbook.") and isinstance(each, logging.Logger) and each.level
    }
    for each in own_levels:
        each.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        for each, level in own_levels.items():
            each.setLevel(level)
        logging._srcfile = sources  # noqa: SLF001
        root.handlers[:], root_level, root.propagate = before
        root.setLevel(root_level)
