"""The lines of a file of users: `user: password`, as YAML reads them; the user is the tenant.

What a client sends is `user:password` in Base64, so that is what a proxy compares, as it compares an API key. Messages
never repeat the text of a line.
"""

from __future__ import annotations

import re
from base64 import b64encode

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.compile.key_lines import MAX_LINE_CHARACTERS, unquoted
from lbctl.ir.secrets import ApiKey
from lbctl.model.values import NAME

LINE = '"user: password", a password of 1 to 256 printable ASCII characters'
_LINE = re.compile(
    r"""(?P<user>"[^"\\]*"|'[^']*'|[^\s"'#:]+)\s*:\s+"""
    r"""(?P<password>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#].*?)(?:\s+\#.*)?"""
)
_PASSWORD = re.compile(r"[ -~]{1,256}", re.ASCII)


def parse(file: str, text: str, diagnostics: Diagnostics) -> tuple[ApiKey, ...] | None:
    """Parse the users, sorted by name; None, with LB507 for each wrong line, if a line is wrong."""
    users: dict[str, ApiKey] = {}
    valid = True
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "---":
            continue
        problem = _read(stripped, number, users)
        if problem:
            valid = False
            position = Position(file, number, line.index(stripped) + 1)
            diagnostics.add(Diagnostic("LB507", problem, position, (), LINE))
    return tuple(users[user] for user in sorted(users)) if valid else None


def credential(user: str, password: str) -> str:
    """Return what follows `Basic ` in the header of a client."""
    return b64encode(f"{user}:{password}".encode()).decode()


def _read(line: str, number: int, users: dict[str, ApiKey]) -> str:
    """Add the user of a line; return what is wrong with it, or an empty string."""
    parts = _LINE.fullmatch(line) if len(line) <= MAX_LINE_CHARACTERS else None
    if parts is None:
        return "this line is no user with a password"
    user, password = unquoted(parts["user"]), unquoted(parts["password"])
    if user is None or not NAME.fullmatch(user):
        return "the text before the colon is no name: lower-case letters, digits and . _ -"
    if password is None or not _PASSWORD.fullmatch(password):
        return "the text after the colon is no password"
    if user in users:
        return "this user occurs twice"
    users[user] = ApiKey(user, key=credential(user, password), line=number)
    return ""
