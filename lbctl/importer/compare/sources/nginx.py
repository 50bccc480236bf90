"""Rebuilds an nginx configuration for loopback from directives that are known to be harmless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources.nginx_destinations import UPSTREAM_NAME, Destination, Destinations
from lbctl.importer.compare.sources.nginx_directives import RUN, UPSTREAM, left_out
from lbctl.importer.compare.sources.nginx_values import accepts, first_refused, quoted, value_of
from lbctl.importer.compare.sources.nginx_variables import known_variables, undefined
from lbctl.importer.compare.sources.removed import (
    CLOSED_HEADER,
    LOST_REPLICAS,
    ClosedError,
    Removals,
    Rewritten,
)
from lbctl.importer.draft import CLOSED_STATUS
from lbctl.importer.nginx import values as nginx_values
from lbctl.importer.nginx.includes import may_protect, unread
from lbctl.importer.nginx.listeners import bind_of
from lbctl.importer.statement import Statement

NOT_LISTED = "not a directive supported by the comparison"
NOT_READ = "the file was not read"
_ARGUMENTS = "its arguments are not supported by the comparison"
_ARGUMENT = "not an argument supported by the comparison"
_ELSEWHERE = "its destination is not a replica in the fleet"
_MAY_LEAD_ELSEWHERE = "its variable may contain a destination other than a replica in the fleet"
_PASSES = {"proxy_pass": "http", "grpc_pass": "grpc"}
_TEMPORARY = ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
_SERVER_OPTION = re.compile(
    r"weight=[0-9]{1,3}|(?:max_fails|max_conns)=[0-9]{1,6}|fail_timeout=[0-9]{1,6}s?|backup|down"
)
_ZONE = re.compile(r"zone=([A-Za-z0-9_.-]{1,128})(?::[0-9]+[kKmM]?)?")
_RATE = re.compile(r"rate=[0-9]{1,6}r/[sm]")
_IF_VARIABLE = re.compile(r"\$[A-Za-z0-9_]+")
_OF_BLOCKS = {"if": ("text", "==|!=|~|~*|!~|!~*"), "limit_except": ("word",)}
_MAX_PASSES = 8
"""Maximum number of times that a server is rebuilt because an authorizing location was closed."""


def rewrite(statements: Sequence[Statement], places: StandIns) -> Rewritten:
    """Return the text of a complete nginx configuration for loopback."""
    removals = Removals()
    http = [item for block in _flat(statements) if block.name == "http" for item in block.block]
    for item in _flat(statements) if http else ():
        if item.name != "http":
            removals.leave_out(item, left_out(item.name) or NOT_LISTED)
    includes = http or [item for item in statements if item.name == "include"]
    text = _Nginx(list(_flat(http or statements)), includes, places, removals).text()
    return Rewritten(text, removals.items)


def own_lines(statements: Sequence[Statement]) -> str:
    """Return the fleet's own lines for loopback, limited to the lines that would also be run in the source."""
    kept = [(item.name, [value_of(token) for token in item.args]) for item in statements if not item.is_block]
    runs = [each for each in kept if any(accepts(kinds, each[1], ()) for kinds in RUN.get(each[0], ()))]
    return "".join(f"{line(name, *values)}\n" for name, values in runs)


def line(name: str, *values: str) -> str:
    """Return a directive without a block."""
    return " ".join([name, *map(quoted, values)]) + ";"


def _block(head: str, lines: Iterable[str]) -> list[str]:
    return [f"{head} {{", *(f"    {each}" for each in lines), "}"]


def _flat(statements: Iterable[Statement]) -> Iterator[Statement]:
    for item in statements:
        if item.name == "include":
            yield from _flat(item.block)
        else:
            yield item


def _closed(number: int) -> list[str]:
    """Return the lines of a server or location whose response states that the comparison closed it."""
    return [f"add_header {CLOSED_HEADER} {number} always;", f"return {CLOSED_STATUS} closed;"]


