"""All runs of a small world: a writer, a recovery and three bookies, in every order within a bound.

The machines are those of production (``AppendState``, ``RecoveryState``, ``transitions``); their
drivers, the bookies, the links and the metadata are a few lines each.  A run is the list of what
was chosen at each step.  What was sent first arrives first, unless a choice says otherwise: to
let the k-th message that could arrive go first costs k delays; that a connection is lost, an
answer of the metadata is lost, or a client dies, costs one.  ``explore`` runs every list within a
bound, by running each from its beginning, so the machines need not be copied.  A run that comes to
where another one was, with no more left to spend, ends there: what follows was explored.

    PYTHONPATH=tests python -m sim.small_model --delays 4 --entries 2

In the end all is well: another recovery runs undisturbed, and then it must be true that

    what was acknowledged is in the closed ledger
    every entry up to the end is on an ack quorum of the bookies that the metadata names
    nothing changes where a closed ledger ends
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorumbook.errors import (
    BookieUnavailableError,
    LedgerFencedError,
    MetadataVersionConflict,
    NoSuchEntryError,
    QuorumbookError,
)
from quorumbook.ids import BookieId
from quorumbook.ledger.machines import append_effects as to_append
from quorumbook.ledger.machines import recovery_effects as to_recover
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.transitions import changed_metadata, closed_metadata
from quorumbook.protocol.digest import DigestType

BOOKIES = ("b0", "b1", "b2")
_STEPS_MAX = 400
_SIZE = 10


class BrokenError(AssertionError):
    """A promise is broken."""


class KnownError(Exception):
    """Another run was here."""


class Places:
    """Where runs have been, each with what it had left to spend.

    Whoever takes part is what happened to it, in order; so a place is that of all who take part,
    and what is under way.  In which order things happened to different ones makes no difference.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._left: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._left)

    def number(self, what: object) -> int:
        """Return a number that is this thing's alone."""
        return self._numbers.setdefault(what, len(self._numbers))

    def enter(self, place: object, left: int) -> None:
        """Be somewhere.

        Raises:
            KnownError: somebody was there with as much left.
        """
        if self._left.get(place, -1) >= left:
            raise KnownError
        self._left[place] = left


