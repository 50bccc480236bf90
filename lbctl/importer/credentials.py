"""Converts access control to a route's `auth`, with key files that the operator fills in and external services."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft
from lbctl.importer.statement import Statement

KEY_FILE = "secrets/api-keys.yaml"
USER_FILE = "secrets/users.yaml"
SENT = ("authorization", "cookie", "x-api-key")
"""Request headers that an authorization service usually needs."""
_REALM = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._:/@+-]{0,62}[A-Za-z0-9])?")


def keys(draft: Draft, route: Path, header: str, secrets: Sequence[Statement], *statements: Statement) -> None:
    """Protect a route with keys. `secrets` contains the directives that contain them."""
    _put(draft, route, {"api_keys": {"file": KEY_FILE, "header": header}}, *statements, *secrets)
    for item in secrets:
        if draft.ledger.is_reported(item):
            continue
        draft.ledger.secret(
            item,
            f"the keys in {header} are secrets and were not copied",
            f"`lbctl key new TENANT -f {KEY_FILE}` creates keys; until the file contains one, every request is refused",
        )


def users(draft: Draft, route: Path, realm: str, secret: Statement, *statements: Statement) -> None:
    """Protect a route with user names and passwords. `secret` is the directive that names or contains them."""
    shown = {"realm": realm} if _REALM.fullmatch(realm) else {}
    _put(draft, route, {"basic": {"file": USER_FILE, **shown}}, secret, *statements)
    draft.ledger.secret(
        secret,
        "passwords are secrets and were not copied",
        f"write `USER: PASSWORD` lines to {USER_FILE} with mode 0600; until the file contains one, every "
        "request is refused",
    )


def service(draft: Draft, route: Path, external: dict[str, Any], *statements: Statement) -> None:
    """Authorize a route's requests with an external service."""
    _put(draft, route, {"external": external, "forward_credentials": True}, *statements)


def _put(draft: Draft, route: Path, auth: dict[str, Any], *statements: Statement) -> None:
    """Set a route's `auth`. If a second kind of credentials is found, the route is closed."""
    present = draft.get((*route, "auth"))
    if present is not None and present != auth:
        why = "the route requires two kinds of credentials, but lbctl supports only one per route"
        for item in statements:
            draft.ledger.omit(item, f"{why}: the route refuses all requests", route)
        draft.close(route, why, by_hand="auth")
    elif not draft.answers(route):
        draft.put((*route, "auth"), auth, *statements)
    else:
        draft.ledger.carry(route, *statements)


def url(host: str, port: str, path: str) -> str | None:
    """Return the URL of a service that proxies can query, or None if the host is not an IP address."""
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if not re.fullmatch(r"(/[A-Za-z0-9._~/-]*)?", path):
        return None
    return f"http://{f'[{host}]' if address.version == 6 else host}:{port}{path or '/'}"
