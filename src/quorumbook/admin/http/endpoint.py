"""One endpoint: path, verb, role, what it takes, and what answers; routes and OpenAPI alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.http.fields import Field

if TYPE_CHECKING:
    from quorumbook.admin.http.service import Service


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, its parameters read and its sender let in."""

    service: Service
    who: Who
    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Mapping[str, Any]
    #: What the client takes, as it says.
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Events:
    """An answer that goes on: each object becomes one server-sent event."""

    events: AsyncIterator[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is no JSON."""

    content: bytes
    kind: str = "text/plain; charset=utf-8"


Handler = Callable[[Ask], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is answered for one verb and path."""

    method: str
    path: str
    role: Role
    #: What it does, in a sentence.
    summary: str
    handle: Handler
    query: Mapping[str, Field] = field(default_factory=dict)
    body: Mapping[str, Field] = field(default_factory=dict)
    #: Of what the path names.
    names: Mapping[str, Field] = field(default_factory=dict)
    status: int = 200
    #: It takes any query and body, as Apache BookKeeper does.
    is_lenient: bool = False
    #: The command that does the same.
    command: str = ""

    @property
    def is_change(self) -> bool:
        """Tell whether it may change something."""
        return self.method != "GET"
