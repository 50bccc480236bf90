"""Reads the secret files named in a fleet: API keys, users with passwords, JWKS, and secrets that proxies send.

A missing file causes a warning, and no key is then accepted or sent. A file that cannot be parsed causes an error.
Messages never repeat the content of these files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path as File

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path, Severity, did_you_mean, show
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, parse
from lbctl.compile.allowed_files import may_read, refusal
from lbctl.compile.credential_files import KEY_LINE, USER_LINE, parse_keys, parse_users
from lbctl.compile.files import file_of, read_regular
from lbctl.ir.secrets import ApiKey, HeaderSecret, Secrets
from lbctl.model.fleet import FleetSource
from lbctl.model.node import Node, descend

MAX_BYTES = 1 << 20
"""Maximum size of a key file, in bytes."""
_MAX_SIBLINGS = 1000
"""Maximum number of files in a directory that are compared with the name of a missing file."""
_B64URL = re.compile(r"[A-Za-z0-9_-]{1,4096}", re.ASCII)
_PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "k"}
"""JWK members that occur only in private or symmetric keys (RFC 7518, section 6)."""
_HEADER_SECRET = re.compile(r"[!-~]([ -~]{0,2046}[!-~])?", re.ASCII)
Content = tuple[ApiKey, ...] | str | HeaderSecret
"""Content of a key file, which is its API keys, the text of a checked JWKS, or a header's secret."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file named in a route or a pool."""

    path: Path
    """Path of the value in the YAML."""
    node: Node
    """The value in the YAML."""

    @property
    def written(self) -> str:
        """Path of the file, as written in the fleet."""
        return str(self.node.value)

    @property
    def is_jwks(self) -> bool:
        """Whether the file is a JSON Web Key Set."""
        return self.path[-1] == "jwks_file"

    @property
    def has_users(self) -> bool:
        """Whether the file contains users with their passwords."""
        return self.path[-3:] == ("auth", "basic", "file")

    @property
    def is_sent(self) -> bool:
        """Whether the file is a secret that proxies send to a pool or to the picker."""
        return self.path[0] in ("pools", "control")


def read_secrets(source: FleetSource, required: bool, diagnostics: Diagnostics) -> Secrets:
    """Read every key file that the fleet names.

    LB503: a file is missing (an error if `required`) or does not contain a key. LB507 and LB121: a line is invalid.
    LB508: a JWKS is invalid. LB150: the text cannot be used as a header's secret.
    """
    _check_kinds(source, diagnostics)
    return secrets_of({file: read_key_file(source, file, required, diagnostics) for file in key_files(source)})


def _check_kinds(source: FleetSource, diagnostics: Diagnostics) -> None:
    """Report LB143 for a file that is used as two different kinds of file."""
    kinds: dict[str, tuple[bool, bool, bool]] = {}
    for file in key_files(source):
        kind = (file.is_jwks, file.has_users, file.is_sent)
        if kinds.setdefault(file.written, kind) != kind:
            message = f"{show(file.written)} is also used as another kind of file"
            diagnostics.add(
                Diagnostic("LB143", message, file.node.position, file.path, "use a separate file for each kind")
            )


def secrets_of(contents: Mapping[KeyFile, Content | None]) -> Secrets:
    """Collect the contents by path, as written in the fleet. Contents that are None are omitted."""
    keys = {file.written: content for file, content in contents.items() if isinstance(content, tuple)}
    sets = {file.written: content for file, content in contents.items() if isinstance(content, str)}
    headers = {file.written: content for file, content in contents.items() if isinstance(content, HeaderSecret)}
    return Secrets(keys, sets, headers)


def key_files(source: FleetSource) -> Iterator[KeyFile]:
    """Yield every key file named in the fleet, once for each place where it is named."""
    for name, route in source.fleet.routes.items():
        if route.auth is not None and route.auth.api_keys is not None:
            yield _named(source, ("routes", name, "auth", "api_keys", "file"))
        if route.auth is not None and route.auth.basic is not None:
            yield _named(source, ("routes", name, "auth", "basic", "file"))
        if route.auth is not None and route.auth.jwt is not None:
            yield _named(source, ("routes", name, "auth", "jwt", "jwks_file"))
    if source.fleet.control.picker.key_file is not None:
        yield _named(source, ("control", "picker", "key_file"))
    for name, pool in source.fleet.pools.items():
        if pool.credentials is not None:
            yield _named(source, ("pools", name, "credentials", "file"))
        node = descend(source.root, ("pools", name, "upstream", "headers")) if pool.upstream else None
        for header, value in (node.value if node is not None and isinstance(node.value, dict) else {}).items():
            if isinstance(value.value, dict):
                yield _named(source, ("pools", name, "upstream", "headers", header, "file"))


