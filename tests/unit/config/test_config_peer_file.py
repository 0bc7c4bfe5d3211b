"""A Java bookie's bk_server.conf is read as the peer reads it; nothing in it is lost silently."""

from __future__ import annotations

import socket

import pytest

from quorumbook.config import load
from quorumbook.config.made import client_options
from quorumbook.config.peer_keys import PEER_KEYS, PROTECTIVE
from quorumbook.config.properties import Properties
from quorumbook.config.schema import OPTIONS
from quorumbook.errors import ConfigError
from quorumbook.ledger.placement.options import PlacementOptions


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def properties(tmp_path, text, **variables):
    path = tmp_path / "t.conf"
    path.write_text(text, encoding="iso-8859-1")
    return Properties(str(path), variables)


def loaded(tmp_path, text, **how):
    path = tmp_path / "bk_server.conf"
    path.write_text(text, encoding="iso-8859-1")
    return load(peer_file=str(path), environment=how.pop("environment", {}), **how)


#: Line of a file, key, values: what the peer's own class gave back for this very file.
AS_THE_PEER = [
    ("  a2   =   spaced value   ", "a2", ["spaced value"]),
    ("a3 : colon", "a3", ["colon"]),
    ("a4 white space separator", "a4", ["white space separator"]),
    ("a5=one,two, three", "a5", ["one", "two", "three"]),
    (r"a6=one\,two", "a6", ["one", "two"]),
    ("a7=long \\\n     continued \\\n  again", "a7", ["long continued again"]),
    (r"a8=tab\there\u0041 back\\slash", "a8", ["tab\thereA back\\slash"]),
    ("a9=${a1}/y", "a9", ["x/y"]),
    ("a10=${missing}/y", "a10", ["${missing}/y"]),
    ("a9=${a1}/y\na11=${a9}/z", "a11", ["x/y/z"]),
    ("dup=1\ndup=2", "dup", ["1", "2"]),
    ("empty=", "empty", [""]),
    (r"key\ with\ space=v", "key with space", ["v"]),
    (r"key\=eq=v", "key=eq", ["v"]),
    (r"a12=end" + "\\\\", "a12", ["end\\"]),
    ("a13=x # not comment", "a13", ["x # not comment"]),
    ("a14=$${a1}", "a14", ["x"]),
    ("a16=${env:HOME}", "a16", ["/home/me"]),
    (r"a17=a\:b\=c\#d", "a17", ["a:b=c#d"]),
    ('a18="q,r"', "a18", ['"q', 'r"']),
    (r"a19=a\\,b", "a19", ["a", "b"]),
    ("a20=\\\na21=" + r"\q\"", "a20", [r"a21=\q" + '"']),
    ("a5=one,two\na22=${a5}", "a22", ["one", "two"]),
    ("a23=\u00e9", "a23", ["\u00e9"]),
    ("a24=\u0085x", "a24", ["\u0085x"]),
    ("nokey", "nokey", [""]),
    ("# a=1 \\\na25=2", "a25", ["2"]),
    ("! a=1\n\n\t\na26=2", "a26", ["2"]),
]


@pytest.mark.parametrize(("text", "key", "values"), AS_THE_PEER, ids=[a[1] for a in AS_THE_PEER])
def test_a_properties_file_is_read_as_the_peer_reads_it(tmp_path, text, key, values):
    found = properties(tmp_path, f"a1=x\n{text}\n", HOME="/home/me")
    assert found.values(key) == values


def test_a_value_that_refers_to_itself_and_a_file_that_asks_for_another_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"line \d: [ab] refers to itself"):
        properties(tmp_path, "a=${b}\nb=${a}\n").values("a")
    with pytest.raises(ConfigError, match=r"line 2: include is not followed"):
        properties(tmp_path, "a=1\ninclude=more.conf\n")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
        Properties(str(tmp_path / "absent"), {})


def test_options_are_taken_over_with_their_units_and_say_where_they_stand(tmp_path):
    settings = loaded(
        tmp_path,
        "# a bookie\nbookiePort=3999\nflushInterval=2500\njournalMaxSizeMB=512\n"
        "nettyMaxFrameSizeBytes=1048576\nforceReadOnlyBookie=TRUE\nbookieId=b-1\n"
        "ledgerDirectories=/l1,/l2/${bookiePort}\nindexDirectories=/i1, /i2\n",
    )
    assert settings.integer("bookie.port") == 3999
    assert settings["bookie.port"].source == f"{tmp_path}/bk_server.conf line 2, bookiePort"
    assert settings.number("storage.flush_interval_s") == 2.5
    assert settings.integer("storage.journal_file_size_bytes") == 512 << 20
    assert settings.integer("bookie.max_frame_bytes") == 1 << 20
    assert settings["bookie.force_read_only"].value is True
    assert settings["storage.ledger_directories"].value == ("/l1", "/l2/3999")
    assert settings["storage.index_directories"].value == ("/i1", "/i2")
    assert settings.warnings == ()


