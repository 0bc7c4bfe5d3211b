"""The directories that a bookie of the peer leaves, written by hand after its formats."""

from __future__ import annotations

import struct
from pathlib import Path

from doubles.records import entry

KEY = bytes(range(20))


class PeerDisk:
    """A stopped bookie's directories: ``checkpointed`` entries in logs and index, others only in
    journals; ``write`` puts everything on disk."""

    def __init__(
        self,
        root: Path,
        instance_id: str,
        *,
        kind: str = "sorted",
        journals: int = 1,
        ledgers: int = 1,
        indexes: int = 0,
        bookie_id: str = "127.0.0.1:3181",
    ) -> None:
        self.kind = kind
        self.instance_id = instance_id
        self.bookie_id = bookie_id
        self.journals = [root / f"journal{n}" for n in range(journals)]
        self.ledgers = [root / f"ledgers{n}" for n in range(ledgers)]
        self.indexes = [root / f"index{n}" for n in range(indexes)]
        #: By ledger directory and id: the bytes of an entry log.
        self.logs: dict[tuple[int, int], bytearray] = {}
        #: By ledger: entry id -> location.
        self.locations: dict[int, dict[int, int]] = {}
        #: By ledger: key, fenced, explicit LAC.
        self.states: dict[int, tuple[bytes, bool, bytes]] = {}
        self.records: list[tuple[int, bytes]] = []
        self.version = 6
        self.journal_id = 0x1A1FA347CAE
        #: Marks of the first journal in each ledger directory: how many records are behind them.
        self.marks = [0] * ledgers

    def ledger(
        self, ledger_id: int, *, key: bytes = KEY, fenced: bool = False, lac: bytes = b""
    ) -> None:
        self.states[ledger_id] = (key, fenced, lac)
        self.locations.setdefault(ledger_id, {})

    def checkpointed(
        self, ledger_id: int, *entry_ids: int, log: int = 0, directory: int = 0,
        payload: bytes = b"payload", is_named: bool = True,
    ) -> None:  # fmt: skip
        """Put entries into an entry log, and into the index if it names them."""
        data = self.logs.setdefault((directory, log), bytearray(1024))
        for entry_id in entry_ids:
            body = entry(ledger_id, entry_id, payload, entry_id - 1)
            data += struct.pack(">i", len(body))
            if is_named:
                self.locations.setdefault(ledger_id, {})[entry_id] = log << 32 | len(data)
            data += body

    def journaled(self, ledger_id: int, *entry_ids: int, payload: bytes = b"payload") -> None:
        for entry_id in entry_ids:
            self.records.append((ledger_id, entry(ledger_id, entry_id, payload, entry_id - 1)))

    def journaled_key(self, ledger_id: int, key: bytes = KEY) -> None:
        head = struct.pack(">qqi", ledger_id, -0x1000, len(key))
        self.records.append((ledger_id, head + key))

    def journaled_fence(self, ledger_id: int) -> None:
        self.records.append((ledger_id, struct.pack(">qq", ledger_id, -0x2000)))

    def journaled_lac(self, ledger_id: int, packet: bytes) -> None:
        head = struct.pack(">qqi", ledger_id, -0x8000, len(packet))
        self.records.append((ledger_id, head + packet))

    # Onto the disk

    def write(self) -> None:
        for directory in [*self.journals, *self.ledgers, *self.indexes]:
            (directory / "current").mkdir(parents=True)
            (directory / "current" / "VERSION").write_text(self.cookie())
        for (number, log), data in self.logs.items():
            data[:8] = b"BKLO" + struct.pack(">i", 1)
            directory = self.ledgers[number] / "current"
            (directory / f"{log:x}.log").write_bytes(data)
            (directory / "lastId").write_text(f"{log:x}\n")
        if self.kind == "sorted":
            self._write_index_files()
        elif self.kind == "db":
            self._write_databases()
        self._write_journals()

    def cookie(self) -> str:
        def joined(directories: list[Path]) -> str:
            return "\\t".join([str(len(directories)), *map(str, directories)])

        lines = [
            f'bookieHost: "{self.bookie_id}"',
            f'journalDir: "{",".join(map(str, self.journals))}"',
            f'ledgerDirs: "{joined(self.ledgers)}"',
            f'instanceId: "{self.instance_id}"',
        ]
        if self.indexes:
            lines.append(f'indexDirs: "{joined(self.indexes)}"')
        return "5\n" + "".join(f"{line}\n" for line in lines)

    def _index_directories(self) -> list[Path]:
        return [directory / "current" for directory in self.indexes or self.ledgers]

    def _write_index_files(self) -> None:
        directories = self._index_directories()
        for ledger_id, (key, fenced, lac) in self.states.items():
            folder = directories[ledger_id % len(directories)]
            folder = folder / f"{ledger_id >> 8 & 255:x}" / f"{ledger_id & 255:x}"
            folder.mkdir(parents=True, exist_ok=True)
            head = b"BKLE" + struct.pack(">ii", 1, len(key)) + key
            head += struct.pack(">ii", int(fenced), len(lac)) + lac
            named = self.locations[ledger_id]
            count = max(named, default=-1) + 1
            pages = -(-count // 1024)
            data = b"".join(struct.pack(">q", named.get(i, 0)) for i in range(pages * 1024))
            (folder / f"{ledger_id:x}.idx").write_bytes(head.ljust(1024, b"\0") + data)

    def _write_databases(self) -> None:
        import rocksdict

        directories = self._index_directories()
        for number, directory in enumerate(directories):
            options = rocksdict.Options(raw_mode=True)
            ledgers = rocksdict.Rdict(str(directory / "ledgers"), options)
            locations = rocksdict.Rdict(str(directory / "locations"), options)
            for ledger_id, (key, fenced, lac) in self.states.items():
                if ledger_id % len(directories) != number:
                    continue
                data = bytes([8, 1, 16, int(fenced), 26, len(key)]) + key
                if lac:
                    data += bytes([34, len(lac)]) + lac
                ledgers[struct.pack(">q", ledger_id)] = data
                for entry_id, location in self.locations[ledger_id].items():
                    name = struct.pack(">qq", ledger_id, entry_id)
                    locations[name] = struct.pack(">q", location)
            ledgers[struct.pack(">q", -0xEEFD)] = struct.pack(">q", 0)
            ledgers.close()
            locations.close()

    def _write_journals(self) -> None:
        count = len(self.journals)
        for number, directory in enumerate(self.journals):
            data = b"BKLG" + struct.pack(">i", self.version)
            data = data.ljust(512 if self.version >= 5 else 8, b"\0")
            ends = [len(data)]
            for ledger_id, record in self.records:
                if ledger_id % count == number:
                    data += struct.pack(">i", len(record)) + record
                    ends.append(len(data))
            path = directory / "current" / f"{self.journal_id + number:x}.txn"
            path.write_bytes(data.ljust(64 * 1024, b"\0"))
            name = "lastMark" if count == 1 else f"lastMark.{number}"
            for ledgers, behind in zip(self.ledgers, self.marks, strict=True):
                mark = struct.pack(
                    ">qq", self.journal_id + number, ends[behind if not number else 0]
                )
                (ledgers / "current" / name).write_bytes(mark)