def read_key_file(source: FleetSource, file: KeyFile, required: bool, diagnostics: Diagnostics) -> Content | None:
    """Read one key file. Return None if it cannot be used.

    The reason why it cannot be used is added to `diagnostics` or reported by `check_files`.
    """
    if refusal(source, file.path, file.node) is not None:
        return None
    text = _text(source, file, required, diagnostics)
    if text is None:
        return None
    if file.is_sent:
        return _header_secret(file, text, diagnostics)
    if file.is_jwks:
        content: Content | None = text if _is_jwks(file, text, diagnostics) else None
    else:
        parse_lines = parse_users if file.has_users else parse_keys
        content = parse_lines(str(file_of(source, file.node)), text, diagnostics)
    if content is not None and not key_count(content):
        message = f"{show(file.written)} contains no key, so it authenticates no requests"
        hint = "put the issuer's public keys in the file" if file.is_jwks else USER_LINE if file.has_users else KEY_LINE
        diagnostics.add(Diagnostic("LB503", message, file.node.position, file.path, hint, "warning"))
    return content


def key_count(content: Content) -> int:
    """Return the number of keys in the content of a file."""
    if isinstance(content, HeaderSecret):
        return 1
    return len(json.loads(content)["keys"]) if isinstance(content, str) else len(content)


def _named(source: FleetSource, path: Path) -> KeyFile:
    node = descend(source.root, path)
    assert node is not None
    return KeyFile(path, node)


def _text(source: FleetSource, file: KeyFile, required: bool, diagnostics: Diagnostics) -> str | None:
    location = file_of(source, file.node)
    try:
        return read_regular(location, MAX_BYTES, partial(may_read, source, file.path, file.node)).decode("utf-8-sig")
    except OSError as error:
        reason = reason_of(error).lower()
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    hint = _similar(location, source) or "put the file there, or mount it where the proxy is rendered"
    effect = "requests are sent without it" if file.is_sent else "it authenticates no requests"
    message = f"{show(file.written)} cannot be read ({reason})" + ("" if required else f": {effect}")
    severity: Severity = "error" if required else "warning"
    diagnostics.add(Diagnostic("LB503", message, file.node.position, file.path, hint, severity))
    return None


def _similar(file: File, source: FleetSource) -> str:
    """Return a suggestion: a file in the same directory with a similar name.

    The fleet's YAML files are not suggested.
    """
    yaml = {File(name).name for name in source.roots}
    try:
        with os.scandir(file.parent) as entries:
            names = [entry.name for entry in islice(entries, _MAX_SIBLINGS) if entry.is_file()]
    except OSError:
        return ""
    return did_you_mean(file.name, [name for name in names if name not in yaml])


def _header_secret(file: KeyFile, text: str, diagnostics: Diagnostics) -> HeaderSecret | None:
    """Return the secret without surrounding whitespace. Return None and report LB150 if a header cannot contain it."""
    secret = text.strip()
    if _HEADER_SECRET.fullmatch(secret):
        return HeaderSecret(secret)
    problem = "is empty" if not secret else "is not a single line of at most 2048 printable ASCII characters"
    message, hint = f"{show(file.written)} {problem}", "put only the secret in the file, on one line"
    diagnostics.add(Diagnostic("LB150", message, file.node.position, file.path, hint))
    return None


def _is_jwks(file: KeyFile, text: str, diagnostics: Diagnostics) -> bool:
    problem = _jwks_problem(text)
    if problem:
        message = f"this file is not a JWKS: {problem}"
        diagnostics.add(Diagnostic("LB508", message, file.node.position, file.path, '{"keys": [ … ]}'))
    return not problem


def _jwks_problem(text: str) -> str:
    try:
        document = parse(text)
    except InvalidJsonError as error:
        return str(error)
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) and isinstance(key.get("kty"), str) for key in keys):
        return "it does not contain a list of keys"
    if any(_PRIVATE & key.keys() for key in keys):
        return "it contains private or symmetric keys; a proxy needs only the public keys"
    if not all(_B64URL.fullmatch(str(key[part])) for key in keys for part in ("n", "e", "x", "y") if part in key):
        return "a key has a number that is not base64url"
    return ""
