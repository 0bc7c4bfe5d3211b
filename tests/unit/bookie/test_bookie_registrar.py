"""A bookie is registered as what it is, whatever becomes of the writes that say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bookie_harness import cluster

from doubles.waiting import until
from quorumbook.bookie.membership import registrar as module
from quorumbook.bookie.membership.registrar import Registrar
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.memory import memory_tree


class Unanswering:
    """A store of which one write, by its place among all, has no answer.

    Args:
        store: The store.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.lost = -1
        self.is_sent = False
        self.on_loss: Callable[[], None] = lambda: None
        self._writes = 0

    def lose(self, place: int, on_loss: Callable[[], None], *, is_sent: bool) -> None:
        self.lost, self.is_sent, self.on_loss = self._writes + place, is_sent, on_loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        return await self._write(lambda: self._store.create(*args, **kwargs))

    async def delete(self, *args: Any, **kwargs: Any) -> Any:
        return await self._write(lambda: self._store.delete(*args, **kwargs))

    async def _write(self, write: Callable[[], Awaitable[Any]]) -> Any:
        self._writes += 1
        if self._writes - 1 != self.lost:
            return await write()
        if self.is_sent:
            await write()
        self.on_loss()
        raise MetadataUnavailableError("no answer")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("is_session_over", [False, True])
async def test_r31_a_move_without_an_answer_leaves_the_bookie_as_what_it_is_by_then(
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    is_sent: bool,
    comes_back: bool,
    is_session_over: bool,
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    is_read_only = False
    name = f"registrar-{place}-{is_sent}-{comes_back}-{is_session_over}"
    async with cluster(name) as real:
        store: Any = Unanswering(real)
        registrar = Registrar(
            store, "one", BookieServiceInfo(),
            is_read_only=lambda: is_read_only, metrics=BookieMetrics(),
        )  # fmt: skip
        await registrar.start()
        lost = False

        def on_loss() -> None:
            nonlocal lost, is_read_only
            lost = True
            if comes_back:
                is_read_only = False
                registrar.changed()
            if is_session_over:
                memory_tree(name).end_session(real.session_id)

        store.lose(place, on_loss, is_sent=is_sent)
        is_read_only = True
        registrar.changed()
        writable, read_only = ({"one"}, set()) if comes_back else (set(), {"one"})
        looks = BookieRegistration(real)

        async def is_settled() -> bool:
            return (
                lost and registrar.is_registered and await looks.bookies() == (writable, read_only)
            )

        await until(is_settled)
        await registrar.stop()
