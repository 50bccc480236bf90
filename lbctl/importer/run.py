"""Converts any kind of proxy's configuration files to the text of a fleet file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer import prefixes, redaction, validate, write
from lbctl.importer.draft import CLOSED_STATUS, Draft, is_closed

_NAMED_BY_REPLICA = "mcp-session-id"
"""Header in which MCP servers name a session."""
_MAX_NAMED = 12
"""Maximum number of closed routes named in a finding."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import."""

    text: str
    draft: Draft
    """The fleet as values, with the account of every directive."""

    @property
    def own(self) -> dict[str, str]:
        """Maps the path of each own-lines file, relative to the fleet, to its content."""
        return self.draft.own_files()


def run(kind: str, files: Sequence[str], diagnostics: Diagnostics, *, own: bool = True) -> Imported | None:
    """Import the files. Return None, with the reason in `diagnostics`, if nothing in them can be imported.

    Without `own`, lines that would be written to files next to the fleet file remain comments.
    """
    draft = _READERS[kind](files, diagnostics, own)
    if draft is None or diagnostics.failed:
        return None
    redaction.settle(draft)
    remaining = validate.settle(draft)
    prefixes.settle(draft)
    draft.ledger.report_secrets()
    _advise_sessions(draft)
    diagnostics.extend(remaining)
    if not draft.fleet["routes"]:
        hint = "the configuration needs at least one rule that forwards, redirects or answers requests"
        diagnostics.add(Diagnostic("LB982", "no route could be imported", Position(files[0], 1, 1), hint=hint))
        return None
    _report_closed(draft)
    diagnostics.extend(draft.ledger.misrouted)
    return None if remaining else Imported(write.text(draft, kind, " ".join(files)), draft)


def _advise_sessions(draft: Draft) -> None:
    """Report pools that hash by a session ID created by replicas, because the first request does not contain it."""
    for name, pool in draft.fleet["pools"].items():
        key = pool.get("balance", {}).get("hash", {}).get("key", {}).get("header")
        if key == _NAMED_BY_REPLICA:
            message = (
                f"pool {name} hashes {key}, which replicas create: the hash might not select the replica that has the "
                "session"
            )
            hint = f"replace `balance` with `affinity: {{header: {key}}}`"
            for statement in draft.ledger.carriers(("pools", name, "balance", "hash"))[:1]:
                draft.ledger.advise(statement, message, hint)


def _report_closed(draft: Draft) -> None:
    """Report the routes that reject all requests because they could not be converted."""
    routes = draft.fleet["routes"]
    closed = [name for name, route in routes.items() if is_closed(route)]
    origins = {name: origin for name in closed if (origin := draft.origins.get(("routes", name)))}
    if not closed:
        return
    named = [f"{name} ({write.place_of(origins[name].position)})" if name in origins else name for name in closed]
    number = "1 route returns" if len(closed) == 1 else f"{len(closed)} routes return"
    more = f", and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    message = f"{number} {CLOSED_STATUS}: {', '.join(named[:_MAX_NAMED])}{more}"
    serves = any(key in route for route in routes.values() for key in ("pool", "split"))
    first = min((item.position for item in origins.values()), default=None)
    keys = {key for path, item in draft.closed.items() if path[1] in closed for key in item.by_hand}
    protecting = sorted(keys - {"match"})
    written = f", add `{'`, `'.join(protecting)}` if a rule protected the route" if protecting else ""
    written += ", complete each incomplete `match`" if "match" in keys else ""
    hint = (
        f"each route's comment contains the reason and the pool: write the pool by hand{written}, or remove the route"
    )
    finding = Diagnostic("LB988", f"no route serves requests: {message}", first, ("routes",), hint)
    if serves:
        finding = replace(finding, message=message, severity="warning")
    draft.ledger.diagnostics.add(finding)


def _nginx(files: Sequence[str], diagnostics: Diagnostics, own: bool) -> Draft | None:
    from lbctl.importer.nginx.convert import convert
    from lbctl.importer.nginx.read import read

    statements = [item for file in files for item in read(file, diagnostics)]
    return None if diagnostics.failed else convert(statements, files[0], diagnostics, own=own)


def _haproxy(files: Sequence[str], diagnostics: Diagnostics, own: bool) -> Draft | None:
    from lbctl.importer.haproxy.convert import convert
    from lbctl.importer.haproxy.read import read

    statements = read(files, diagnostics)
    return None if diagnostics.failed else convert(statements, files[0], diagnostics, own=own)


def _envoy(files: Sequence[str], diagnostics: Diagnostics, own: bool) -> Draft | None:
    from lbctl.importer.envoy.convert import convert
    from lbctl.importer.envoy.read import read

    for file in files[1:]:
        message = "an Envoy configuration is a single file: pass only one file"
        diagnostics.add(Diagnostic("LB980", message, Position(file, 1, 1)))
    root = read(files[0], diagnostics)
    return None if root is None or diagnostics.failed else convert(root, files[0], diagnostics, own=own)


_READERS: dict[str, Callable[[Sequence[str], Diagnostics, bool], Draft | None]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "envoy": _envoy,
}
KINDS = tuple(_READERS)
"""Kinds of proxies whose configurations can be imported."""
