"""Locates the machine's trusted certificate authorities as one PEM file, for `ca: system`."""

from __future__ import annotations

from pathlib import Path

WORD = "system"
"""The value of `ca` that means this file."""
PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The file of Debian, Ubuntu and Alpine, of Fedora and RHEL, of SUSE, and of BSD."""


def system_ca() -> str:
    """Return the first of `PLACES` that exists here; the first of all where none does."""
    return next((place for place in PLACES if Path(place).is_file()), PLACES[0])
