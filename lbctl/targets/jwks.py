"""JSON Web Key Sets: the public keys with which Envoy verifies tokens."""

from __future__ import annotations

import json

_KEY_FIELDS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""Maps each key type to the required fields of its public key."""


def has_usable_key(text: str) -> bool:
    """Return whether a set contains a key with which Envoy can verify tokens.

    Envoy rejects a set without such a key.
    """
    public_keys = json.loads(text)["keys"]
    return any(
        all(public_key.get(field) for field in _KEY_FIELDS.get(public_key["kty"], ("",))) for public_key in public_keys
    )
