"""The blocking table of a stream's latest values."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TypeVar, overload

from quorumbook.streams.reading.batches import Record
from quorumbook.streams.views import table_view as aio
from quorumbook.streams.views.table_view import own_key
from quorumbook.sync.declared import blocking, held, iterating
from quorumbook.sync.loop import Closing, unwrapped
from quorumbook.sync.streams.stream import Stream

K = TypeVar("K")
V = TypeVar("V")


class TableView(Closing[aio.TableView[K, V]], Mapping[K, V]):
    """The blocking twin of ``quorumbook.streams.TableView``.

    The table goes on while it is looked at: a look through it (``for``, ``keys``, ``items``,
    ``values``) is at all of it as it was at one moment.  ``key`` and the callbacks of
    ``on_change`` run on the loop's thread, where they must not block.
    """

    @overload
    def __init__(self: TableView[bytes, bytes], stream: Stream) -> None: ...
    @overload
    def __init__(
        self, stream: Stream, key: Callable[[Record], tuple[K, V | None] | None]
    ) -> None: ...
    def __init__(
        self,
        stream: Stream,
        key: Callable[[Record], tuple[K, V | None] | None] = own_key,  # type: ignore[assignment]
    ) -> None:
        """Prepare; nothing is read before ``open``."""
        super().__init__(aio.TableView(unwrapped(stream), key))

    def open(self) -> TableView[K, V]:
        """Read what there is, and follow the stream from then on; ``with`` does it."""
        self._run(self._aio.open)
        return self

    close = blocking(aio.TableView.close)
    """Stop following the stream."""

    def __enter__(self) -> TableView[K, V]:
        return self.open()

    def __getitem__(self, key: K) -> V:
        return self._aio[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._aio)

    def keys(self) -> KeysView[K]:
        """Return the keys that are there now."""
        return self._now().keys()

    def items(self) -> ItemsView[K, V]:
        """Return the keys that are there now, and their values."""
        return self._now().items()

    def values(self) -> ValuesView[V]:
        """Return the values that are there now."""
        return self._now().values()

    position = held(aio.TableView, lambda it: it.position)
    """Behind the last record that is in the table; None before the first."""
    refresh = blocking(aio.TableView.refresh)
    """Wait until everything is in the table that readers can see now."""
    wait_for = blocking(aio.TableView.wait_for)
    """Wait until the record at a position is in the table: what ``append`` returned, say."""

    def on_change(self, callback: Callable[[K, V | None], object]) -> Callable[[], None]:
        """Have a callback run for every record, in order, with its key and value; None: deleted.

        What came before is not told; who wants that too takes ``changes(replay=True)``.

        Returns:
            A function that removes the callback again.
        """

        async def add() -> Callable[[], None]:
            return self._aio.on_change(callback)

        async def take_away() -> None:
            remove()

        remove = self._run(add)
        return lambda: self._run(take_away)

    changes = iterating(aio.TableView.changes)
    """Yield what becomes of keys."""

    def _now(self) -> dict[K, V]:
        async def copy() -> dict[K, V]:
            return dict(self._aio)

        return self._run(copy)
