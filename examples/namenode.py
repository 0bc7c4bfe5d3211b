"""A file system's names, kept as HDFS's NameNode keeps them: an edit log, images, a hot standby.

    python examples/namenode.py demo                  the whole story, on a cluster of its own
    python examples/namenode.py run METADATA_URI      one node, a standby at first; it reads lines:

        takeover                    become the active one, by force
        mkdir PATH  create PATH SIZE  rename PATH PATH  delete PATH
        status                      who it is, how many edits it has applied, and a digest

``METADATA_URI`` is that of a running cluster (``quorumbook standalone``).

Edits are the commands of a ``StateMachine``, its snapshots the images; the log is cut off up to
the newest one, whichever node made it.  The active node is the writer of the log's
stream; a standby does not wait until the other one's session is over but takes the stream by
force.  That is safe whatever the other one is doing: its log is fenced, and the edits that it
acknowledged are in the stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
import time
from typing import Any

from processes import Process
from quorumbook.errors import QuorumbookError
from quorumbook.streams import Command, Namespace, StateMachine
from quorumbook.testing import LocalCluster

STREAM = "edits"
IMAGE_EVERY = 100


class Names:
    """Directories (None) and files (their sizes) by their paths."""

    def __init__(self) -> None:
        self.paths: dict[str, int | None] = {"/": None}

    def apply(self, command: Command) -> Any:
        """Carry an edit out; return what is wrong with it, if something is."""
        edit = json.loads(command.payload)
        return getattr(self, edit[0])(*edit[1:])

    def snapshot(self) -> bytes:
        """Return an image."""
        return json.dumps(self.paths).encode()

    def restore(self, data: bytes) -> None:
        """Load an image."""
        self.paths = json.loads(data)

    def digest(self) -> str:
        """Return what two nodes have in common if they know the same."""
        return hashlib.sha256(json.dumps(self.paths, sort_keys=True).encode()).hexdigest()[:16]

    def start(self, name: str) -> None:
        """Say who is active from here on; nobody's names change."""

    def mkdir(self, path: str) -> str | None:
        """Make a directory."""
        return self._add(path, None)

    def create(self, path: str, size: str) -> str | None:
        """Make a file."""
        return self._add(path, int(size))

    def delete(self, path: str) -> str | None:
        """Delete a file, or a directory with all that is in it."""
        if path == "/" or path not in self.paths:
            return f"{path} cannot be deleted"
        for each in self._tree(path):
            del self.paths[each]
        return None

    def rename(self, old: str, new: str) -> str | None:
        """Move a file, or a directory with all that is in it."""
        if old == "/" or old not in self.paths or f"{new}/".startswith(f"{old}/"):
            return f"{old} cannot be moved to {new}"
        wrong = self._wrong_with(new)
        if wrong is None:
            for each in self._tree(old):
                self.paths[new + each.removeprefix(old)] = self.paths.pop(each)
        return wrong

    def _tree(self, path: str) -> list[str]:
        return [each for each in self.paths if each == path or each.startswith(f"{path}/")]

    def _add(self, path: str, size: int | None) -> str | None:
        wrong = self._wrong_with(path)
        if wrong is None:
            self.paths[path] = size
        return wrong

    def _wrong_with(self, path: str) -> str | None:
        if path in self.paths:
            return f"{path} exists"
        parent = path.rpartition("/")[0] or "/"
        return None if self.paths.get(parent, 0) is None else f"{parent} is no directory"


class Node:
    """One node, active or standby."""

    def __init__(self, machine: StateMachine[Names], name: str) -> None:
        self._machine = machine
        self._name = name

    async def obey(self, words: list[str]) -> Any:
        """Carry out what one line says."""
        machine = self._machine
        if words == ["status"]:
            await machine.refresh()
            return machine.is_leading, machine.next_sequence_id, machine.state.digest()
        if words == ["takeover"]:
            decided = time.monotonic()
            await self._lead()
            await machine.propose(json.dumps(["start", self._name]).encode())
            return round(1000 * (time.monotonic() - decided), 1)
        return await machine.propose(json.dumps(words).encode())

    async def _lead(self) -> None:
        """Take the log over, again if bookies or metadata are too slow to answer in time."""
        while True:
            try:
                await self._machine.lead(takeover="force")
            except QuorumbookError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.05)
            else:
                return


