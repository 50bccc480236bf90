"""The fleet while it is being built: plain values by path, and the directives that each value came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.ledger import Ledger
from lbctl.importer.statement import Statement

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_MAX_NAME = 63
_BEFORE_WORK = ("connect_failure", "refused_stream", "reset_before_request")
"""What a route retries where it says nothing."""
BUSY = frozenset({429, 503, 529})
"""The statuses by which a replica may say that it is busy."""
CLOSED_STATUS = 501
"""The status of a route that could not be carried over: closed, so that no other route takes its requests."""

LOCATION = ("headers", "response", "set", "location")
"""The keys below a route that hold the address of a redirect."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
"""The statuses of a redirect."""
_KEPT = frozenset({"listeners", "match", "respond"})
"""The keys of a closed route."""
_SECTIONS = frozenset({"access_log", "connections", "headers", "request", "response", "retry", "set", "timeouts"})
"""Keys that mean nothing where they are empty."""
_CLOSED = "lbctl import: "
"""How the body of a closed route begins."""


@dataclass(frozen=True, slots=True)
class ClosedRoute:
    """A route that refuses its requests."""

    removed: dict[str, Any]
    """Its keys that are only a comment now: the pool, timeouts, headers."""
    by_hand: tuple[str, ...]
    """The keys that the operator must write before the route may serve again; none if another reason closed it."""