@dataclass(frozen=True)
class Shape:
    """What is explored."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    entries: int = 1
    #: Whether recovery reads fence; without it is the bug of BookKeeper's issue 2614.
    reads_fence: bool = True


@dataclass
class Bookie:
    """Keeps everything for ever."""

    is_fenced: bool = False
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, entry_id: int, lac: int, length: int, *, is_recovery: bool) -> Any:
        if self.is_fenced and not is_recovery:
            return LedgerFencedError("fenced")
        self.entries[entry_id] = lac, length
        return None

    def read(self, entry_id: int | None, *, fences: bool) -> Any:
        if fences:
            self.is_fenced = True
        if entry_id is None:
            entry_id = max(self.entries, default=-1)
        return self.entries.get(entry_id) or NoSuchEntryError("no such entry")


#: One way between two: the oldest first, as (place in the order, what it is, what happens when it
#: arrives).
Link = deque[tuple[int, int, Callable[[], None]]]


class World:
    """One run.

    Args:
        shape: What is explored.
        choices: What happens at each step; behind its end what was sent first arrives first.
        places: Where other runs have been.
        left: How many delays there are beside those of the choices.
    """

    def __init__(
        self, shape: Shape, choices: Sequence[tuple[str, Any]], places: Places, left: int
    ) -> None:
        self.shape = shape
        self._choices = choices
        self._places = places
        self._left = left
        #: By name, what happened to it so far.
        self._pasts: dict[str, int] = {}
        self._past = 0
        #: It ended, and everything was found to be well.
        self.is_over = False
        #: At each step behind the choices what could have been chosen, and at what cost.
        self.alternatives: list[list[tuple[int, tuple[str, Any]]]] = []
        self.bookies = {name: Bookie() for name in BOOKIES}
        ensemble_size, write_quorum, ack_quorum = shape.quorums
        self.metadata = LedgerMetadata(
            ledger_id=1,
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            fragments=(Fragment(0, BOOKIES[:ensemble_size]),),
            digest_type=DigestType.CRC32C,
        )
        self.version = 0
        self.acknowledged = -1
        self._links: dict[tuple[str, str], Link] = {}
        self._sent = 0
        #: What is not answered: by client and bookie, what to call if the connection is lost.
        self.waiting: dict[tuple[str, str], dict[object, Callable[[], None]]] = {}
        self._dead: set[str] = set()
        self._lost_answers: dict[tuple[str, str], Callable[[], None]] = {}
        self.writer = Writer(self)
        self.recoverer = Recoverer(self, "recoverer")

    # Sending -------------------------------------------------------------------------------

    def send(self, source: str, target: str, arrives: Callable[[], None]) -> None:
        if target in self._dead:
            return
        self._sent += 1
        self._past = message = self._places.number((self._past, "sends"))
        self._links.setdefault((source, target), deque()).append((self._sent, message, arrives))

    def ask(
        self,
        client: str,
        bookie_id: BookieId,
        question: Callable[[Bookie], Any],
        answered: Callable[[Any], None],
    ) -> None:
        """Ask a bookie; ``answered`` gets its answer, or an error if the connection is lost."""
        ticket = object()
        waiting = self.waiting.setdefault((client, bookie_id), {})
        waiting[ticket] = partial(answered, BookieUnavailableError("lost"))

        def back(result: Any) -> None:
            waiting.pop(ticket, None)
            answered(result)

        def there() -> None:
            result = question(self.bookies[bookie_id])
            self.send(bookie_id, client, partial(back, result))

        self.send(client, bookie_id, there)

    def swap(
        self, client: str, wanted: LedgerMetadata | None, version: int, done: Callable[[Any], None]
    ) -> None:
        """Compare and set, or read if ``wanted`` is None; ``done`` gets metadata and version."""

        def there() -> None:
            result: Any
            if wanted is not None and version != self.version:
                result = MetadataVersionConflict("lost")
            else:
                if wanted is not None:
                    self._write(wanted)
                result = self.metadata, self.version
            link = "metadata", client
            self.send(*link, partial(done, result))
            if wanted is not None:
                self._lost_answers[link] = partial(done, None)

        self.send(client, "metadata", there)

    def _write(self, wanted: LedgerMetadata) -> None:
        before = self.metadata
        if before.is_closed and (before.last_entry_id, before.length) != (
            wanted.last_entry_id,
            wanted.length,
        ):
            raise BrokenError("the end of a closed ledger moved")
        self.metadata, self.version = wanted, self.version + 1
        self._check_end()

    def acknowledge(self, entry_id: int) -> None:
        self.acknowledged = entry_id
        self._check_end()

    def _check_end(self) -> None:
        if self.metadata.is_closed and self.metadata.last_entry_id < self.acknowledged:
            raise BrokenError(
                f"the ledger ends at {self.metadata.last_entry_id}, "
                f"but {self.acknowledged} was acknowledged"
            )

    # A run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all of it.

        Raises:
            BrokenError: A promise is broken.
            KnownError: Another run came this way.
        """
        self.writer.start()
        self.send("start", "recoverer", self.recoverer.start)
        for kind, what in self._choices:
            getattr(self, f"_{kind}")(what)
        for _ in range(_STEPS_MAX):
            self._places.enter(self._place(), self._left)
            choices = self._possible()
            if not choices:
                break
            self.alternatives.append(choices)
            kind, what = choices[0][1]
            getattr(self, f"_{kind}")(what)
        else:
            raise BrokenError("the run does not end")
        self._finish()

    def _place(self) -> object:
        under_way = sorted(each for link in self._links.values() for each in link)
        return (
            frozenset(self._pasts.items()),
            frozenset(self._lost_answers),
            tuple(message for _, message, _ in under_way),
        )

    def _happens(self, name: str, what: object) -> None:
        """Note what happens to somebody, who may send something then."""
        self._past = self._places.number((self._pasts.get(name, name), what))
        self._pasts[name] = self._past

    def _possible(self) -> list[tuple[int, tuple[str, Any]]]:
        ready = sorted((link[0][0], way) for way, link in self._links.items() if link)
        found: list[tuple[int, tuple[str, Any]]] = [
            (cost, ("deliver", way)) for cost, (_, way) in enumerate(ready)
        ]
        for client in ("writer", "recoverer"):
            if client in self._dead:
                continue
            under_way = any(client in way for _, way in ready)
            if under_way and ("start", client) not in dict.fromkeys(way for _, way in ready):
                found.append((1, ("die", client)))
            found += [
                (1, ("cut", (client, name))) for name in BOOKIES if self.waiting.get((client, name))
            ]
            if self._links.get(("metadata", client)) and ("metadata", client) in self._lost_answers:
                found.append((1, ("lose", ("metadata", client))))
        return found

    def _deliver(self, way: tuple[str, str]) -> None:
        _, message, arrives = self._links[way].popleft()
        self._lost_answers.pop(way, None)
        self._happens(way[1], message)
        arrives()

    def _cut(self, ends: tuple[str, str]) -> None:
        """Lose a connection with all that is on it."""
        client, name = ends
        self._happens(client, name)
        self._links.pop((client, name), None)
        self._links.pop((name, client), None)
        for lost in self.waiting.pop(ends, {}).values():
            lost()

    def _lose(self, way: tuple[str, str]) -> None:
        self._links[way].popleft()
        self._happens(way[1], "loses an answer")
        self._lost_answers.pop(way)()

    def _die(self, client: str) -> None:
        # What it has sent may still arrive.
        self._dead.add(client)
        self._pasts[client] = -1
        for name in (*BOOKIES, "metadata"):
            self._links.pop((name, client), None)
            self._lost_answers.pop((name, client), None)
            self.waiting.pop((client, name), None)

    def _finish(self) -> None:
        """Recover once more, undisturbed, and look at everything."""
        judge = Recoverer(self, "judge")
        judge.start()
        while ready := sorted((link[0][0], way) for way, link in self._links.items() if link):
            self._deliver(ready[0][1])
        metadata = self.metadata
        if not metadata.is_closed:
            raise BrokenError(f"the ledger cannot be recovered: {judge.failure}")
        self._check_end()
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.fragment_of(entry_id).ensemble
            copies = sum(entry_id in self.bookies[name].entries for name in ensemble)
            if copies < metadata.ack_quorum_size:
                raise BrokenError(f"entry {entry_id} has {copies} copies")
        self.is_over = True