async def run(uri: str) -> None:
    """Be a node until standard input ends."""
    async with Namespace.open(uri, bind=True) as ns:
        await ns.create_stream(STREAM, exist_ok=True)
        stream = ns.stream(STREAM)
        async with StateMachine(
            stream, Names(), name="image", snapshot_every=IMAGE_EVERY, truncates=True
        ) as machine:
            node = Node(machine, str(os.getpid()))
            print(json.dumps(["standby", machine.next_sequence_id]), flush=True)
            while words := (await asyncio.to_thread(sys.stdin.readline)).split():
                try:
                    answer = ["done", await node.obey(words)]
                except QuorumbookError as error:
                    answer = [type(error).__name__, str(error)]
                print(json.dumps(answer), flush=True)


# The demo ------------------------------------------------------------------------------------


def edits(dice: random.Random) -> list[str]:
    """Return words of a random edit, which may be a wrong one."""
    path = "".join(f"/d{dice.randrange(4)}" for _ in range(dice.randint(1, 3)))
    kind = dice.choice(["mkdir", "mkdir", "create", "create", "rename", "delete"])
    if kind == "create":
        return [kind, f"{path}/f{dice.randrange(100)}", str(dice.randrange(1000))]
    return [kind, path, f"/d{dice.randrange(4)}/r"] if kind == "rename" else [kind, path]


class Story:
    """What everybody must know in the end: the edits that were acknowledged."""

    def __init__(self) -> None:
        self.names = Names()
        self.count = 0
        self._dice = random.Random(3)

    def take_over(self, node: Process) -> float:
        """Have a node take over; return in how many milliseconds."""
        milliseconds = _ask(node, "takeover")
        self.count += 1
        return float(milliseconds)

    def edit(self, node: Process, count: int) -> None:
        """Have edits made, each of which the model makes as well."""
        for _ in range(count):
            words = edits(self._dice)
            answer = _ask(node, " ".join(words))
            assert answer == self.make(words), words

    def start_edit(self, node: Process) -> list[str]:
        """Begin an edit of which nobody will know whether it was made."""
        words = edits(self._dice)
        node.say(" ".join(words))
        return words

    def make(self, words: list[str]) -> Any:
        """Make an edit in the model."""
        self.count += 1
        return getattr(self.names, words[0])(*words[1:])

    def check(self, node: Process, *, is_active: bool) -> None:
        """Compare a node with the model."""
        status = _ask(node, "status")
        while not is_active and status[1] < self.count:  # what was written last is on its way
            status = _ask(node, "status")
        if status != [is_active, self.count, self.names.digest()]:
            raise SystemExit(f"a node has {status}, not {self.count} edits")


def _ask(node: Process, line: str) -> Any:
    node.say(line)
    word, answer = json.loads(node.hear())
    assert word == "done", (line, word, answer)
    return answer


def demo(uri: str, rounds: int) -> None:
    """Take over from a node that was killed, then from one that lives and does not know."""
    with contextlib.ExitStack() as stack:
        one, other = (Process(__file__, "run", uri) for _ in range(2))
        for node in one, other:
            stack.callback(node.kill)
            node.hear()
        story = Story()
        story.take_over(one)
        times = []
        for number in range(rounds):
            story.edit(one, 60)
            unknown = story.start_edit(one)
            is_alive = number % 2 == 1
            if not is_alive:
                one.kill()
            times.append(story.take_over(other))
            # The edit that was on its way is there as a whole, or not at all.
            is_made = _ask(other, "status")[1] > story.count
            if is_made:
                story.make(unknown)
            story.check(other, is_active=True)
            how = "is alive" if is_alive else "was killed with SIGKILL"
            print(f"the active node {how}; the standby was active in {times[-1]:.0f} ms")
            story.edit(other, 60)
            if is_alive:
                word, _ = json.loads(one.hear())
                assert is_made or word != "done", word
                one.say("mkdir /from-the-past")
                word, why = json.loads(one.hear())
                assert word != "done", why
                print(f"the node that was active is refused: {word}")
            else:
                one.start()
                one.hear()
            story.check(one, is_active=False)
            one, other = other, one
        for node in one, other:
            node.say("")
            node.end()
    print(f"{story.count} edits, all nodes know the same")
    print(f"takeover: {min(times):.0f} to {max(times):.0f} ms from the decision to the first edit")


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("uri")
    command = commands.add_parser("demo")
    command.add_argument("--metadata", help="of a running cluster; without it one is started")
    command.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    if options.command == "run":
        asyncio.run(run(options.uri))
        return
    with contextlib.ExitStack() as stack:
        uri = options.metadata or stack.enter_context(LocalCluster(bookies=3)).metadata_uri
        demo(uri, options.rounds)


if __name__ == "__main__":
    main()