class Draft:
    """A fleet under construction."""

    def __init__(self, ledger: Ledger, *, keeps_own: bool = False) -> None:
        self.ledger = ledger
        self.keeps_own = keeps_own
        """Whether own lines may go into files beside the fleet."""
        self.own: dict[str, list[str]] = {}
        """Path of a file with own lines, relative to the fleet → its lines."""
        self.moved: set[Path] = set()
        """Routes that answer 404 where the proxy's own figures stood."""
        self.closed: dict[Path, ClosedRoute] = {}
        """A route that refuses its requests → how to open it by hand."""
        self.unkept: dict[Path, Statement] = {}
        """A pool that no longer keeps the sessions of the configuration → the directive that kept them."""
        self.guessed: dict[Path, Statement] = {}
        """`client_address` of a listener → the directive that only passes that address on."""
        self.whole_segments: set[Path] = set()
        """Routes whose prefix has whole segments in the configuration too."""
        self.longer_paths: dict[str, str] = {}
        """A route → a path that only begins like its prefix, and that the fleet sends to another pool."""
        self.fleet: dict[str, Any] = {"version": 1, "listeners": {}, "routes": {}, "pools": {}}
        self.origins: dict[Path, Statement] = {}
        """The object of the fleet → the directive whose position its comment shows."""

    def add(
        self, section: str, wanted: str, origin: Statement, value: dict[str, Any] | None = None, otherwise: str = ""
    ) -> Path:
        """Add an object under a free name like `wanted`, and return its path.

        A name made of a secret is replaced: by `otherwise`, or else by `secret`.
        """
        secrets, headers = self.ledger.secrets, ((value or {}).get("match") or {}).get("headers") or {}
        names = [otherwise, "secret"] if any(map(secrets.compared, headers, headers.values())) else [wanted, otherwise]
        name = next((each for each in names if each and not secrets.named(each)), "secret")
        path: Path = (section, self.free_name(section, name))
        self.fleet[section][path[1]] = value if value is not None else {}
        self.origins[path] = origin
        self.ledger.carry(path, origin)
        return path

    def free_name(self, section: str, wanted: str) -> str:
        """Return a name of the fleet's grammar that no object of the section has."""
        base = sane_name(wanted)
        name, number = base, 2
        while name in self.fleet[section]:
            name = f"{base[: _MAX_NAME - 4]}-{number}"
            number += 1
        return name

    def free_own_name(self, wanted: str) -> str:
        """Return a name for a file of own lines that none has."""
        taken = "\n".join(self.own)
        base = sane_name(wanted)
        return next(
            name for name in (base, *(f"{base}-{number}" for number in range(2, 999))) if f"-{name}." not in taken
        )

    def own_files(self) -> dict[str, str]:
        """Return the files of own lines that the fleet still names, with their content."""
        named = str(self.fleet.get("proxies", {}))
        return {file: "\n".join(lines).rstrip() + "\n" for file, lines in self.own.items() if repr(file) in named}

    def put(self, path: Path, value: Any, *statements: Statement) -> None:
        """Set the value at `path`, creating the maps above it, and record where it came from."""
        whole = path
        path, node = self._place(path)
        for step in path[:-1]:
            node = node.setdefault(step, {}) if isinstance(step, str) else node[step]
        node[path[-1]] = value
        self.ledger.carry(whole, *statements)

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
        """Return where the value at `path` stands: what a closed route needs to serve again is in its comment."""
        if path[2:] and path[2] not in _KEPT and path[:2] in self.closed:
            route = self.fleet[str(path[0])].get(path[1])
            if route is not None and is_closed(route):
                return path[2:], self.closed[path[:2]].removed
        return path, self.fleet

    def answers(self, route: Path) -> bool:
        """Whether a route is to respond by itself; one that is only closed may serve again."""
        value = self.get(route) or {}
        return "respond" in value and not is_closed(value)

    def drop(self, path: Path) -> list[Statement]:
        """Remove the value at `path`, and a section that it leaves empty; returns what nothing carries any more."""
        container = self.get(path[:-1])
        if isinstance(container, dict):
            container.pop(path[-1], None)
        elif isinstance(container, list) and isinstance(path[-1], int) and path[-1] < len(container):
            del container[path[-1]]
        lost = self.ledger.revoke(path)
        empty = container == {} and path[3:] and path[-2] in _SECTIONS
        return [*lost, *self.drop(path[:-1])] if empty else lost

    def retry_busy(self, route: Path, statuses: Iterable[int], *statements: Statement) -> None:
        """Have a route leave replicas that say by these statuses that they are busy."""
        self.put((*route, "retry", "when"), [*_BEFORE_WORK, "replica_busy"], *statements)
        if (busy := sorted(statuses)) != [503]:
            self.put((*route, "retry", "busy_statuses"), busy, *statements)

    def redirect(self, route: Path, status: int, location: str, *statements: Statement) -> None:
        """Have a route answer with a redirect; the location may have variables of a fleet's headers."""
        self.put((*route, "respond"), {"status": status}, *statements)
        self.put((*route, *LOCATION), location, *statements)

    def lose_sessions(self, pool: Path, statement: Statement, reason: str, hint: str) -> None:
        """Report that a pool does not keep sessions together as the directive did."""
        self.unkept[pool] = statement
        self.ledger.omit(statement, reason, pool)
        self.ledger.advise(statement, f"requests of one session go to any replica of {pool[1]}: {reason}", hint)

    def advise_prefix(self, prefix: str, statement: Statement) -> None:
        """Tell that what protected a prefix no longer holds for what only begins like it."""
        if not prefix.endswith("/"):
            message = (
                f"this also protected what only begins like {prefix}, and a prefix of a fleet is of whole segments"
            )
            self.ledger.advise(statement, message, "write a route for what else begins so")

    def close(self, path: Path, why: str, *, by_hand: str = "") -> None:
        """Have a route refuse its requests, so that no other route takes them.

        `by_hand` is the key that the operator must write before the route may serve again.
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
    """Yield the addresses of the replicas of a pool."""
    yield from (str(item["address"]) for item in pool.get("replicas", []))
    if dns := pool.get("discovery", {}).get("dns"):
        yield f"{dns['name']}:{dns['port']}"


def is_closed(route: Mapping[str, Any]) -> bool:
    """Whether a route refuses its requests because it could not be carried over."""
    return str((route.get("respond") or {}).get("body", "")).startswith(_CLOSED)


def sane_name(wanted: str, otherwise: str = "unnamed") -> str:
    """Return the text as a name of the fleet's grammar."""
    return _NOT_IN_A_NAME.sub("-", wanted.lower()).strip("._-")[:_MAX_NAME].rstrip("._-") or otherwise


def printable(text: str) -> str:
    """Return the text without characters that a body of a fleet cannot hold, shortened."""
    return "".join(character for character in text if character.isprintable())[:500]
