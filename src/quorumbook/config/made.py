"""What clients, bookies and auto-recovery are made with, out of the values of all options."""

from __future__ import annotations

import os
import socket

from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions, WorkerOptions
from quorumbook.bookie.options import BookieOptions, HttpOptions
from quorumbook.client.options import ClientOptions
from quorumbook.config.load import Settings
from quorumbook.env.tls import TlsOptions
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions


def client_options(settings: Settings) -> ClientOptions:
    """Return what a client is made with."""
    placement = settings.made(PlacementOptions)
    return settings.made(ClientOptions, tls=tls_options(settings), placement=placement)


def bookie_options(settings: Settings) -> BookieOptions:
    """Return what a bookie is made with."""
    return settings.made(
        BookieOptions,
        storage=settings.made(StorageOptions),
        gc=settings.made(GcOptions),
        scrub=settings.made(ScrubOptions),
        http=http_options(settings),
        tls=tls_options(settings),
    )


def recovery_options(settings: Settings, name: str = "") -> RecoveryOptions:
    """Return what auto-recovery is made with; ``name`` is used where none is configured."""
    given = settings.text("recovery.name") or name or f"{socket.gethostname()}:{os.getpid()}"
    return RecoveryOptions(
        name=given, auditor=settings.made(AuditorOptions), worker=settings.made(WorkerOptions)
    )


def http_options(settings: Settings) -> HttpOptions | None:
    """Return where a process serves HTTP; None if it does not."""
    return settings.made(HttpOptions) if settings["http.enabled"].value else None


def tls_options(settings: Settings) -> TlsOptions | None:
    """Return the tls section as a bookie and a client take it; None if it is off."""
    return settings.made(TlsOptions) if settings["tls.enabled"].value else None
