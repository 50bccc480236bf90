"""The contents of the key files that routes, listeners and pools use.

They are kept separate from the Topology, so that no diff or state ever contains them, and a version contains at most
their hash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lbctl.base.urls import digest

CREDENTIAL_HEADERS = frozenset(
    ("authorization", "proxy-authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key")
)
"""Lowercase names of request headers whose value is always a credential."""
_LIKE_A_CREDENTIAL = re.compile(
    r"auth|key|token|secret|passw|passphrase|pwd|(?:^|[-_])pw(?:$|[-_])|cookie|credential", re.IGNORECASE
)
_LIKE_A_SESSION = re.compile("sess|sid", re.IGNORECASE)
_OF_ANSWERS = frozenset(("set-cookie", "www-authenticate", "proxy-authenticate"))
"""Response headers with similar names. These headers do not contain clients' credentials."""
_KNOWN_FORM = re.compile(
    r"\bsk-(?=[\w-]*[0-9])(?:[A-Za-z0-9]+[_-])*[A-Za-z0-9]{16,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b|\bnvapi-[\w-]{20,}"
    r"|\bxox[abpr]-[A-Za-z0-9-]{10,}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.|(?i:\b(?:bearer|basic))\s+(?=\S*(?:[0-9]|[a-z][A-Z]))[\w.~+/=-]{8,}"
    r"|(?i:[?&](?:token|api_?key|key|password|secret|sig)=[^&{]{4,})"
)
"""Known secret formats. Strings that might be prose match only with a digit or a change of case."""


def looks_like_secret(text: str) -> bool:
    """Return whether a string contains a key or token in a known format, such as `sk-…`, `hf_…` or a JSON Web Token."""
    return _KNOWN_FORM.search(text) is not None


def may_hold_credential(header: str) -> bool:
    """Return whether a header's value may be a credential, judging by the header's name."""
    return header.lower() not in _OF_ANSWERS and _LIKE_A_CREDENTIAL.search(header) is not None


def cookie_may_hold_credential(cookie: str) -> bool:
    """Return whether a cookie's value may be a credential, judging by its name. Session cookies are credentials."""
    return _LIKE_A_CREDENTIAL.search(cookie) is not None or _LIKE_A_SESSION.search(cookie) is not None


def is_credential(header: str, value: str) -> bool:
    """Return whether a header's value may be a credential, judging by the header's name or the value's format."""
    return may_hold_credential(header) or looks_like_secret(value)


def shown_value(header: str, value: str) -> str:
    """Return a header's value for display, or a digest if it may be a credential."""
    return digest(value) if is_credential(header, value) else value


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, in clear text or as a hash. The key is never displayed."""

    tenant: str
    key: str = field(default="", repr=False)
    """The key, if the file contains it in clear text."""
    sha256: str = field(default="", repr=False)
    """Hexadecimal hash of the key, if the file contains only the hash."""
    line: int = field(default=0, repr=False, compare=False)
    """Line number in the file, from 1."""


@dataclass(frozen=True, slots=True)
class HeaderSecret:
    """A secret that a proxy sends in a header. The secret is never displayed."""

    value: str = field(repr=False)
    """The secret, which consists of visible ASCII characters, with spaces only between them."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """File contents by path, as written in the fleet.

    Files that could not be read are missing, so no request can authenticate with them.
    """

    api_keys: Mapping[str, tuple[ApiKey, ...]] = field(default_factory=dict)
    """Maps a path to the keys in the file."""
    jwks: Mapping[str, str] = field(default_factory=dict)
    """Maps a path to the text of a JSON Web Key Set, which has been checked to be an object with a list of public
    keys."""
    headers: Mapping[str, HeaderSecret] = field(default_factory=dict)
    """Maps a path to the secret sent with requests to a hosted API."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Certificates, keys and CA bundles in PEM format, for proxies that get them from a control plane."""
    ca_bundles: Mapping[str, str] = field(default_factory=dict)
    """Maps a path to the certificates in a CA bundle in PEM format, for objects that contain them."""
