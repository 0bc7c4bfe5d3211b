"""Certificates made when a test needs them: good ones, and wrong in every way.

``Authority`` issues them and writes PEM files into a directory; its keys are of the P-256 curve,
which takes no time.  Files are named by the caller.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
DAY = datetime.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its key, as files and as an object."""

    certificate_file: str
    key_file: str
    certificate: x509.Certificate


def _name(common: str, unit: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if unit is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name(parts)


def _write(path: str, data: bytes) -> str:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, 0o600)
    return path


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


_OF_A_CA = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


class Authority:
    """A CA; ``below`` makes an intermediate one."""

    def __init__(self, directory: object, name: str = "Test CA") -> None:
        self.directory = str(directory)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._chain = b""
        self._certificate = self._sign(
            _name(name), self._key.public_key(), _name(name), self._key, is_ca=True
        )
        self.ca_file = _write(self._path(f"{name}.pem"), _pem(self._certificate))

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name.replace(" ", "-"))

    def below(self, name: str) -> Authority:
        """Return an intermediate CA."""
        child = Authority.__new__(Authority)
        child.directory = self.directory
        child._key = ec.generate_private_key(ec.SECP256R1())
        child._certificate = self._sign(
            _name(name), child._key.public_key(), self._certificate.subject, self._key, is_ca=True
        )
        child._chain = _pem(child._certificate) + self._chain
        child.ca_file = self.ca_file
        return child

    def issue(
        self,
        name: str,
        *,
        common_name: str = "anybody",
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        unit: str | None = None,
        usages: Sequence[x509.ObjectIdentifier] = (SERVER, CLIENT),
        from_days: float = -1,
        to_days: float = 30,
        with_chain: bool = True,
        self_signed: bool = False,
    ) -> Issued:
        """Issue a certificate into ``name.pem`` and ``name.key``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(common_name, unit)
        alternatives: list[x509.GeneralName] = [x509.DNSName(host) for host in dns]
        alternatives += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
        certificate = self._sign(
            subject,
            key.public_key(),
            subject if self_signed else self._certificate.subject,
            key if self_signed else self._key,
            alternatives=alternatives,
            usages=usages,
            from_days=from_days,
            to_days=to_days,
        )
        pem = _pem(certificate) + (self._chain if with_chain else b"")
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Issued(
            _write(self._path(f"{name}.pem"), pem),
            _write(self._path(f"{name}.key"), secret),
            certificate,
        )

    def itself(self) -> Issued:
        """Return its own certificate, to be revoked by who is above it."""
        return Issued("", "", self._certificate)

    def revoke(self, *issued: Issued) -> str:
        """Write the list of what was revoked and return its path."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - DAY)
            .next_update(now + DAY)
        )
        for each in issued:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(each.certificate.serial_number)
                .revocation_date(now - DAY)
                .build()
            )
        revoked = builder.sign(self._key, hashes.SHA256())
        return _write(self._path("revoked.crl"), revoked.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        issuer: x509.Name,
        issuer_key: ec.EllipticCurvePrivateKey,
        *,
        is_ca: bool = False,
        alternatives: Sequence[x509.GeneralName] = (),
        usages: Sequence[x509.ObjectIdentifier] = (),
        from_days: float = -1,
        to_days: float = 30,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + from_days * DAY)
            .not_valid_after(now + to_days * DAY)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
        )
        if is_ca:  # which strict verification, the default from Python 3.13 on, asks for
            builder = builder.add_extension(_OF_A_CA, critical=True)
        if alternatives:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternatives), critical=False
            )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(issuer_key, hashes.SHA256())
