"""^C at any point of a blocking call: the call ends, and the loop thread serves everybody else."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

from doubles.waiting import PATIENCE_S
from quorumbook.loop_thread import Latch, LoopThread

#: Where Python looks for signals: when a function begins, and when one of C has returned.
_LOOKS = ("call", "c_return")


def _interrupt(point: int, work: Callable[[], object]) -> bool:
    """Do something, and interrupt it at that of its points; return whether it has so many."""
    seen = 0

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        del argument
        # What is raised in there goes nowhere.
        if event in _LOOKS and "weakref" not in frame.f_code.co_filename:
            seen += 1
            if seen > point:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def _ends(work: Callable[[], object]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


async def _work() -> str:
    await asyncio.sleep(0.001)
    return "done"


def test_an_interrupt_at_any_point_of_a_blocking_call_leaves_the_loop_thread_at_work() -> None:
    loop_thread = LoopThread()
    for point in count():
        work = _work()
        if not _interrupt(point, lambda work=work: loop_thread.run(work)):
            break
        work.close()
        assert _ends(lambda: loop_thread.run(_work())), point
    assert point > 5
    assert loop_thread.run(_work()) == "done"
    loop_thread.stop()


def test_an_interrupt_at_any_point_of_a_wait_keeps_nobody_from_setting_what_it_waits_for() -> None:
    for point in count():
        latch = Latch()
        setting = threading.Timer(0.001, latch.set)
        setting.start()
        is_interrupted = _interrupt(point, latch.wait)
        assert _ends(setting.join), point
        assert latch.is_set()
        # Nor anybody else from hearing of it.
        assert _ends(latch.wait), point
        if not is_interrupted:
            break
    assert point > 2


def test_all_who_wait_are_told() -> None:
    latch = Latch()
    lock = latch._lock  # whoever waits holds it for a moment, and gives it back
    waiting = [threading.Thread(target=latch.wait, daemon=True) for _ in range(5)]
    for each in waiting:
        each.start()
    latch.set()
    for each in waiting:
        each.join(PATIENCE_S)
        assert not each.is_alive()
    assert not lock.locked()
    assert not Latch().wait(0.001)
