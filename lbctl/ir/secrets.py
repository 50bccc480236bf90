"""What the key files of routes, listeners and pools hold. It travels beside the Topology: no diff or state ever
contains it, and of a version it is at most part of what is hashed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`key` in the clear or, where only its hash was written, `sha256` in hex. Neither is ever shown."""

    tenant: str
    key: str = field(default="", repr=False)
    sha256: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Secrets:
    """By the path of the file as the fleet writes it. A path that is absent could not be read: nobody gets in."""

    api_keys: Mapping[str, tuple[ApiKey, ...]] = field(default_factory=dict)
    jwks: Mapping[str, str] = field(default_factory=dict)
    """The text of a JSON Web Key Set, checked: an object with a list of public keys."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Certificates, their keys and authorities, as PEM; for proxies that get them from a control plane."""
