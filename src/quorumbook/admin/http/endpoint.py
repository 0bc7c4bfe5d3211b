"""One endpoint: path, verb, role, what it takes, and what answers; routes and OpenAPI alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.http.fields import Field
from quorumbook.admin.http.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from quorumbook.admin.facts.cluster import ClusterFacts
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
    #: It is for a page: a person waits for it, who is shown how old what is known of the ledgers
    #: is, and how far a search has come.
    is_page: bool = False

    async def facts(self, *, fresh: bool = False) -> ClusterFacts:
        """Return what is known of the cluster, read now if it is to be ``fresh``."""
        return await self.service.facts(fresh=fresh, takes_old=self.is_page)


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
class ApiOperation:
    """One verb of a path, as the OpenAPI document shows it."""

    method: str
    path: str
    role: Role
    #: What it does, in a sentence.
    summary: str
    _: KW_ONLY
    query: Mapping[str, Field] = field(default_factory=dict)
    body: Mapping[str, Field] = field(default_factory=dict)
    body_type: str = "application/json"
    #: Of what the path names.
    names: Mapping[str, Field] = field(default_factory=dict)
    status: int = 200
    #: What is answered besides, and when.
    also: Mapping[int, str] = field(default_factory=dict)
    #: The schema of what is answered for an error, and its type of media.
    error: tuple[str, str] = ("Problem", MEDIA_TYPE)
    #: The command that does the same.
    command: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint(ApiOperation):
    """What is answered for one verb and path, and by whom."""

    handle: Handler
    _: KW_ONLY
    #: It takes any query and body, as Apache BookKeeper does.
    is_lenient: bool = False

    @property
    def is_change(self) -> bool:
        """Tell whether it may change something."""
        return self.method != "GET"
