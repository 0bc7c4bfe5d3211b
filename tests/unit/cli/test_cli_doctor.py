"""``quorumbook doctor``: what each finding means, and what it finds on this machine."""

from __future__ import annotations

import datetime
import json
import os
import socket
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from quorumbook.admin.facts.verdict import Level
from quorumbook.cli.diagnosis import machine
from quorumbook.cli.diagnosis.certificates import certificate_checks, validity_ms
from quorumbook.cli.diagnosis.disks import DiskProbe, disk_checks, is_sync_skipped, judged
from quorumbook.cli.main import main

NOW = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
DAY = datetime.timedelta(days=1)
# fmt: off
SOUND = {"directory": "/data", "kind": "ext4", "used": 0.5, "free_bytes": 10**12,
         "free_inodes": 0.9, "sync_ms": 1.0, "slowest_sync_ms": 3.0, "bytes_per_s": 3e8}
# fmt: on


def certificate(begin, end):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "b1.example")])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def one_of(tmp_path):
    def write(*pems):
        path = tmp_path / "some.pem"
        path.write_text("".join(pems))
        (found,) = certificate_checks([str(path), str(path)], NOW_MS)
        return found

    return write


def test_a_certificate_is_judged_by_its_period(one_of):
    good = one_of(certificate(NOW - DAY, NOW + 400 * DAY))
    assert (good.level, "2027-12-30" in good.text) == (Level.OK, True)
    soon = one_of(certificate(NOW - DAY, NOW + 5 * DAY))
    assert (soon.level, "expires in 5 d" in soon.text) == (Level.WARNING, True)
    over = one_of(certificate(NOW - 9 * DAY, NOW - 2 * DAY))
    assert (over.level, "expired 2 d ago" in over.text) == (Level.CRITICAL, True)
    early = one_of(certificate(NOW + DAY, NOW + 90 * DAY))
    assert (early.level, "valid only from 2026-11-26" in early.text) == (Level.CRITICAL, True)


def test_the_worst_certificate_of_a_chain_counts(one_of):
    good, over = certificate(NOW, NOW + 99 * DAY), certificate(NOW - 9 * DAY, NOW - DAY)
    found = one_of(good, over)
    assert found.level is Level.CRITICAL
    assert "one of the 2 certificates" in found.text


def test_what_is_no_certificate_is_said(one_of, tmp_path):
    assert "no certificate" in one_of("nothing\n").text
    cut = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(certificate(NOW, NOW + DAY))[:60])
    assert "damaged" in one_of(cut).text
    (missing,) = certificate_checks([f"{tmp_path}/none.pem"], NOW_MS)
    assert (missing.level, "No such file" in missing.text) == (Level.CRITICAL, True)


