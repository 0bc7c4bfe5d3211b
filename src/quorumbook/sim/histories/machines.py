"""Every state machine of a client is looked at after each event it is told (``ACCOUNTS_FIT``).

The methods of their classes are exchanged for as long as a run lasts, so nothing in production
knows of it.  A method that calls another is one event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from quorumbook.errors import InternalError
from quorumbook.ledger.machines.accounts import check
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.copy import CopyState
from quorumbook.ledger.machines.lac_read import LacReadState
from quorumbook.ledger.machines.read import ReadState
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History

_MACHINES: tuple[type[Any], ...] = (
    AppendState, CopyState, LacReadState, ReadState, RecoveryState,
)  # fmt: skip


@contextlib.contextmanager
def watched_machines(history: History) -> Iterator[None]:
    """Look at all machines in this block.

    Args:
        history: Is told what is wrong.
    """
    #: The machine whose event is under way.
    within: list[object] = []

    def event(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def watched(machine: object, *args: Any, **options: Any) -> Any:
            if within and within[-1] is machine:
                return method(machine, *args, **options)
            within.append(machine)
            try:
                result = method(machine, *args, **options)
                check(machine)
            except InternalError as error:
                history.violation(Invariant.ACCOUNTS_FIT, str(error))
                raise
            finally:
                within.pop()
            return result

        return watched

    with contextlib.ExitStack() as stack:
        for each in _MACHINES:
            for name, method in list(vars(each).items()):
                if not name.startswith("_") and name != "check" and callable(method):
                    stack.callback(setattr, each, name, method)
                    setattr(each, name, event(method))
        yield
