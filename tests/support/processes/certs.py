"""Certificates for one test: a CA, and the leaf certificates that it signs (ECDSA P-256, valid for two days)."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files. `bundle` contains both, as HAProxy requires."""

    certificate: Path
    key: Path
    bundle: Path


class Authority:
    """A certificate authority with its files in `directory`; `ca` is its own certificate."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._subject = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._sign(self._subject, self._key, constraints, [])
        self.ca = directory / f"{name.replace(' ', '-')}.crt"
        self.ca.write_bytes(certificate)

    def revoke(self, *pairs: Pair, expired: bool = False) -> bytes:
        """Return the revocation list in PEM. It contains exactly the certificates in `pairs`."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._subject)
        builder = builder.last_update(now - 2 * _DAY).next_update(now + (-_DAY if expired else _DAY))
        for pair in pairs:
            serial = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).serial_number
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - _DAY).build()
            builder = builder.add_revoked_certificate(revoked)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, hosts: Sequence[str] = ()) -> Pair:
        """Issue a certificate for servers and clients, with the common name `name` and the alternative names `hosts`
        (DNS, IP, URI), by default `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=False, path_length=None)
        certificate = self._sign(_name(name), key, constraints, [_alternative(host) for host in hosts or (name,)])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        stem = self._directory / name.replace("*", "any")
        pair = Pair(*(stem.with_name(stem.name + end) for end in (".crt", ".key", ".pem")))
        pair.certificate.write_bytes(certificate)
        pair.key.write_bytes(private)
        pair.bundle.write_bytes(certificate + private)
        return pair

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        constraints: x509.BasicConstraints,
        names: Sequence[x509.GeneralName],
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(constraints, critical=True)
            .add_extension(_usage(constraints.ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def server_context(pair: Pair, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return a context for a server with that certificate. With `client_ca` it requires a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    context.load_cert_chain(pair.certificate, pair.key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path, pair: Pair | None = None, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return a context for a client that trusts only `ca`, sends `pair` if requested, and offers `alpn`."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
