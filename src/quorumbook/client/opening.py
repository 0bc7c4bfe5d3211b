"""Opening a ledger to read it: with recovery, or while somebody else writes it."""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.client.context import Context, check_password
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.recovery import recover as recover_ledger
from quorumbook.client.writing.unwritten import without_mark
from quorumbook.ids import LedgerId
from quorumbook.protocol.digest import DigestType, digester


async def open_reader(
    context: Context,
    ledger_id: LedgerId,
    password: bytes,
    recover: bool,
    accept_loss: bool,
    digest_type: DigestType | None,
    on_over: Callable[[LedgerReader], None],
) -> LedgerReader:
    """Return a reader that is started; ``BookKeeper.open_ledger`` says what the arguments mean."""
    metadata, version = await context.ledgers.read(ledger_id)
    check_password(metadata, password)
    kind = metadata.digest_type or digest_type or DigestType.CRC32C
    seal = digester(kind, password)
    if recover and not metadata.is_closed:
        metadata = without_mark(metadata)
        metadata, version = await recover_ledger(
            context, seal, metadata, version, password, accept_loss=accept_loss
        )
    reader = LedgerReader(context, metadata, version, seal, on_over)
    try:
        await reader._start()  # noqa: SLF001 - a handle is its client's
    except BaseException:
        await reader.close()
        raise
    return reader
