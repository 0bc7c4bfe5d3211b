"""When certificates expire: X.509 in DER, as far as that takes.

Certificate     SEQUENCE of TBSCertificate, and a signature of no interest here
TBSCertificate  SEQUENCE of [0] version (may be missing), serial number, algorithm, issuer,
                SEQUENCE of two times (not before, not after), and more
a time          UTCTime (tag 0x17) YYMMDDHHMMSSZ, or GeneralizedTime (tag 0x18) YYYYMMDDHHMMSSZ
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime

from quorumbook.admin.facts.verdict import VerdictReason
from quorumbook.admin.facts.words import at, since
from quorumbook.cli.diagnosis.checks import failed, fine, warned

_CODE = "certificate"
_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
_VERSION, _UTC_TIME, _LONG_LENGTH = 0xA0, 0x17, 0x80
#: Who has to renew one by hand needs this long.
_SOON_MS = 30 * 86_400_000


def certificate_checks(paths: Sequence[str], now_ms: int) -> list[VerdictReason]:
    """Return a finding for each file of certificates."""
    return [_file_check(path, now_ms) for path in dict.fromkeys(paths)]


def _file_check(path: str, now_ms: int) -> VerdictReason:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _PEM.findall(file.read())
    except OSError as error:
        return failed(
            _CODE,
            f"{path} cannot be read: {error.strerror}",
            "correct its path, or who may read it",
        )
    try:
        periods = [validity_ms(ssl.PEM_cert_to_DER_cert(pem)) for pem in found]
    except ValueError:
        return failed(_CODE, f"{path} holds a damaged certificate", "make the file again")
    if not periods:
        return failed(_CODE, f"{path} holds no certificate in PEM form", "give a file in PEM form")
    begin_ms, end_ms = max(begin for begin, _ in periods), min(end for _, end in periods)
    which = path if len(periods) == 1 else f"one of the {len(periods)} certificates in {path}"
    if now_ms > end_ms:
        return failed(_CODE, f"{which} expired {since(end_ms, now_ms)} ({at(end_ms)})", "renew it")
    if now_ms < begin_ms:
        return failed(
            _CODE,
            f"{which} is valid only from {at(begin_ms)} on",
            "check this machine's clock, or wait",
        )
    if end_ms - now_ms < _SOON_MS:
        return warned(
            _CODE,
            f"{which} expires {since(end_ms, now_ms)} ({at(end_ms)})",
            "renew it; a running process takes the new file without a restart",
        )
    return fine(_CODE, f"{path} is valid until {at(end_ms)}")


def validity_ms(der: bytes) -> tuple[int, int]:
    """Return from when until when a certificate is valid, in milliseconds since 1970.

    Raises:
        ValueError: It is damaged.
    """
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    if tag == _VERSION:
        _, _, rest = _element(rest)  # the serial number
    _, _, rest = _element(rest)  # the algorithm
    _, _, rest = _element(rest)  # the issuer
    _, period, _ = _element(rest)
    begin_tag, begin, period = _element(period)
    end_tag, end, _ = _element(period)
    return _time_ms(begin_tag, begin), _time_ms(end_tag, end)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element, and what follows it."""
    if len(data) < 2:
        raise ValueError("an element of a certificate is cut off")
    size, begin = data[1], 2
    if size & _LONG_LENGTH:
        begin += size & ~_LONG_LENGTH
        size = int.from_bytes(data[2:begin])
    if begin + size > len(data):
        raise ValueError("an element of a certificate is cut off")
    return data[0], data[begin : begin + size], data[begin + size :]


def _time_ms(tag: int, content: bytes) -> int:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year are of 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    found = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    return int(found.timestamp()) * 1000
