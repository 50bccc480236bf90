"""The key files that routes name: API keys with their tenants, and JWKS.

A missing file is a warning and closes the door (no key is known); a file that cannot be understood is an error. Nothing
that stands in these files is ever repeated in a message.
"""

from __future__ import annotations

import json
import re

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, show
from lbctl.compile.files import file_of
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.model.fleet import Source
from lbctl.model.node import Node, descend
from lbctl.model.values import NAME

_LARGEST = 1 << 20
"""Bytes of a key file."""
_KEY = re.compile(r"[!-~]{1,256}", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_B64URL = re.compile(r"[A-Za-z0-9_-]{1,4096}", re.ASCII)
_PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "k"}
"""Members of a JWK that only a private or a symmetric key has (RFC 7518, section 6)."""


def read_secrets(source: Source, required: bool, diagnostics: Diagnostics) -> Secrets:
    """The content of every key file that a route names. LB503 for one that is missing (an error if `required`) or
    for a set without a key, LB507 for bad lines of keys, LB508 for what is no JWKS."""
    keys: dict[str, tuple[ApiKey, ...]] = {}
    sets: dict[str, str] = {}
    for name, route in source.fleet.routes.items():
        if route.auth is None:
            continue
        if route.auth.api_keys is not None:
            path = ("routes", name, "auth", "api_keys", "file")
            text = _text(source, path, required, diagnostics)
            if text is not None:
                keys[route.auth.api_keys.file] = _api_keys(_place(source, path), text, diagnostics)
        if route.auth.jwt is not None:
            path = ("routes", name, "auth", "jwt", "jwks_file")
            text = _text(source, path, required, diagnostics)
            if text is not None and _is_jwks(source, path, text, diagnostics):
                sets[route.auth.jwt.jwks_file] = text
                _check_empty(source, path, text, diagnostics)
    return Secrets(keys, sets)


def _place(source: Source, path: tuple[str, ...]) -> str:
    """Where the file is, as its user would write it here."""
    node = descend(source.root, path)
    assert node is not None
    return str(file_of(source, node))


def _text(source: Source, path: tuple[str, ...], required: bool, diagnostics: Diagnostics) -> str | None:
    node = descend(source.root, path)
    assert node is not None
    place = file_of(source, node)
    try:
        data = place.read_bytes() if place.is_file() and place.stat().st_size <= _LARGEST else None
        text = None if data is None else data.decode()
    except (OSError, UnicodeDecodeError):
        text = None
    if text is None:
        hint = "put the file there, or mount it where the proxy is rendered"
        message = f"{show(str(node.value))} cannot be read: nobody is let in by it"
        diagnostics.add(Diagnostic("LB503", message, node.position, path, hint, "error" if required else "warning"))
    return text


def _api_keys(file: str, text: str, diagnostics: Diagnostics) -> tuple[ApiKey, ...]:
    found: dict[str, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, colon, tenant = (part.strip() for part in stripped.rpartition(": "))
        problem = _problem(key, colon, tenant, found)
        if problem:
            hint = '"key: tenant" or "sha256:<64 hex digits>: tenant"'
            diagnostics.add(Diagnostic("LB507", problem, Position(file, number, 1), (), hint))
        else:
            found[key] = ApiKey(tenant, sha256=key[7:]) if _HASH.fullmatch(key) else ApiKey(tenant, key=key)
    return tuple(found[key] for key in sorted(found))


def _problem(key: str, colon: str, tenant: str, found: dict[str, ApiKey]) -> str:
    if not colon or not _KEY.fullmatch(key) or (key.startswith("sha256:") and not _HASH.fullmatch(key)):
        return "this line is no key with its tenant"
    if not NAME.fullmatch(tenant):
        return "what stands behind the colon is not the name of a tenant"
    return "this key stands twice" if key in found else ""


def _is_jwks(source: Source, path: tuple[str, ...], text: str, diagnostics: Diagnostics) -> bool:
    problem = _jwks_problem(text)
    if problem:
        node = descend(source.root, path)
        position = node.position if isinstance(node, Node) else None
        diagnostics.add(Diagnostic("LB508", f"this file is no JWKS: {problem}", position, path, '{"keys": [ … ]}'))
    return not problem


def _check_empty(source: Source, path: tuple[str, ...], text: str, diagnostics: Diagnostics) -> None:
    if not json.loads(text)["keys"]:
        node = descend(source.root, path)
        position = node.position if isinstance(node, Node) else None
        message = "this set holds no key: nobody is let in by it"
        diagnostics.add(Diagnostic("LB503", message, position, path, "the issuer's public keys", "warning"))


def _jwks_problem(text: str) -> str:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "not JSON"
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) and isinstance(key.get("kty"), str) for key in keys):
        return "it holds no list of keys"
    if any(_PRIVATE & key.keys() for key in keys):
        return "it holds private or symmetric keys; a proxy needs the public ones alone"
    if not all(_B64URL.fullmatch(str(key[part])) for key in keys for part in ("n", "e", "x", "y") if part in key):
        return "a key has a number that is not base64url"
    return ""
