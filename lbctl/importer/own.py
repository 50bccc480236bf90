"""Writes directives that have no matching key but that `include` supports to own-lines files next to the fleet.

These files are written only together with the fleet file. Otherwise, the lines remain comments.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbctl.importer.draft import Draft
from lbctl.importer.secrets import holds_secret, is_random
from lbctl.importer.statement import Statement

_SUFFIX = {"nginx": "conf", "haproxy": "cfg", "envoy": "yaml"}


def keep(draft: Draft, kind: str, place: str, owner: str, line: str, *statements: Statement) -> bool:
    """Add a line to the file for a place. Returns whether it is kept there. A line with a secret is never kept."""
    if not draft.keeps_own or _holds_secret(draft, line, statements):
        return False
    file = f"own/{'-'.join(filter(None, (kind, place, owner)))}.{_SUFFIX[kind]}"
    path = ("proxies", kind, "include", place, *([owner] if owner else []))
    lines = draft.own.setdefault(file, [])
    if line not in lines:
        lines.append(line)
    draft.put(("proxies", kind, "kind"), kind)
    draft.put(path, [file], *statements)
    return True


def keep_document(draft: Draft, kind: str, place: str, name: str, text: str, *statements: Statement) -> bool:
    """Add a separate file to a place. Returns whether it is kept."""
    if not draft.keeps_own or _holds_secret(draft, text, statements):
        return False
    file = f"own/{kind}-{draft.free_own_name(name)}.{_SUFFIX[kind]}"
    path = ("proxies", kind, "include", place)
    draft.own[file] = [text]
    draft.put(("proxies", kind, "kind"), kind)
    draft.put(path, [*(draft.get(path) or []), file], *statements)
    return True


def _holds_secret(draft: Draft, text: str, statements: Iterable[Statement]) -> bool:
    secrets = draft.ledger.secrets
    return holds_secret(text) or is_random(text) or secrets.inside(text) or any(map(secrets.holds, statements))