def test_later_sources_win_over_the_peers_file(tmp_path):
    (tmp_path / "quorumbook.toml").write_text("[bookie]\nport = 2\nbookie_id = 'toml'\n")
    settings = loaded(
        tmp_path,
        "bookiePort=1\nbookieId=peer\nadvertisedAddress=peer\nflushInterval=1000\n",
        environment={"QUORUMBOOK_BOOKIE_PORT": "3"},
        overrides=["bookie.advertised_host=set"],
    )
    assert settings.integer("bookie.port") == 3
    assert settings.text("bookie.bookie_id") == "toml"
    assert settings.text("bookie.advertised_host") == "set"
    assert settings.number("storage.flush_interval_s") == 1


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("metadataServiceUri=zk+hierarchical://h:2181/x", "zk+hierarchical://h:2181/x"),
        ("metadataServiceUri=zk://a:1,b:2/x\nzkServers=c:3", "zk://a:1,b:2/x"),
        ("zkServers=h1:2181,h2:2181", "zk://h1:2181,h2:2181/ledgers"),
        ("zkServers=h1:2181\nzkLedgersRootPath=/my/root", "zk://h1:2181/my/root"),
        (
            "zkServers=h:1\nledgerManagerFactoryClass="
            "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
            "zk+longhierarchical://h:1/ledgers",
        ),
        ("zkServers=h:1\nledgerManagerType=flat", "zk+flat://h:1/ledgers"),
    ],
)
def test_the_metadata_uri_is_put_together(tmp_path, text, uri):
    assert loaded(tmp_path, text).text("metadata.uri") == uri


def test_journal_directories_are_taken_in_their_order_and_by_the_older_key(tmp_path):
    settings = loaded(tmp_path, "journalDirectories=/j1,/j2,/j3\n")
    assert settings["storage.journal_directories"].value == ("/j1", "/j2", "/j3")
    settings = loaded(tmp_path, "journalDirectory=/old\n")
    assert settings["storage.journal_directories"].value == ("/old",)


def test_the_bookie_listens_and_calls_itself_as_the_peer_would(tmp_path):
    settings = loaded(tmp_path, "bookiePort=1\n")
    assert settings.text("bookie.host") == "0.0.0.0"
    own = socket.gethostbyname(socket.gethostname())
    assert settings.text("bookie.advertised_host") == own
    settings = loaded(tmp_path, "listeningInterface=lo\n")
    assert settings.text("bookie.host") == settings.text("bookie.advertised_host") == "127.0.0.1"
    settings = loaded(tmp_path, "useHostNameAsBookieID=true\nuseShortHostName=true\n")
    assert settings.text("bookie.advertised_host") == socket.getfqdn().partition(".")[0]
    with pytest.raises(ConfigError, match=r"'nosuch0' \(.*line 1, listeningInterface\)"):
        loaded(tmp_path, "listeningInterface=nosuch0\n")


def test_values_that_depend_on_another_follow_the_peer(tmp_path):
    settings = loaded(tmp_path, "diskUsageThreshold=0.8\nhttpServerEnabled=true\n")
    assert settings.number("bookie.max_disk_usage") == 0.8
    assert settings.number("bookie.disk_usage_writable") == 0.8
    assert (settings.text("http.host"), settings.integer("http.port")) == ("0.0.0.0", 8080)
    settings = loaded(tmp_path, "ledgerStorageClass=org.x.ldb.DbLedgerStorage\n")
    assert settings.text("storage.peer_storage") == "db"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bookiePort=99999", r"bookie\.port: '99999' \(.*line 2, bookiePort\) is out of bounds"),
        ("journalMaxSizeMB=lots", r"'lots' \(.*line 2, journalMaxSizeMB\) is not a size"),
        ("forceReadOnlyBookie=maybe", r"'maybe' \(.*line 2, forceReadOnlyBookie\) is not true"),
        ("zkServers=h\nledgerManagerType=odd", r"'odd' \(.*line 3, ledgerManagerType\)"),
    ],
)
def test_a_bad_value_is_one_line_with_file_line_and_key(tmp_path, line, message):
    with pytest.raises(ConfigError, match=message) as refused:
        loaded(tmp_path, f"# a bookie\n{line}\n")
    assert "\n" not in str(refused.value)


