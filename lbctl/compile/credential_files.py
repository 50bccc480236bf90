"""Parses files that contain clients' API keys (`key: tenant`) or users (`user: password`), one per line, like YAML.

Key files usually have the suffix .yaml, and tools write them as YAML. For this reason, a key or a tenant can be quoted,
and ` #` begins a comment. Keys without quotes are simpler than in YAML, because every visible ASCII character is
literal. The result is used for all proxies. A password's user is the tenant. Messages never repeat the text of a line.
"""

from __future__ import annotations

import re
from base64 import b64encode

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.ir.secrets import ApiKey
from lbctl.model.values import NAME

KEY_LINE = '"key: tenant" or "sha256:<64 hex digits>: tenant"'
_KEY_LINE = re.compile(
    r"""(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#]\S*?)\s*:\s+"""
    r"""(?P<tenant>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#].*?)(?:\s+\#.*)?"""
)
_MAX_LINE_CHARACTERS = 2000
"""Maximum length of a line, in characters."""
_KEY = re.compile(r"[!-~]{1,256}", re.ASCII)
_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_ESCAPE = re.compile(r"\\(.)")
_PREFIX = re.compile(r"(?:sk|pk|hf|nvapi|lbctl|gh[pousr]|xox[abpr])[-_](?=.*[0-9]|.{12})", re.ASCII)
_RANDOM = re.compile(r"(?=[a-z]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{10,}|[a-z]{24,}", re.ASCII | re.IGNORECASE)
_SHORT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,19}", re.ASCII | re.IGNORECASE)
USER_LINE = '"user: password", a password of 1 to 256 printable ASCII characters'
_USER_LINE = re.compile(
    r"""(?P<user>"[^"\\]*"|'[^']*'|[^\s"'#:]+)\s*:\s+"""
    r"""(?P<password>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#].*?)(?:\s+\#.*)?"""
)
_PASSWORD = re.compile(r"[ -~]{1,256}", re.ASCII)


def parse_keys(file: str, text: str, diagnostics: Diagnostics) -> tuple[ApiKey, ...] | None:
    """Parse the keys in their order. Return None if a line is invalid.

    Reports LB507, and LB121 if the key and the tenant are swapped.
    """
    keys: dict[str, ApiKey] = {}
    valid = True
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        key, problem = _read_key(stripped, number, keys)
        if problem is not None:
            valid = False
            position = Position(file, number, line.index(stripped) + problem.column)
            diagnostics.add(Diagnostic(problem.code, problem.message, position, (), problem.hint))
        elif key is not None:
            keys[f"sha256:{key.sha256}" if key.sha256 else key.key] = key
    return tuple(keys[key] for key in sorted(keys)) if valid else None


class _Problem:
    """The problem with a line. `column` is counted from 1 and does not include the line's indentation."""

    def __init__(self, message: str, column: int = 1, code: str = "LB507", hint: str = KEY_LINE) -> None:
        self.message = message
        self.column = column
        self.code = code
        self.hint = hint


def _read_key(line: str, number: int, keys: dict[str, ApiKey]) -> tuple[ApiKey | None, _Problem | None]:
    parts = _KEY_LINE.fullmatch(line) if len(line) <= _MAX_LINE_CHARACTERS else None
    if parts is None:
        if line[0] in "\"'":
            return None, _Problem("this quote does not start a quoted key with a tenant")
        return None, _Problem("this line does not consist of a key and its tenant")
    key, tenant = _unquoted(parts["key"]), _unquoted(parts["tenant"])
    tenant_column = parts.start("tenant") + 1
    if key is None or tenant is None:
        message = "within double quotes, a backslash is allowed only before a quote or another backslash"
        return None, _Problem(
            message, 1 if key is None else tenant_column, hint="use single quotes, which have no escapes"
        )
    if not _KEY.fullmatch(key) or (key.startswith("sha256:") and not _HASH.fullmatch(key)):
        return None, _Problem("this line does not consist of a key and its tenant")
    if is_secret(tenant) and _is_name(key):
        message = "key and tenant are swapped: the text after the colon looks like a key, the text before it does not"
        return None, _Problem(
            message, tenant_column, "LB121", "put the key first, and replace this key, because it is compromised"
        )
    if not NAME.fullmatch(tenant):
        return None, _Problem("the text after the colon is not a tenant name", tenant_column)
    if key in keys:
        return None, _Problem("this key occurs twice")
    if _HASH.fullmatch(key):
        return ApiKey(tenant, sha256=key[7:], line=number), None
    return ApiKey(tenant, key=key, line=number), None


def is_secret(word: str) -> bool:
    """Return whether the word looks like a key because it has a known prefix or a long random part."""
    return bool(_PREFIX.match(word) or _RANDOM.search(word) or _HASH.fullmatch(word))


def _is_name(word: str) -> bool:
    return bool(_SHORT_NAME.fullmatch(word)) and not is_secret(word) and not word.startswith("sk-")


def _unquoted(text: str) -> str | None:
    """Remove quotes as in YAML. Return None for an unsupported escape."""
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    if text[0] != '"':
        return text
    inner = text[1:-1]
    if any(escaped not in '"\\/' for escaped in _ESCAPE.findall(inner)):
        return None
    return _ESCAPE.sub(r"\1", inner)


def parse_users(file: str, text: str, diagnostics: Diagnostics) -> tuple[ApiKey, ...] | None:
    """Parse the users, sorted by name. Return None if a line is invalid. Reports LB507 for each invalid line."""
    users: dict[str, ApiKey] = {}
    valid = True
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        problem = _read_user(stripped, number, users)
        if problem:
            valid = False
            position = Position(file, number, line.index(stripped) + 1)
            diagnostics.add(Diagnostic("LB507", problem, position, (), USER_LINE))
    return tuple(users[user] for user in sorted(users)) if valid else None


def credential(user: str, password: str) -> str:
    """Return the text after `Basic ` in the client's header."""
    return b64encode(f"{user}:{password}".encode()).decode()


def _read_user(line: str, number: int, users: dict[str, ApiKey]) -> str:
    """Add the user in a line. Return the problem with the line, or an empty string."""
    parts = _USER_LINE.fullmatch(line) if len(line) <= _MAX_LINE_CHARACTERS else None
    if parts is None:
        return "this line does not consist of a user and a password"
    user, password = _unquoted(parts["user"]), _unquoted(parts["password"])
    if user is None or not NAME.fullmatch(user):
        return "the text before the colon is not a name: lowercase letters, digits and . _ -"
    if password is None or not _PASSWORD.fullmatch(password):
        return "the text after the colon is not a password"
    if user in users:
        return "this user occurs twice"
    users[user] = ApiKey(user, key=credential(user, password), line=number)
    return ""
