"""The fleet under construction, as plain values by path, each with the directives from which it was derived.

The model checks each value when it is set. A rejected value is replaced by a comment that contains the directive and
the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.importer.ledger import Ledger
from lbctl.importer.refusals import refusals
from lbctl.importer.secrets import is_random
from lbctl.importer.statement import Statement

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_MAX_NAME = 63
_BEFORE_WORK = ("connect_failure", "refused_stream", "reset_before_request")
"""A route's default retry conditions."""
BUSY = frozenset({429, 503, 529})
"""Status codes that a replica may return when it is busy."""
CLOSED_STATUS = 501
"""Status code returned by a closed route, which could not be converted. A closed route prevents other routes from
handling its requests."""

LOCATION = ("headers", "response", "set", "location")
"""Keys in a route that lead to the address of a redirect."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""Status codes of redirects."""
_KEPT = frozenset({"listeners", "match", "respond"})
"""Keys of a closed route."""
_SECTIONS = frozenset({"access_log", "connections", "headers", "request", "response", "retry", "set", "timeouts"})
"""Keys that have no effect if they are empty."""
_CLOSED = "lbctl import: "
"""Prefix of the response body of a closed route."""
NAMED = ("listeners", "routes", "pools", "proxies")
"""Sections of a fleet that an import can fill."""
_DECIDING = frozenset({"pool", "split", "match", "respond", "auth", "allow_from", "deny_from", "rewrite"})
"""Keys without which a route would handle other requests, send them elsewhere, or lose its protection."""
_PROTECTING = frozenset({"auth", "allow_from", "deny_from"})
_GUARDING = frozenset({"tls", "proxy_protocol", "client_address", "allow_from", "deny_from"})
"""Listener keys without which the listener's routes would lose their protection."""
_WHOLE = {
    ("listeners", "bind"): "the whole listener was left out",
    ("routes", "listeners"): "the whole route was left out",
    ("routes", "match"): "the whole route was left out, and another route may receive its requests",
}
"""Keys that an object requires (for a list, one item), and the consequence if they are missing."""
_WAITING = _WHOLE.keys() | {("listeners", key) for key in _GUARDING}
"""Keys whose loss affects a whole object, or the routes of a listener. Such keys are kept until everything is set."""
_BY_HAND = "set this key by hand: a comment in the fleet file contains the original line"


@dataclass(frozen=True, slots=True)
class ClosedRoute:
    """A route that rejects all its requests."""

    removed: dict[str, Any]
    """Keys that now exist only in a comment, such as the pool, timeouts and headers."""
    by_hand: tuple[str, ...]
    """Keys that the operator must write before the route may handle requests again. Empty if it was closed for another
    reason."""


