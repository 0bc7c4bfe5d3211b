"""A configuration file of the peer, ``bk_server.conf``, in our options.

Keys that the table in ``schema.py`` knows are taken over one by one.  Some say together what is
one thing here:

    metadataServiceUri, else zkServers, zkLedgersRootPath      metadata.uri
    and ledgerManagerFactoryClass
    journalDirectories, else journalDirectory                  the first one, and further ones
    listeningInterface, advertisedAddress,                     bookie.host and advertised_host; the
    useHostNameAsBookieID, useShortHostName                    peer listens on every address
    diskUsageThreshold without diskUsageLwmThreshold           both have the same value
    httpServerEnabled without host or port                     0.0.0.0 and 8080, as the peer
    ledgerStorageClass                                         storage.peer_storage
    tlsProviderFactoryClass                                    tls.enabled; without it the other
                                                               keys of TLS mean nothing, as there
    ensemblePlacementPolicy                                    placement.policy, by the class's name
    reppDnsResolverClass                                       nothing, if it is ScriptBasedMapping:
                                                               placement.rack_script says it all

Every other key is named once in a warning: it has no effect here, protects nothing here, or is not
the peer's at all.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import socket
from collections.abc import Iterable
from struct import Struct

from quorumbook.config.peer_keys import PEER_KEYS, PROTECTIVE
from quorumbook.config.properties import Properties
from quorumbook.config.schema import OPTIONS
from quorumbook.errors import ConfigError
from quorumbook.options import Kind, Option

#: They name Java classes, which are none of our plug-ins.
_CLASSES = ("bookieAuthProviderFactoryClass", "clientAuthProviderFactoryClass")
_DIRECT = {
    option.peer_key: option
    for option in OPTIONS
    if option.peer_key and option.section != "client" and option.peer_key not in _CLASSES
}
#: Keys that say together with others what is one thing here.
_GROUPS = """
metadataServiceUri zkServers zkLedgersRootPath ledgerManagerFactoryClass ledgerManagerType
journalDirectories journalDirectory listeningInterface useHostNameAsBookieID useShortHostName
allowLoopback ledgerStorageClass sortedLedgerStorageEnabled tlsProviderFactoryClass
ensemblePlacementPolicy
"""
_CLIENT_PACKAGE = "org.apache.bookkeeper.client"
_POLICIES = {
    f"{_CLIENT_PACKAGE}.DefaultEnsemblePlacementPolicy": "random",
    f"{_CLIENT_PACKAGE}.RackawareEnsemblePlacementPolicy": "rack-aware",
    f"{_CLIENT_PACKAGE}.RegionAwareEnsemblePlacementPolicy": "region-aware",
    f"{_CLIENT_PACKAGE}.ZoneawareEnsemblePlacementPolicy": "zone-aware",
}
_SCRIPT_MAPPING = "org.apache.bookkeeper.net.ScriptBasedMapping"
_TOGETHER = frozenset(_GROUPS.split())
#: What the peer writes for "not set".
_UNSET = {"dbStorage_readAheadCacheBatchBytesSize": "-1"}
_TRUE = ("true", "yes", "on", "y", "t", "1")
_JAVA_WORDS = {"y": "true", "t": "true", "n": "false", "f": "false"}
_LAYOUTS = ("hierarchical", "longhierarchical", "flat")
_INTERFACE = Struct("16s24x")
_SIOCGIFADDR = 0x8915


class PeerConf:
    """One file of the peer."""

    def __init__(self, properties: Properties) -> None:
        self._properties = properties
        self._has_tls = bool(self._text("tlsProviderFactoryClass"))
        #: Keys that one option of ours stands for.
        self.direct = [
            key
            for key in properties
            if key in _DIRECT
            and key not in _TOGETHER
            and any(properties.values(key))
            and self._counts(key)
            and properties.values(key)[0] != _UNSET.get(key)
        ]

    def _counts(self, key: str) -> bool:
        return self._has_tls or not key.startswith("tls")

    def source(self, *keys: str) -> str:
        """Say where a value stands."""
        present = [key for key in keys if key in self._properties] or list(keys)
        line = self._properties.line(present[0])
        return f"{self._properties.path} line {line}, {present[0]}"

    def raw(self, key: str, option: Option) -> str | list[str]:
        """Return a value as the option's type wants it."""
        values = self._properties.values(key)
        if option.kind is Kind.LIST:
            if key == "reppRegionsToWrite":  # the peer cuts it at semicolons itself
                values = [part.strip() for value in values for part in value.split(";")]
            return [value for value in values if value]
        if option.kind is Kind.SWITCH:
            return _JAVA_WORDS.get(values[0].strip().lower(), values[0])
        return values[0]

    def _text(self, key: str) -> str:
        values = self._properties.values(key)
        return values[0].strip() if values else ""

    def _is_on(self, key: str) -> bool:
        return self._text(key).lower() in _TRUE

    def derived(self) -> dict[str, tuple[str | list[str], str]]:
        """Return options that several keys decide: by name, value and source."""
        found: dict[str, tuple[str | list[str], str]] = {}
        self._metadata(found)
        self._directories(found)
        self._addresses(found)
        if self._text("diskUsageThreshold") and not self._text("diskUsageLwmThreshold"):
            source = self.source("diskUsageThreshold")
            found["bookie.disk_usage_writable"] = (self._text("diskUsageThreshold"), source)
        policy = _POLICIES.get(self._text("ensemblePlacementPolicy"))
        if policy is not None:
            found["placement.policy"] = (policy, self.source("ensemblePlacementPolicy"))
        if self._has_tls:
            found["tls.enabled"] = ("true", self.source("tlsProviderFactoryClass"))
        if self._is_on("httpServerEnabled"):
            source = self.source("httpServerEnabled")
            if not self._text("httpServerHost"):
                found["http.host"] = ("0.0.0.0", source)  # noqa: S104 - as the peer
            if not self._text("httpServerPort"):
                found["http.port"] = ("8080", source)
        return found

    def _metadata(self, found: dict[str, tuple[str | list[str], str]]) -> None:
        # Several servers may be separated by commas, which made a list of them.
        uri = ",".join(filter(None, self._properties.values("metadataServiceUri")))
        if uri:
            found["metadata.uri"] = (uri, self.source("metadataServiceUri"))
            return
        servers = ",".join(filter(None, self._properties.values("zkServers")))
        if not servers:
            return
        root = self._text("zkLedgersRootPath") or "/ledgers"
        uri = f"{self._scheme()}://{servers}/{root.strip('/')}"
        found["metadata.uri"] = (uri, self.source("zkServers"))

    def _scheme(self) -> str:
        name = self._text("ledgerManagerFactoryClass").rpartition(".")[2]
        name = name.removesuffix("LedgerManagerFactory").lower() or self._text("ledgerManagerType")
        if not name:
            return "zk"  # as the cluster's LAYOUT says
        if name not in _LAYOUTS:
            key = self.source("ledgerManagerFactoryClass", "ledgerManagerType")
            raise ConfigError(
                f"metadata.uri: {name!r} ({key}) is not a ledger manager known here; leave it out, "
                "and the cluster's LAYOUT decides"
            )
        return f"zk+{name}"

    def _directories(self, found: dict[str, tuple[str | list[str], str]]) -> None:
        key = "journalDirectories" if self._text("journalDirectories") else "journalDirectory"
        journals = [value for value in self._properties.values(key) if value]
        if journals:
            found["storage.journal_directories"] = (journals, self.source(key))
        storage = self._text("ledgerStorageClass")
        if storage:
            kind = "db" if storage.endswith("DbLedgerStorage") else "sorted"
            found["storage.peer_storage"] = (kind, self.source("ledgerStorageClass"))

    def _addresses(self, found: dict[str, tuple[str | list[str], str]]) -> None:
        interface = self._text("listeningInterface")
        if interface:
            source = self.source("listeningInterface")
            address = _interface_address(interface, source)
            found["bookie.host"] = (address, source)
        else:
            source = self._properties.path
            address = ""
            found["bookie.host"] = ("0.0.0.0", source)  # noqa: S104 - as the peer
        if self._text("advertisedAddress"):
            return
        if self._is_on("useHostNameAsBookieID"):
            source = self.source("useHostNameAsBookieID")
            name = socket.getfqdn()
            address = name.partition(".")[0] if self._is_on("useShortHostName") else name
        found["bookie.advertised_host"] = (address or _own_address(), source)

    def warnings(self) -> list[str]:
        """Name what has no effect here, each key once."""
        others = [
            key
            for key in self._properties
            if key and key not in _DIRECT and key not in _TOGETHER and self._counts(key)
        ]
        if self._text("reppDnsResolverClass") == _SCRIPT_MAPPING:
            others.remove("reppDnsResolverClass")
        if self._text("ensemblePlacementPolicy") not in {"", *_POLICIES}:
            others.append("ensemblePlacementPolicy")
        protective = [
            key
            for key in others
            if key in PROTECTIVE and self._text(key).lower() not in ("", "false")
        ]
        unknown = [key for key in others if key not in PEER_KEYS]
        idle = [key for key in others if key not in protective and key not in unknown]
        path = os.path.basename(self._properties.path)
        warnings = []
        if protective:
            warnings.append(
                f"{path}: NOT PROTECTED here, these have no effect: {_names(protective)}"
            )
        if unknown:
            named = ", ".join(f"{key}{_nearest(key)}" for key in sorted(unknown))
            warnings.append(f"{path}: not known: {named}")
        if idle:
            warnings.append(f"{path}: no effect here: {_names(idle)}")
        return warnings


def _names(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))


def _nearest(key: str) -> str:
    close = difflib.get_close_matches(key, PEER_KEYS, n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""


def _interface_address(name: str, source: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, _INTERFACE.pack(name.encode()[:15]))
        except OSError as error:
            raise ConfigError(
                f"bookie.host: {name!r} ({source}) has no IPv4 address: {error.strerror}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def _own_address() -> str:
    """Return the address that the host's name stands for, by which the peer calls itself."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
