"""Errors as RFC 9457 has them: one JSON object with a stable code, and never a trace.

    {"type": "urn:quorumbook:no-such-ledger", "title": "Not Found", "status": 404,
     "detail": "there is no ledger 7", "code": "no-such-ledger"}

A code is the name of the error's class in small letters, or one of those that are raised here.
"""

from __future__ import annotations

import http
import re
from collections.abc import Mapping

from quorumbook import errors as e

MEDIA_TYPE = "application/problem+json"
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")

#: The first class that fits decides.
_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (e.ConfigError, 400),
    (e.LocalProtocolError, 400),
    (e.NoSuchLedgerInMetadataError, 404),
    (e.NoSuchLedgerError, 404),
    (e.NoSuchEntryError, 404),
    (e.NoSuchNodeError, 404),
    (e.NoSuchBookieError, 404),
    (e.ClusterNotInitializedError, 503),
    (e.LedgerExistsError, 409),
    (e.NodeExistsError, 409),
    (e.LedgerFencedError, 409),
    (e.LedgerClosedError, 409),
    (e.MetadataVersionConflict, 409),
    (e.NoAuditorError, 409),
    (e.NotAdmittedError, 502),
    (e.UnauthorizedError, 403),
    (e.BookieUnavailableError, 503),
    (e.MetadataUnavailableError, 503),
)
#: Errors of streams by their codes, as the command line does.
_STREAM_STATUSES = {403: 409, 413: 413, 504: 409, 506: 404, 510: 404, 512: 409, 513: 409, 517: 429,
                    522: 409, 527: 404, 602: 400, 603: 409, 630: 404, 631: 409, 632: 409,
                    633: 400}  # fmt: skip


class ApiError(Exception):
    """A request is not answered as it wished."""

    def __init__(
        self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})

    def row(self) -> dict[str, object]:
        """Return the object that is answered."""
        return {
            "type": f"urn:quorumbook:{self.code}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }


def problem_of(error: BaseException) -> ApiError | None:
    """Return what is answered for an error of ours; None if it is a bug."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return ApiError(504, "timeout", "the cluster did not answer in time; try again")
    if not isinstance(error, e.QuorumbookError) or isinstance(error, e.InternalError):
        return None
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 0)
    status = status or _STREAM_STATUSES.get(error.code, 503 if error.retriable else 500)
    return ApiError(status, code_of(type(error)), str(error))


def code_of(kind: type[BaseException]) -> str:
    """Return the code of a class of errors."""
    if kind is e.NoSuchLedgerInMetadataError:
        return "no-such-ledger"
    name = kind.__name__.removesuffix("Error")
    return _CAPITAL.sub(r"-\1", name).lower()
