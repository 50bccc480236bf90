"""Options of `lbctl bootstrap` for TLS to the control plane."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support.processes.certs import Authority

TLS_OPTIONS = ["--tls-ca", "{ca}", "--tls-cert", "{certificate}", "--tls-key", "{key}"]


def certificate_paths(directory: Path) -> dict[str, str]:
    """Issue a certificate for a node, and return the paths of its files and of the CA bundle."""
    authority = Authority(directory / "pki")
    pair = authority.issue("edge-1")
    return {"ca": str(authority.ca), "certificate": str(pair.certificate), "key": str(pair.key)}


def with_certificates(arguments: Iterable[str], directory: Path) -> list[str]:
    """Replace the placeholders of TLS_OPTIONS by the paths of new certificates."""
    paths = certificate_paths(directory)
    return [item.format(**paths) if item in TLS_OPTIONS else item for item in arguments]