def test_both_forms_of_time_are_read():
    # Years from 2050 on stand in the longer form.
    end = datetime.datetime(2060, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    der = ssl.PEM_cert_to_DER_cert(certificate(NOW, end))
    assert validity_ms(der) == (NOW_MS, int(end.timestamp()) * 1000)
    for size in range(len(der) // 2):
        with pytest.raises(ValueError, match="cut off"):
            validity_ms(der[:size])


@pytest.mark.parametrize(
    ("changed", "levels", "words"),
    [
        ({}, (0, 0), "a sync takes 1 ms, at most 3 ms; writes 300 MB/s"),
        ({"sync_ms": 30.0}, (1, 0), "syncs slowly"),
        ({"bytes_per_s": 1e6}, (1, 0), "writes slowly"),
        ({"kind": "tmpfs"}, (1, 0), "empty after a restart"),
        ({"kind": "nfs4"}, (1, 0), "network file system"),
        ({"is_sync_skipped": True}, (2, 0), "syncs do nothing"),
        ({"used": 0.9}, (0, 1), "90% full"),
        ({"used": 0.95}, (0, 2), "95% full"),
        ({"free_inodes": 0.01}, (0, 1), "few new files"),
    ],
)
def test_a_disk_is_judged_by_its_numbers(changed, levels, words):
    found = judged(DiskProbe(**(SOUND | changed)), max_usage=0.95)
    assert tuple(check.level for check in found) == levels
    assert words in " ".join(check.text for check in found)
    assert all(bool(check.fix) == bool(check.level) for check in found)


def test_a_disk_is_probed_once_and_nothing_stays(tmp_path):
    wanted = [str(tmp_path / "journal"), str(tmp_path / "ledgers")]
    found = disk_checks(wanted, max_usage=1.1)
    assert [check.code for check in found] == ["disk", "space"]
    assert str(tmp_path) in found[0].text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    (found,) = disk_checks([str(tmp_path / "journal")], max_usage=1.1)
    tmp_path.chmod(0o700)
    assert (found.level, "cannot be written" in found.text) == (Level.CRITICAL, True)


def test_a_preloaded_library_that_skips_syncs_is_found():
    assert is_sync_skipped({"LD_PRELOAD": "/usr/lib/libeatmydata.so"})
    assert not is_sync_skipped({"LD_PRELOAD": "/usr/lib/libjemalloc.so"})


def test_clock_and_limits_are_judged_in_words():
    assert machine.clock_judged(is_synchronised=True, error_ms=3).level is Level.OK
    assert machine.clock_judged(is_synchronised=False, error_ms=3).level is Level.WARNING
    assert "1.5 s" in machine.clock_judged(is_synchronised=True, error_ms=1500).text
    assert machine.files_judged(100).level is Level.CRITICAL
    assert machine.files_judged(1024).level is Level.WARNING
    assert machine.files_judged(65536).level is Level.OK


def test_a_name_that_others_would_take_for_themselves_is_a_warning():
    assert machine.name_judged("b1", {"10.0.0.7"}, "0.0.0.0").level is Level.OK
    assert machine.name_judged("b1", {"127.0.1.1"}, "0.0.0.0").level is Level.WARNING
    assert machine.name_judged("localhost", {"127.0.0.1"}, "127.0.0.1").level is Level.OK
    nobody = machine.name_check("no-such-host.invalid", "10.0.0.1")
    assert (nobody.level, "cannot be resolved" in nobody.text) == (Level.CRITICAL, True)


def test_a_port_is_free_taken_or_ours():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stranger = machine.port_check("bookie.port", "127.0.0.1", port, {})
        assert (stranger.level, "is in use, by nothing" in stranger.text) == (Level.WARNING, True)
        ours = machine.port_check("bookie.port", "127.0.0.1", port, {port: "bookie b1"})
        assert (ours.level, ours.text.endswith("in use by bookie b1")) == (Level.OK, True)
    assert machine.port_check("bookie.port", "127.0.0.1", port, {}).level is Level.OK
    away = machine.port_check("bookie.port", "192.0.2.1", port, {})
    assert (away.level, "cannot be listened at" in away.text) == (Level.CRITICAL, True)


def test_without_a_store_the_verdict_is_critical_and_the_rest_is_checked(capsys, tmp_path):
    words = ["--data-dir", str(tmp_path), "--set", "metadata.session_timeout_s=1"]
    code = main(["doctor", *words, "--metadata", "zk://127.0.0.1:1/ledgers", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["status"]) == (2, "critical")
    by_code = {check["code"]: check for check in found["checks"]}
    assert by_code.keys() >= {"versions", "clock", "disk", "space", "files", "name", "port"}
    assert by_code["metadata"]["level"] == "critical"
    assert by_code["metadata"]["fix"]


def test_files_of_tls_that_cannot_be_used_are_a_finding(capsys, tmp_path):
    pem = tmp_path / "ca.pem"
    pem.write_text(certificate(NOW - 9 * DAY, NOW - DAY))
    words = ["--set", "tls.enabled=true", "--set", f"tls.ca_file={pem}"]
    words += ["--set", f"tls.certificate_file={pem}", "--data-dir", str(tmp_path)]
    assert main(["doctor", *words, "--metadata", f"sqlite:///{tmp_path}/none.db"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("critical  certificate") and "expired" in line for line in lines)
    assert any(line.startswith("critical  tls") for line in lines)
    assert lines[-1].startswith("CRITICAL: ")
