"""From an error to its code, and from a code to what is to be said.

A code is the name of an error's class in small letters, without "Error": ``LedgerFencedError`` is
``ledger-fenced``.  The site's page of troubleshooting is made of the same.
"""

from __future__ import annotations

import inspect
import re
import socket

from quorumbook import errors
from quorumbook.cli.explained.advice import ADVICE
from quorumbook.cli.explained.outside import BY_NUMBER, OUTSIDE, Explanation
from quorumbook.cli.explained.warnings import WARNINGS
from quorumbook.errors import QuorumbookError


def name_of(kind: type[object]) -> str:
    """Return the code that a class has by its name, whether there is advice or not."""
    name = kind.__name__.removesuffix("Error").replace("BookieIO", "BookieIo")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def code_of(error: BaseException) -> str:
    """Return the code of the nearest class of an error that is explained.

    What nobody foresaw is a bug of ours, and has the code of one.
    """
    # By name: a command that has no connection imports no TLS.
    if isinstance(error, OSError) and type(error).__module__ == "ssl":
        return "security"
    if isinstance(error, socket.gaierror):
        return "unknown-host"
    for each in type(error).__mro__:
        code = name_of(each)
        if code == "storage" and isinstance(error.__cause__, OSError):
            return code_of(error.__cause__)  # a bookie's disk had the system's error
        if code in ADVICE or code in OUTSIDE:
            return code
    if isinstance(error, QuorumbookError):
        return "failed"
    if isinstance(error, OSError):
        is_late = isinstance(error, TimeoutError)
        return BY_NUMBER.get(error.errno or 0, "timed-out" if is_late else "operating-system")
    if isinstance(error, MemoryError):
        return "out-of-memory"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "internal"


def with_code(text: str, code: str) -> str:
    """Return a message with the command that explains it; the last word of a child has its own."""
    return text if "(quorumbook help " in text else f"{text} (quorumbook help {code})"


def kinds() -> dict[str, type[QuorumbookError]]:
    """Return the classes of all errors that have advice, by code."""
    from quorumbook.streams import errors as stream_errors

    return {
        name_of(value): value
        for home in (errors, stream_errors)
        for value in vars(home).values()
        if inspect.isclass(value)
        and issubclass(value, QuorumbookError)
        and value.__module__ == home.__name__
        and name_of(value) in ADVICE
    }


def happened(kind: type[QuorumbookError]) -> str:
    """Return what an error means, in one paragraph."""
    text = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
    # The wire's name of a status says nothing to a person.
    return re.sub(r"^E[A-Z]+: (.)", lambda m: m[1].upper(), text).replace("``", "`")


def explanations() -> dict[str, Explanation]:
    """Return all that is explained, by code; errors of ours come first, warnings last."""
    own = {code: Explanation(happened(kind), ADVICE[code], kind) for code, kind in kinds().items()}
    return own | OUTSIDE | WARNINGS