class _Nginx:
    """Writes the `http` block."""

    def __init__(
        self, http: Sequence[Statement], includes: Sequence[Statement], places: StandIns, removals: Removals
    ) -> None:
        self._http = http
        self._includes = includes
        self._places = places
        self._removals = removals
        self._known = known_variables(http)
        self._destinations = Destinations(places, self._known)
        self._closed: dict[str, int] = {}
        """Maps the path of each closed location in a server to the number of the directive that caused it to be
        closed."""

    def text(self) -> str:
        """Return the configuration."""
        lines = [line(f"{name}_temp_path", f"{self._places.directory}/{name}") for name in _TEMPORARY]
        lines += ["access_log off;", line("root", self._places.no_files)]
        upstreams = [each for item in self._http if item.name == "upstream" for each in self._upstream(item)]
        closed = self._unread_closing()
        servers = []
        for item in self._http:
            if item.name == "server" and item.is_block:
                servers.append(item)
                continue
            try:
                lines += self._directive(item, "http")
            except ClosedError as error:
                closed = error.number if closed is None else closed
        written = [each for item in servers for each in self._server(item, closed)]
        maps = [each for head, entries in self._destinations.maps() for each in _block(head, entries)]
        http = [*lines, *upstreams, *maps, *written]
        empty = [each for name in undefined(self._known, http) for each in _block(f'map "" ${name}', ['default "";'])]
        return "\n".join(["events {", "}", *_block("http", [*empty, *http])]) + "\n"

    def _unread_closing(self) -> int | None:
        """Return the number of an unread include in `http` that causes all servers to be closed, or None."""
        try:
            self._check_includes(self._includes)
        except ClosedError as error:
            return error.number
        return None

    def _check_includes(self, block: Iterable[Statement]) -> None:
        """Raise ClosedError if a block contains an unread include that may protect it."""
        for item in unread(block):
            if may_protect(item):
                raise self._removals.close(item, NOT_READ)
            self._removals.leave_out(item, "files that were not read", " ".join(item.tokens))

    def _upstream(self, item: Statement) -> list[str]:
        """Return an upstream.

        If an upstream cannot be rebuilt, it is omitted, and the locations that lead to it are closed.
        """
        name, servers, lines = value_of(item.args[0]) if item.args else "", list[str](), list[str]()
        if not UPSTREAM_NAME.fullmatch(name) or name in self._destinations.upstreams:
            self._removals.leave_out(item, "the upstream's name may be an address")
            return []
        has_replicas = any(map(self._is_replica, _flat(item.block)))
        for each in _flat(item.block):
            values = [value_of(token) for token in each.args]
            if each.is_block:
                self._removals.close(each, NOT_LISTED)
                return []
            if each.name == "server" and values:
                kept = [word for word in values[1:] if _SERVER_OPTION.fullmatch(word)]
                if has_replicas and not self._is_replica(each):
                    self._removals.leave_out(each, LOST_REPLICAS, f"server {values[0]}")
                    kept = [*kept, "down"]
                servers.append(line("server", self._places.replica(nginx_values.address(values[0]) or ""), *kept))
            elif each.name == "zone" and accepts("name size?", values, ()):
                lines.append(line("zone", values[0], "1m"))
            elif any(accepts(kinds, values, self._known) for kinds in UPSTREAM.get(each.name, ())):
                lines.append(line(each.name, *values))
            elif reason := left_out(each.name):
                self._removals.leave_out(each, reason)
            else:
                self._removals.close(each, NOT_LISTED)
                return []
        self._destinations.upstreams.add(name)
        return _block(f"upstream {name}", [*lines, *(servers or [line("server", self._places.replica(""))])])

    def _is_replica(self, item: Statement) -> bool:
        """Return whether a directive in an upstream defines a server that is a replica in the fleet."""
        values = [value_of(token) for token in item.args[:1]] if item.name == "server" else []
        return any(self._places.replica_port(nginx_values.address(each) or "") is not None for each in values)

    # ── Servers and locations ────────────────────────────────────────────────────────────────────────────────────────

    def _server(self, item: Statement, closed: int | None) -> list[str]:
        listens = self._listens(item)
        if not listens:
            self._removals.leave_out(item, "the server does not listen on an address in the fleet")
            return []
        self._closed = {}
        try:
            if closed is not None:
                raise ClosedError(closed)
            for _ in range(_MAX_PASSES):
                before, body = len(self._closed), self._body(item.block, "server")
                if len(self._closed) == before:
                    break
        except ClosedError as error:
            values = [value_of(word) for each in _flat(item.block) if each.name == "server_name" for word in each.args]
            body = [line("server_name", *values)] if values and accepts(RUN["server_name"][0], values, ()) else []
            body += _closed(error.number)
        return _block("server", [*listens, *body])

    def _listens(self, item: Statement) -> list[str]:
        """Return a server's addresses, which contain only the ports that replace the fleet's ports."""
        listens = [each for each in _flat(item.block) if each.name == "listen"]
        tls = any(each.tokens == ("ssl", "on") for each in _flat(item.block))
        lines = dict[str, str]()
        for values in [[value_of(token) for token in each.args] for each in listens] or [["80"]]:
            port = self._places.binds.get(bind_of(values[0]) or "") if values else None
            if port is not None:
                kept = [word for word in values[1:] if word in {"ssl", "http2", "default_server", "default"}]
                kept += ["ssl"] if tls and "ssl" not in kept else []
                lines.setdefault(str(port), line("listen", f"{LOOPBACK}:{port}", *kept))
        if any(" ssl" in each for each in lines.values()):
            pem = self._places.pem
            return [*lines.values(), line("ssl_certificate", pem), line("ssl_certificate_key", pem)]
        return list(lines.values())

    def _location(self, item: Statement) -> list[str]:
        values = [value_of(token) for token in item.args]
        if not any(accepts(kinds, values, ()) for kinds in ("regex", "==|~|~*|^~ regex")):
            raise self._arguments(item, ("regex", "==|~|~*|^~ regex"))
        try:
            body = self._body(item.block, "location")
        except ClosedError as error:
            self._closed[values[-1]] = error.number
            body = _closed(error.number)
        return _block(" ".join(["location", *map(quoted, values)]), body)

    def _body(self, block: Sequence[Statement], scope: str) -> list[str]:
        """Return a block's lines. Raises ClosedError if a line must not be run and responses may depend on it."""
        self._check_includes(block)
        lines = [each for item in _flat(block) for each in self._directive(item, scope)]
        for item in _flat(block):
            found = self._destination(item) if item.name in _PASSES else None
            if found is not None and found.variable:
                lines += self._guard(item, found.variable, scope)
        return lines

    def _guard(self, item: Statement, variable: str, scope: str) -> list[str]:
        """Return lines that close a location if its destination variable does not name a replica."""
        closed = self._removals.close(item, _MAY_LEAD_ELSEWHERE)
        if scope != "location":
            raise closed
        return _block(f'if (${variable} = "")', _closed(closed.number))

    def _destination(self, item: Statement) -> Destination | None:
        values = [value_of(token) for token in item.args]
        return self._destinations.of(values[0], _PASSES[item.name]) if len(values) == 1 else None

    # ── Directives ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _directive(self, item: Statement, scope: str) -> list[str]:
        """Return a directive's lines, or none if it is omitted. Raises ClosedError if it must not be run."""
        if item.is_block:
            return self._nested(item, scope)
        values = [value_of(token) for token in item.args]
        if item.name in _PASSES:
            if (found := self._destination(item)) is None:
                raise self._removals.close(item, _ELSEWHERE)
            return [line(item.name, found.url)]
        if item.name == "auth_request" and values and (asked := values[0].partition("?")[0]) in self._closed:
            raise ClosedError(self._closed[asked])
        if item.name in {"limit_req", "limit_req_zone", "limit_conn_zone"}:
            return [self._limit(item, values)]
        if item.name == "auth_basic_user_file":
            return [line(item.name, f"{self._places.no_files}/users")]
        if any(accepts(kinds, values, self._known) for kinds in RUN.get(item.name, ())):
            return [line(item.name, *values)]
        self._leave_out(item)
        return []

    def _leave_out(self, item: Statement) -> None:
        """Record a directive that is not run. Raises ClosedError if responses may depend on it."""
        if item.name == "listen":
            return
        if item.name in RUN:
            raise self._arguments(item, RUN[item.name])
        reason = left_out(item.name)
        if not reason:
            raise self._removals.close(item, NOT_LISTED)
        self._removals.leave_out(item, reason)

    def _arguments(self, item: Statement, specifications: Sequence[str]) -> ClosedError:
        """Return the error that causes the block around a directive with invalid arguments to be closed."""
        word = first_refused(specifications, [value_of(token) for token in item.args], self._known)
        return self._removals.close(item, _ARGUMENT if word else _ARGUMENTS, word)

    def _limit(self, item: Statement, values: list[str]) -> str:
        """Return a limit. Requests above the limit are rejected immediately instead of waiting."""
        zones = [match[1] for word in values if (match := _ZONE.fullmatch(word))]
        if len(zones) == 1 and item.name == "limit_req":
            burst = [word for word in values if re.fullmatch("burst=[0-9]{1,6}", word)]
            return line(item.name, f"zone={zones[0]}", *burst, *(["nodelay"] if burst else []))
        if len(zones) == 1 and accepts("text", values[:1], self._known):
            return line(item.name, values[0], f"zone={zones[0]}:1m", *filter(_RATE.fullmatch, values))
        raise self._removals.close(item, _ARGUMENTS)

    def _nested(self, item: Statement, scope: str) -> list[str]:
        """Return a block nested in another block."""
        values = [value_of(token) for token in item.args]
        if item.name == "location" and scope in {"server", "location"}:
            return self._location(item)
        if item.name in {"map", "geo", "split_clients"} and scope == "http":
            return self._variable(item, values)
        if item.name == "upstream" and scope == "http":
            return []
        if item.name == "limit_except" and accepts("word+", values, ()):
            return _block(" ".join([item.name, *values]), self._body(item.block, item.name))
        if item.name == "if" and self._is_condition(values):
            written = [values[0], *values[1:2], *map(quoted, values[2:])]
            return _block(f"if ({' '.join(written)})", self._body(item.block, item.name))
        if item.name in {"if", "limit_except"}:
            raise self._arguments(item, _OF_BLOCKS[item.name])
        self._leave_out(item)
        return []

    def _is_condition(self, values: list[str]) -> bool:
        """Return whether a condition reads only variables. Conditions on files would read files on this machine."""
        if not values or not _IF_VARIABLE.fullmatch(values[0]) or not accepts("text", values[:1], self._known):
            return False
        if len(values) != 3:
            return len(values) == 1
        kind = {"=": "text", "!=": "text", "~": "regex", "~*": "regex", "!~": "regex", "!~*": "regex"}.get(values[1])
        return kind is not None and accepts(kind, values[2:], self._known)

    def _variable(self, item: Statement, values: list[str]) -> list[str]:
        """Return a block that sets a variable. If a block cannot be rebuilt, all uses of the variable are closed."""
        if not values or values[-1].removeprefix("$").lower() not in self._known:
            self._removals.leave_out(item, "it uses a variable that the comparison does not define")
            return []
        entries = [line(quoted(value_of(each.name)), *map(value_of, each.args)) for each in _flat(item.block)]
        return _block(" ".join([item.name, *map(quoted, values)]), entries)
