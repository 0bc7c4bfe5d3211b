"""A topic of Apache Pulsar, read straight from bookies: no broker is asked, and none is disturbed.

    async with quorumbook.connect("zk://zk1:2181/ledgers") as bk:
        topic = Topic(bk, "public/default/orders")
        async for message in topic.read():
            print(message.publish_time_ms, message.key, message.value)
        table = await topic.to_arrow(["publish_time", "key", "value"])

It is read as far as it is confirmed: of the ledger that a broker writes, brokers say with each
entry that the one before is, and when they rest only if ``bookkeeperExplicitLacIntervalInMills``
is set in ``broker.conf``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.client.reading.tabular import needs_extra
from quorumbook.errors import ConfigError, NoSuchLedgerInMetadataError
from quorumbook.pulsar.entries import Message
from quorumbook.pulsar.managed_ledgers import TopicLedger
from quorumbook.pulsar.names import TopicName
from quorumbook.pulsar.nodes import TopicNodes
from quorumbook.pulsar.reading import OnCorrupt, TopicReader
from quorumbook.pulsar.schemas import TopicSchema, decode_schema
from quorumbook.streams.errors import DataLossError, SchemaNotFoundError, StreamNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

#: Of one Arrow batch.
_MAX_ROWS, _MAX_BYTES = 65_536, 32 * 1024 * 1024


async def list_topics(client: BookKeeper, namespace: str) -> list[str]:
    """Return the topics of a namespace that are stored; each partition is one.

    Args:
        client: Of the cluster.
        namespace: ``TENANT/NAMESPACE``.

    Raises:
        ConfigError: that is not of this form.
    """
    tenant, slash, name = namespace.partition("/")
    if not tenant or not slash or not name or "/" in name:
        raise ConfigError(f"{namespace!r} is not a namespace of Pulsar: write TENANT/NAMESPACE")
    found = await TopicNodes(client_store(client)).topics(tenant, name)
    return [str(each) for each in found]


class Topic:
    """One topic, with all of its partitions if it has any."""

    def __init__(
        self,
        client: BookKeeper,
        name: str,
        *,
        password: bytes = b"",
        on_corrupt: OnCorrupt = "fail",
    ) -> None:
        """Take the topic; nothing is asked of the cluster yet.

        Args:
            client: Of the cluster.
            name: ``TENANT/NAMESPACE/TOPIC``, also with ``persistent://`` before it; a partition's
                has ``-partition-N`` behind it.
            password: Of its ledgers (``managedLedgerPassword`` of brokers).
            on_corrupt: What becomes of an entry that is damaged, encrypted, or of a transaction:
                ``fail`` is an error, ``null`` a message without a value that says so in ``error``,
                ``skip`` leaves it out.

        Raises:
            ConfigError: this is not a topic's name.
        """
        self.name = TopicName.parse(name)
        self._client = client
        self._nodes = TopicNodes(client_store(client))
        self._password = password
        self._on_corrupt = on_corrupt

    def __repr__(self) -> str:
        """Say which it is."""
        return f"<Topic {self.name}>"

    async def partitions(self) -> list[str]:
        """Return its partitions' names, in order; of a topic without any its own.

        Raises:
            StreamNotFoundError: there is no such topic.
        """
        return [str(name) for name in await self._partitions()]

    async def ledgers(self) -> list[TopicLedger]:
        """Return the ledgers of all partitions, in the order in which they are read.

        Raises:
            StreamNotFoundError: there is no such topic.
        """
        return [ledger for name in await self._partitions() for ledger in await self._of(name)]

    async def _partitions(self) -> list[TopicName]:
        found = await self._nodes.topics_of(self.name)
        if not found:
            raise self._missing()
        return found

    async def _of(self, name: TopicName) -> list[TopicLedger]:
        state = await self._nodes.state(name)
        if state is None:
            raise self._missing()
        return state.ledgers

    def _missing(self) -> StreamNotFoundError:
        return StreamNotFoundError(
            f"there is no topic {self.name}; list_topics(client, "
            f"'{self.name.tenant}/{self.name.namespace}') returns those that there are"
        )

    async def schema(self, version: int | None = None) -> TopicSchema:
        """Return the schema of its messages; with a version, the one that a message names.

        Raises:
            SchemaNotFoundError: it has none, or no such version.
            CorruptRecordsError: Pulsar's registry is damaged.
            NoSuchLedgerInMetadataError: the version's ledger is gone.
        """
        places = await self._nodes.schema_places(self.name)
        wanted = max(places, default=-1) if version is None else version
        found = None
        if wanted in places:
            ledger_id, entry_id = places[wanted]
            # Pulsar gives these ledgers no password, whatever its topics have.
            async with self._client.open_ledger(ledger_id, recover=False) as ledger:
                found = decode_schema(wanted, (await ledger.read_entry(entry_id)).payload)
        if found is None:
            which = "no schema" if version is None else f"no version {version} of a schema"
            raise SchemaNotFoundError(f"topic {self.name} has {which}")
        return found

    async def read(self, start: tuple[int, int] | None = None) -> AsyncGenerator[Message, None]:
        """Yield the messages that there are now, one partition after the other.

        Args:
            start: Ledger and entry to begin at, of a topic without partitions; None: the earliest.

        Raises:
            StreamNotFoundError: there is no such topic.
            DataLossError: one of its ledgers is gone.
            CorruptRecordsError: an entry is damaged, and that is to fail.
            UnsupportedFormatError: it is encrypted, of a transaction, or too large.
        """
        async with contextlib.aclosing(self.read_batches(start)) as batches:
            async for _, messages in batches:
                for message in messages:
                    yield message

    async def read_batches(
        self, start: tuple[int, int] | None = None
    ) -> AsyncGenerator[tuple[TopicName, list[Message]], None]:
        """Yield messages, many at a time, with the partition they are of; see ``read``."""
        names = await self._partitions()
        if start is not None and len(names) > 1:
            raise ConfigError(f"{self.name} has {len(names)} partitions; begin in one of them")
        for name in names:
            reader = TopicReader(
                self._client, self._nodes, name, password=self._password,
                on_corrupt=self._on_corrupt,
            )  # fmt: skip
            for ledger in await self._of(name):
                if start is not None and ledger.ledger_id < start[0]:
                    continue
                is_first = start is not None and ledger.ledger_id == start[0]
                first = start[1] if start is not None and is_first else 0
                async with contextlib.aclosing(_read_ledger(reader, ledger, first)) as found:
                    async for messages in found:
                        yield name, messages

    async def arrow_batches(
        self, columns: Sequence[str] | None = None, *, start: tuple[int, int] | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield messages as Arrow batches; needs the extra ``[arrow]``.

        Args:
            columns: Which, in which order; docs/pulsar.md names them.  None: all.
            start: Where to begin, see ``read``.

        Raises:
            ConfigError: there is no such column, or pyarrow is missing.
        """
        with needs_extra("'quorumbook[arrow]'"):
            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
            from quorumbook.pulsar.columns import SCHEMA, batch_of  # noqa: PLC0415
        schema = schema_of(SCHEMA, columns, "messages")
        held: list[Message] = []
        of, size = self.name, 0
        async with contextlib.aclosing(self.read_batches(start)) as batches:
            async for name, messages in batches:
                if held and (name != of or len(held) >= _MAX_ROWS or size >= _MAX_BYTES):
                    yield batch_of(of, held, schema)
                    held, size = [], 0
                of = name
                held += messages
                size += sum(len(message.value or b"") for message in messages)
        if held:
            yield batch_of(of, held, schema)

    async def to_arrow(
        self, columns: Sequence[str] | None = None, *, start: tuple[int, int] | None = None
    ) -> pa.Table:
        """Return messages as an Arrow table; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
            from quorumbook.pulsar.columns import SCHEMA  # noqa: PLC0415
        found = [batch async for batch in self.arrow_batches(columns, start=start)]
        return pa.Table.from_batches(found, schema_of(SCHEMA, columns, "messages"))

    async def to_pandas(
        self, columns: Sequence[str] | None = None, *, start: tuple[int, int] | None = None
    ) -> Any:
        """Return messages as a pandas frame; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]' pandas"):
            import pandas  # noqa: F401, PLC0415
        return (await self.to_arrow(columns, start=start)).to_pandas()


async def _read_ledger(
    reader: TopicReader, ledger: TopicLedger, first: int
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of one ledger, as far as they are confirmed."""
    try:
        opened = await reader.open_ledger(ledger.ledger_id)
    except NoSuchLedgerInMetadataError as error:
        raise gone(reader.name, ledger) from error
    async with opened:
        last = opened.last_add_confirmed
        async with contextlib.aclosing(reader.messages(opened, first, last)) as found:
            async for messages in found:
                yield messages


def gone(name: TopicName, ledger: TopicLedger) -> DataLossError:
    """Return the error that says that a topic's ledger is not there."""
    why = "Pulsar has moved it to other storage, which only brokers read"
    return DataLossError(
        f"ledger {ledger.ledger_id} of topic {name} is gone"
        + (f": {why}" if ledger.is_offloaded else ""),
        ledger_id=ledger.ledger_id,
    )