Step = Generator[tuple[LedgerMetadata | None, int], Any, None]


class Client:
    """Runs steps that wait for the metadata, one after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def change(
        self,
        metadata: LedgerMetadata,
        version: int,
        decide: Callable[[LedgerMetadata], LedgerMetadata | None],
        done: Callable[[LedgerMetadata, int], None],
        failed: Callable[[QuorumbookError], None],
    ) -> None:
        """Compare and set until it went through, as ``client.context.change_metadata`` does."""

        def attempt(current: LedgerMetadata, at: int) -> None:
            try:
                wanted = decide(current)
            except QuorumbookError as error:
                failed(error)
                return
            if wanted is None:
                done(current, at)
                return

            def answered(result: Any) -> None:
                if result is None or isinstance(result, MetadataVersionConflict):
                    self.world.swap(self.name, None, 0, lambda found: attempt(*found))
                else:
                    done(wanted, result[1])

            self.world.swap(self.name, wanted, at, answered)

        attempt(metadata, version)


class Writer(Client):
    """Writes the entries at once, then closes."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "writer")
        self.state = AppendState(world.metadata)
        self._version = world.version
        self._is_closing = False

    def start(self) -> None:
        for _ in range(self.world.shape.entries):
            entry_id, lac, length = self.state.push(_SIZE, 1)
            for index, bookie_id in self.state.targets():
                self._add(index, bookie_id, entry_id, lac, length + _SIZE)

    def _add(self, index: int, bookie_id: BookieId, entry_id: int, lac: int, length: int) -> None:
        def answered(error: QuorumbookError | None) -> None:
            if error is None:
                self.state.on_acks(index, bookie_id, entry_id, entry_id)
            else:
                self.state.on_failure(index, bookie_id, error)
            self._act()

        self.world.ask(
            self.name,
            bookie_id,
            lambda bookie: bookie.add(entry_id, lac, length, is_recovery=False),
            answered,
        )

    def _act(self) -> None:
        for effect in self.state.poll():
            if isinstance(effect, to_append.Confirmed):
                self.world.acknowledge(effect.last_entry_id)
            elif isinstance(effect, to_append.Send):
                for entry_id in effect.entry_ids:
                    length = (entry_id + 1) * _SIZE
                    lac = self.state.last_add_confirmed
                    self._add(effect.bookie_index, effect.bookie_id, entry_id, lac, length)
            elif isinstance(effect, to_append.ChangeEnsemble):
                self._change(effect)
        self.state.check()
        is_done = self.state.error is None and not self.state.pending_count
        if is_done and not self.state.is_changing and not self._is_closing:
            self._close()

    def _change(self, change: to_append.ChangeEnsemble) -> None:
        spare = [name for name in BOOKIES if name not in self.state.ensemble]
        chosen = dict(zip(change.failed, spare, strict=False))
        if not chosen:
            self.state.on_no_replacement()
            self._act()
            return

        def decide(current: LedgerMetadata) -> LedgerMetadata | None:
            wanted, indexes = changed_metadata(current, change, chosen)
            return wanted if indexes else None

        def done(metadata: LedgerMetadata, version: int) -> None:
            self._version = version
            replaced = [i for i, old in change.failed.items() if metadata.ensemble[i] != old]
            self.state.on_ensemble_changed(metadata, replaced)
            self._act()

        def failed(error: QuorumbookError) -> None:
            self.state.on_ensemble_change_failed(error)
            self._act()

        self.change(self.state.metadata, self._version, decide, done, failed)

    def _close(self) -> None:
        self._is_closing = True
        self.state.close()
        last, length = self.state.close_point()
        self.change(
            self.state.metadata,
            self._version,
            lambda current: closed_metadata(current, last, length),
            lambda metadata, version: None,
            lambda error: None,
        )