class Draft:
    """A fleet under construction."""

    def __init__(self, ledger: Ledger, *, keeps_own: bool = False) -> None:
        self.ledger = ledger
        self.keeps_own = keeps_own
        """Whether own lines may be written to files next to the fleet."""
        self.own: dict[str, list[str]] = {}
        """Maps the path of each own-lines file, relative to the fleet, to its lines."""
        self.moved: set[Path] = set()
        """Routes that return 404 instead of the proxy's own metrics."""
        self.closed: dict[Path, ClosedRoute] = {}
        """Maps each closed route to the manual steps that open it."""
        self.unkept: dict[Path, Statement] = {}
        """Maps each pool that no longer keeps sessions to the directive that kept them in the configuration."""
        self.guessed: dict[Path, Statement] = {}
        """Maps each listener's `client_address` to the directive that only forwards that address."""
        self.whole_segments: set[Path] = set()
        """Routes whose prefix also consists of whole segments in the configuration."""
        self.longer_paths: dict[str, str] = {}
        """Maps each route to a path that starts with the route's prefix but that the fleet sends to another pool."""
        self.fleet: dict[str, Any] = {"version": 1, "listeners": {}, "routes": {}, "pools": {}}
        self.origins: dict[Path, Statement] = {}
        """Maps each object in the fleet to the directive whose position appears in the object's comment."""

    def add(
        self, section: str, wanted: str, origin: Statement, value: dict[str, Any] | None = None, otherwise: str = ""
    ) -> Path:
        """Add an object under an unused name similar to `wanted`, and return its path.

        If the name contains a secret, `otherwise` is used instead. If `otherwise` is empty or also contains a secret,
        the name is `secret`.
        """
        secrets, headers = self.ledger.secrets, ((value or {}).get("match") or {}).get("headers") or {}
        names = [otherwise, "secret"] if any(map(secrets.compared, headers, headers.values())) else [wanted, otherwise]
        name = next((each for each in names if each and not secrets.named(each)), "secret")
        path: Path = (section, self.free_name(section, name))
        self.fleet[section][path[1]] = value if value is not None else {}
        self.origins[path] = origin
        self.ledger.carry(path, origin)
        self._check(path)
        return path

    def free_name(self, section: str, wanted: str) -> str:
        """Return a valid name that is not used in the section."""
        base = sane_name(wanted)
        name, number = base, 2
        while name in self.fleet[section]:
            name = f"{base[: _MAX_NAME - 4]}-{number}"
            number += 1
        return name

    def free_own_name(self, wanted: str) -> str:
        """Return a name for an own-lines file that is not used yet."""
        taken = "\n".join(self.own)
        base = sane_name(wanted)
        return next(
            name for name in (base, *(f"{base}-{number}" for number in range(2, 999))) if f"-{name}." not in taken
        )

    def own_files(self) -> dict[str, str]:
        """Return the own-lines files to which the fleet still refers, with their content."""
        named = str(self.fleet.get("proxies", {}))
        return {file: "\n".join(lines).rstrip() + "\n" for file, lines in self.own.items() if repr(file) in named}

    def put(self, path: Path, value: Any, *statements: Statement) -> None:
        """Set the value at `path`, creating the maps above it, and record its origin.

        Parts that the model rejects are left out immediately, or, if the whole object depends on them, at the end of
        the import. Values that exist only in a closed route's comment are not checked.
        """
        whole = path
        path, node = self._place(path)
        for step in path[:-1]:
            node = node.setdefault(step, {}) if isinstance(step, str) else node[step]
        node[path[-1]] = value
        self.ledger.carry(whole, *statements)
        if path == whole:
            self._check(path)

    def _check(self, path: Path) -> None:
        faults = refusals(path, self.get(path))
        self.leave_out([item for item in faults if not self._waits(item.path)])

    def _waits(self, path: Path) -> bool:
        """Return whether a rejected value is kept until the end of the import.

        A secret is kept, because it is withheld later.
        """
        value = self.get(path)
        is_secret = isinstance(value, str) and (self.ledger.secrets.written(value) or is_random(value))
        return is_secret or (path[0], *path[2:3]) in _WAITING

    def leave_out(self, faults: Sequence[Diagnostic]) -> bool:
        """Remove the values to which faults refer, starting with the last item in a list.

        Returns whether any could be removed.
        """
        found = {self._separable(self._existing(fault.path)): fault.message for fault in reversed(faults)}
        found = {path: why for path, why in found.items() if not any(path[:size] in found for size in range(len(path)))}
        removed = False
        for path, why in found.items():
            # A fault in a value that was removed earlier is resolved, so the enclosing values remain.
            if len(path) > 1 and path[0] in NAMED and self._existing(path) == path:
                self._leave_out(path, why)
                removed = True
        return removed

    def _leave_out(self, path: Path, why: str) -> None:
        """Remove a value, with a comment and a finding.

        If the value determines how a route's requests are handled or protects its listener, the route then rejects all
        requests.
        """
        origins = self.ledger.carriers(path)
        key = (path[0], *path[2:3])
        decides = path[0] == "routes" and (len(path) == 2 or path[2] in _DECIDING)
        answers = key != ("routes", "respond") and bool((self.get(path[:2]) or {}).get("respond"))
        if path[0] == "listeners" and (len(path) == 2 or key in _WAITING):
            self._close_routes_of(str(path[1]))
        if key in _WHOLE and not (key == ("routes", "listeners") and len(self.get(path[:3])) > 1):
            lost = self.drop(path[:2])
            why = f"{why}; {_WHOLE[key]}"
        elif decides and not answers:
            by_hand = str(path[2]) if len(path) > 2 and path[2] in _PROTECTING else ""
            self.close(path[:2], "this route could not be converted", by_hand=by_hand)
            lost = self.ledger.revoke(path)
        else:
            lost = self.drop(path)
        statements = lost or origins
        if path[0] == "pools" and path[2:3] in {("affinity",), ("balance",)} and statements:
            self.unkept.setdefault(path[:2], statements[0])
        lines = set[tuple[str, int]]()
        for statement in statements:
            self.ledger.omit(statement, why, path[:2])
            if (line := (statement.position.file, statement.position.line)) not in lines:
                lines.add(line)
                self.ledger.advise(statement, f"{'.'.join(map(str, path))} was left out: {why}", _BY_HAND)

    def _close_routes_of(self, listener: str) -> None:
        for name, route in self.fleet["routes"].items():
            if listener in route.get("listeners", [listener]) and "respond" not in route:
                self.close(("routes", name), "the listener's protection could not be converted")

    def _existing(self, path: Path) -> Path:
        while path and self.get(path) is None:
            path = path[:-1]
        return path

    def _separable(self, path: Path) -> Path:
        """Return the smallest removable part of an object, at `path` or enclosing it."""
        part = gone = path
        while len(gone) > 3:
            around = self.get(gone[:-1])
            if isinstance(around, list):
                if len(around) > 1:
                    break
                gone = gone[:-1]  # a list is removed with its last item
                continue
            rest = {key: child for key, child in around.items() if key != gone[-1]}
            if not any(fault.path in {gone, gone[:-1]} for fault in refusals(gone[:-1], rest)):
                break
            part = gone = gone[:-1]
        return part

    def get(self, path: Path) -> Any:
        """Return the value at `path`, or None."""
        path, node = self._place(path)
        for step in path:
            try:
                node = node[step]
            except (KeyError, IndexError, TypeError):
                return None
        return node

    def _place(self, path: Path) -> tuple[Path, Any]:
        """Return the position of the value at `path`.

        Values that a closed route needs in order to handle requests again are in its comment.
        """
        if path[2:] and path[2] not in _KEPT and path[:2] in self.closed:
            route = self.fleet[str(path[0])].get(path[1])
            if route is not None and is_closed(route):
                return path[2:], self.closed[path[:2]].removed
        return path, self.fleet

    def answers(self, route: Path) -> bool:
        """Return whether a route is meant to return its own response.

        A route that is merely closed may be opened again.
        """
        value = self.get(route) or {}
        return "respond" in value and not is_closed(value)

    def drop(self, path: Path) -> list[Statement]:
        """Remove the value at `path`, and any list or section that becomes empty.

        Returns the directives that do not correspond to any key anymore.
        """
        container = self.get(path[:-1])
        if isinstance(container, dict):
            container.pop(path[-1], None)
        elif isinstance(container, list) and isinstance(path[-1], int) and path[-1] < len(container):
            del container[path[-1]]
        lost = self.ledger.revoke(path)
        empty = path[3:] and (container == [] or (container == {} and path[-2] in _SECTIONS))
        return [*lost, *self.drop(path[:-1])] if empty else lost

    def retry_busy(self, route: Path, statuses: Iterable[int], *statements: Statement) -> None:
        """Retry a route's requests on other replicas if a busy replica returns one of these statuses."""
        self.put((*route, "retry", "when"), [*_BEFORE_WORK, "replica_busy"], *statements)
        if (busy := sorted(statuses)) != [503]:
            self.put((*route, "retry", "busy_statuses"), busy, *statements)

    def redirect(self, route: Path, status: int, location: str, *statements: Statement) -> None:
        """Set a redirect as a route's response.

        The location can contain the variables that fleet headers support.
        """
        self.put((*route, "respond"), {"status": status}, *statements)
        self.put((*route, *LOCATION), location, *statements)

    def lose_sessions(self, pool: Path, statement: Statement, reason: str, hint: str) -> None:
        """Report that a pool does not keep sessions together as the directive did."""
        self.unkept[pool] = statement
        self.ledger.omit(statement, reason, pool)
        self.ledger.advise(
            statement, f"requests from one session may reach any replica in pool {pool[1]}: {reason}", hint
        )

    def advise_prefix(self, prefix: str, statement: Statement) -> None:
        """Report that the protection for a prefix no longer applies to longer paths that start with it."""
        if not prefix.endswith("/"):
            message = (
                f"this also protected paths such as {prefix}-x, but `path_prefix` matches whole path segments only"
            )
            self.ledger.advise(statement, message, "add a route with `path_regex` for these paths")

    def close(self, path: Path, why: str, *, by_hand: str = "") -> None:
        """Make a route reject all its requests, so that no other route handles them.

        `by_hand` is the key that the operator must write before the route may handle requests again.
        """
        route = self.get(path)
        kept = {key: route[key] for key in ("listeners", "match") if key in route}
        removed = {key: value for key, value in route.items() if key not in {*kept, "respond"}}
        present = self.closed.get(path, ClosedRoute({}, ()))
        by_hands = {*present.by_hand, *([by_hand] if by_hand else [])}
        self.closed[path] = ClosedRoute(present.removed | removed, tuple(sorted(by_hands)))
        route.clear()
        body = f"{_CLOSED}{why}"
        route.update(kept | {"respond": {"status": CLOSED_STATUS, "body": printable(body)}})


def addresses(pool: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of a pool's replicas."""
    yield from (str(item["address"]) for item in pool.get("replicas", []))
    if dns := pool.get("discovery", {}).get("dns"):
        yield f"{dns['name']}:{dns['port']}"


def is_closed(route: Mapping[str, Any]) -> bool:
    """Return whether a route rejects all requests because it could not be converted."""
    return str((route.get("respond") or {}).get("body", "")).startswith(_CLOSED)


def sane_name(wanted: str, otherwise: str = "unnamed") -> str:
    """Convert the text to a valid name."""
    return _NOT_IN_A_NAME.sub("-", wanted.lower()).strip("._-")[:_MAX_NAME].rstrip("._-") or otherwise


def printable(text: str) -> str:
    """Return the text, shortened and without characters that are not allowed in a fleet's response body."""
    return "".join(character for character in text if character.isprintable())[:500]
