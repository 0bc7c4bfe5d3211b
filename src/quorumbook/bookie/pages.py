"""Which page of a bookie answers for which path; before its start most have nothing to say."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from quorumbook.bookie import read_only
from quorumbook.bookie.http import background_io, collection, directories, inside, scrub, slow
from quorumbook.bookie.http.server import Body, Page
from quorumbook.bookie.membership.healing import Healing
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.env import Env
from quorumbook.storage.collection.collector import Collector

#: What takes a token at a server that does not listen on loopback alone: it makes a bookie work
#: hard, or tells of its inside.
GUARDED = (*collection.COSTLY, slow.PATH, inside.OPTIONS)
_NOT_STARTED = 503, {"error": "the bookie is not started"}


class Parts(Protocol):
    """What answers once the storage is open."""

    @property
    def directories(self) -> directories.DirectoryPages:
        """Answers for directories."""

    @property
    def inside(self) -> inside.InsidePages:
        """Answers for what the bookie is made of."""


class Paged(Protocol):
    """A bookie, as far as its pages know it."""

    collector: Collector | None
    healing: Healing | None
    operators_word: read_only.OperatorsWord
    metrics: BookieMetrics

    @property
    def parts(self) -> Parts | None:
        """What it has once its storage is open."""


def pages_of(bookie: Paged, env: Env) -> dict[str, Page]:
    """Return the pages of a bookie by the method and path that each answers."""

    async def gc(method: str, target: str, body: Body) -> tuple[int, object]:
        if bookie.collector is None:
            return _NOT_STARTED
        return await collection.answer(bookie.collector, method, target, body)

    async def scrubbing(method: str, target: str, body: Body) -> tuple[int, object]:
        if bookie.healing is None:
            return _NOT_STARTED
        return await scrub.answer(bookie.healing, method, target, body)

    async def of_directories(method: str, target: str, body: Body) -> tuple[int, object]:
        if bookie.parts is None:
            return _NOT_STARTED
        return await bookie.parts.directories.answer(method, target, body)

    async def of_inside(method: str, target: str, body: Body) -> tuple[int, object]:
        if bookie.parts is None:
            return _NOT_STARTED
        return await bookie.parts.inside.answer(method, target, body)

    return {
        **dict.fromkeys(collection.PAGES, gc),
        **dict.fromkeys(scrub.PAGES, scrubbing),
        **dict.fromkeys(read_only.PAGES, bookie.operators_word.answer),
        **dict.fromkeys(directories.PAGES, of_directories),
        **dict.fromkeys(background_io.PAGES, partial(background_io.answer, env.background)),
        **dict.fromkeys(slow.PAGES, partial(slow.answer, env, bookie.metrics.slow)),
        **dict.fromkeys(inside.PAGES, of_inside),
    }
