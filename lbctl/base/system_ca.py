"""Locates the machine's trusted certificate authorities as one PEM file, for `ca: system`."""

from __future__ import annotations

from pathlib import Path

WORD = "system"
"""The `ca` value that selects this file."""
PLACES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Paths of this file on Debian, Ubuntu and Alpine; on Fedora and RHEL; on SUSE; and on BSD."""


def system_ca() -> str:
    """Return the first path in `PLACES` that exists on this machine, or the first path if none exists."""
    return next((place for place in PLACES if Path(place).is_file()), PLACES[0])