class Recoverer(Client):
    """Recovers the ledger once."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.failure: QuorumbookError | None = None
        self._version = 0
        self._found: dict[int, int] = {}

    def start(self) -> None:
        self.world.swap(self.name, None, 0, self._begin)

    def _begin(self, found: tuple[LedgerMetadata, int]) -> None:
        metadata, self._version = found
        self.state = RecoveryState(metadata, batch_entries=2)
        self._act()

    def _act(self) -> None:
        for effect in self.state.poll():
            if isinstance(effect, to_recover.FenceRead):
                for index, bookie_id in effect.bookies:
                    self._read(None, index, bookie_id)
            elif isinstance(effect, to_recover.RecoveryRead):
                self._read(effect.entry_id, effect.bookie_index, effect.bookie_id)
            elif isinstance(effect, to_recover.WriteBack):
                self._write_back(effect)
            elif isinstance(effect, to_recover.MarkInRecovery):
                wanted = effect.metadata
                self._write(wanted, partial(self.state.on_marked, wanted))
            elif isinstance(effect, to_recover.Close):
                self._write(effect.metadata, self.state.on_closed)
            elif isinstance(effect, to_recover.ChooseReplacement):
                self._choose(effect)
            elif isinstance(effect, to_recover.RecoveryFailed):
                self.failure = effect.error

    def _read(self, entry_id: int | None, index: int, bookie_id: BookieId) -> None:
        fences = entry_id is None or self.world.shape.reads_fence

        def answered(result: Any) -> None:
            state = self.state
            if entry_id is None:
                if isinstance(result, QuorumbookError):
                    state.on_fence_error(index, result)
                else:
                    state.on_fence_answer(index, *result)
            elif isinstance(result, QuorumbookError):
                state.on_read_error(entry_id, index, result)
            elif state.on_entry(entry_id, index, result[1]):
                self._found[entry_id] = result[1]
            self._act()

        def question(bookie: Bookie) -> Any:
            return bookie.read(entry_id, fences=fences)

        self.world.ask(self.name, bookie_id, question, answered)

    def _write_back(self, effect: to_recover.WriteBack) -> None:
        entry_id, index, bookie_id = effect.entry_id, effect.bookie_index, effect.bookie_id
        lac, length = effect.last_add_confirmed, self._found[effect.entry_id]

        def answered(error: QuorumbookError | None) -> None:
            if error is None:
                self.state.on_written(entry_id, index, bookie_id)
            else:
                self.state.on_write_error(entry_id, index, bookie_id, error)
            self._act()

        self.world.ask(
            self.name,
            bookie_id,
            lambda bookie: bookie.add(entry_id, lac, length, is_recovery=True),
            answered,
        )

    def _choose(self, effect: to_recover.ChooseReplacement) -> None:
        spare = [name for name in BOOKIES if name not in effect.ensemble]
        chosen = dict(zip(effect.failed, spare, strict=False))
        if chosen:
            self.state.on_replacement(chosen)
        else:
            self.state.on_no_replacement()
        self._act()

    def _write(self, wanted: LedgerMetadata, on_written: Callable[[], None]) -> None:
        def answered(result: Any) -> None:
            if result is None or isinstance(result, MetadataVersionConflict):
                self.world.swap(self.name, None, 0, self._stands)
            else:
                self._version = result[1]
                on_written()
                self._act()

        self.world.swap(self.name, wanted, self._version, answered)

    def _stands(self, found: tuple[LedgerMetadata, int]) -> None:
        metadata, self._version = found
        self.state.on_metadata(metadata)
        self._act()


@dataclass
class Explored:
    """What was explored."""

    runs: int = 0
    #: In how many different places runs have been.
    places: int = 0
    #: The shortest list of choices that breaks a promise, and how.
    broken: list[tuple[str, Any]] | None = None
    how: str = ""


def runs_within(
    shape: Shape, delays: int, places: Places
) -> Iterator[tuple[World, str, list[tuple[str, Any]]]]:
    """Run every list of choices that costs no more than so many delays, the cheap ones first."""
    waiting: deque[tuple[list[tuple[str, Any]], int]] = deque([([], delays)])
    while waiting:
        choices, left = waiting.popleft()
        world, how = World(shape, choices, places, left), ""
        try:
            world.run()
        except KnownError:
            pass
        except (BrokenError, QuorumbookError) as error:
            how = f"{type(error).__name__}: {error}"
        yield world, how, choices
        taken = list(choices)
        for possible in world.alternatives:
            waiting.extend(
                ([*taken, choice], left - cost) for cost, choice in possible[1:] if cost <= left
            )
            taken.append(possible[0][1])


def explore(shape: Shape, delays: int) -> Explored:
    """Run all of them until one breaks a promise."""
    explored, places = Explored(), Places()
    for _, how, choices in runs_within(shape, delays, places):
        explored.runs += 1
        if how:
            explored.broken, explored.how = choices, how
            break
    explored.places = len(places)
    return explored


def main() -> int:
    parser = argparse.ArgumentParser(description="All runs of a small world within a bound.")
    parser.add_argument("--delays", type=int, default=3)
    parser.add_argument("--entries", type=int, default=1)
    options = parser.parse_args()
    for quorums in ((3, 3, 2), (2, 2, 2), (3, 2, 2)):
        began = time.process_time()
        explored = explore(Shape(quorums, options.entries), options.delays)
        took_s = time.process_time() - began
        print(f"{quorums}: {explored.runs} runs, {explored.places} places, {took_s:.0f} s")
        if explored.broken is not None:
            print(explored.how, *explored.broken, sep="\n  ")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
