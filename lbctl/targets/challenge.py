"""What a 401 asks for: the value of its WWW-Authenticate."""

from __future__ import annotations

from lbctl.ir.routes import Auth

BEARER = "Bearer"


def challenge(auth: Auth | None) -> str:
    """Return the challenge of a route: a user and a password, or a key or token."""
    if auth is None or auth.api_keys is None or auth.api_keys.realm is None:
        return BEARER
    return f'Basic realm="{auth.api_keys.realm}", charset="UTF-8"'