def test_what_has_no_effect_is_named_once_by_kind(tmp_path):
    settings = loaded(
        tmp_path,
        "flushEntrylogBytes=1\nbookieAuthProviderFactoryClass=org.x.Auth\njournalSyncData=false\n"
        "ledgerDirectorys=/x\nmyOwn=1\nflushEntrylogBytes=2\nallowLoopback=true\nzkEnableSecurity=false\n",
    )
    protective, unknown, idle = settings.warnings
    assert protective.endswith("these have no effect: bookieAuthProviderFactoryClass")
    assert unknown.endswith("not known: ledgerDirectorys (did you mean ledgerDirectories?), myOwn")
    assert idle.endswith("no effect here: flushEntrylogBytes, journalSyncData, zkEnableSecurity")


def test_keys_of_tls_count_where_tls_is_switched_on(tmp_path):
    text = "tlsKeyStoreType=JKS\ntlsProvider=OpenSSL\ntlsCertificatePath=/c.pem\n"
    settings = loaded(tmp_path, text)
    assert settings["tls.enabled"].is_default
    assert settings["tls.certificate_file"].is_default
    assert settings.warnings == ()
    factory = "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
    with pytest.raises(ConfigError, match=r"'JKS' \(.*line 1, tlsKeyStoreType\) is not one of PEM"):
        loaded(tmp_path, text + factory)
    settings = loaded(tmp_path, text.replace("JKS", "PEM") + factory)
    assert settings["tls.enabled"].value is True
    assert settings.text("tls.certificate_file") == "/c.pem"
    assert settings.warnings[0].endswith("no effect here: tlsProvider")


def test_placement_is_taken_over_as_the_peer_writes_it(tmp_path):
    client = "org.apache.bookkeeper.client"
    settings = loaded(
        tmp_path,
        f"ensemblePlacementPolicy={client}.RegionAwareEnsemblePlacementPolicy\n"
        "reppDnsResolverClass=org.apache.bookkeeper.net.ScriptBasedMapping\n"
        "networkTopologyScriptFileName=/etc/racks.sh\nnetworkTopologyScriptNumberArgs=7\n"
        "minNumRacksPerWriteQuorum=3\nenforceMinNumRacksPerWriteQuorum=true\n"
        "reppRegionsToWrite=west;east;north\nreppMinimumRegionsForDurability=2\n"
        "reppEnableDurabilityEnforcementInReplace=false\n"
        "minNumZonesPerWriteQuorum=1\ndesiredNumZonesPerWriteQuorum=2\n"
        "enforceStrictZoneawarePlacement=false\nenforceMinNumFaultDomainsForWrite=true\n"
        "diskWeightBasedPlacementEnabled=true\nbookieMaxMultipleForWeightBasedPlacement=5\n"
        "getBookieInfoIntervalSeconds=60\n",
    )
    assert settings.warnings == ()
    assert client_options(settings).placement == PlacementOptions(
        policy="region-aware",
        rack_script="/etc/racks.sh",
        max_rack_script_arguments=7,
        min_racks=3,
        enforce_racks=True,
        regions=("west", "east", "north"),
        min_regions=2,
        enforce_regions_in_replacement=False,
        min_zones=1,
        desired_zones=2,
        enforce_zones=False,
        enforce_ack_domains=True,
        weigh_free_space=True,
        max_weight_multiple=5,
        free_space_interval_s=60.0,
    )
    for name, policy in (("Default", "random"), ("Zoneaware", "zone-aware")):
        text = f"ensemblePlacementPolicy={client}.{name}EnsemblePlacementPolicy\n"
        assert loaded(tmp_path, text).text("placement.policy") == policy
    own = "ensemblePlacementPolicy=com.example.Mine\nreppDnsResolverClass=com.example.Racks\n"
    (warning,) = loaded(tmp_path, own).warnings
    assert warning.endswith("no effect here: ensemblePlacementPolicy, reppDnsResolverClass")


def test_every_key_of_the_peer_is_taken_or_named(tmp_path):
    """All keys at once: each either sets an option, is part of one, or is in a warning."""
    own = {option.peer_key for option in OPTIONS if option.peer_key and option.section != "client"}
    assert own <= PEER_KEYS
    own -= {"bookieAuthProviderFactoryClass", "ensemblePlacementPolicy"}
    others = sorted(PEER_KEYS - own - {"ledgerManagerType", "listeningInterface"})
    text = "".join(f"{key}=1\n" for key in others if key != "ledgerManagerFactoryClass")
    named = set(" ".join(loaded(tmp_path, text).warnings).replace(",", " ").split())
    together = {
        "zkServers", "zkLedgersRootPath", "ledgerManagerFactoryClass", "journalDirectory",
        "useHostNameAsBookieID", "useShortHostName", "allowLoopback", "ledgerStorageClass",
        "sortedLedgerStorageEnabled", "tlsProviderFactoryClass",
    }  # fmt: skip
    assert set(others) - named == together
    assert PROTECTIVE <= PEER_KEYS
