"""Parses `server`, `default-server` and `server-template` lines, including keywords with and without a value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole

_FLAGS = frozenset(
    {
        "check", "backup", "disabled", "enabled", "ssl", "check-ssl", "no-check", "no-backup", "no-ssl", "send-proxy",
        "send-proxy-v2", "check-send-proxy", "non-stick", "agent-check", "no-agent-check", "allow-0rtt", "tfo",
        "force-tlsv12", "force-tlsv13", "no-sslv3", "no-tlsv10", "no-tlsv11", "no-verifyhost", "check-via-socks4",
        "no-ssl-reuse", "stick"
    }
)  # fmt: skip
_CARRIED = frozenset(
    {
        "weight", "maxconn", "backup", "disabled", "slowstart", "error-limit", "ssl", "verify", "ca-file", "sni",
        "verifyhost", "crt", "proto", "alpn", "check", "inter", "rise", "fall", "port", "fastinter", "downinter",
        "cookie", "check-ssl", "no-check"
    }
)  # fmt: skip
_IMPLIED = frozenset(
    {
        "enabled", "observe", "on-error", "resolvers", "init-addr", "resolve-prefer", "no-sslv3", "no-tlsv10",
        "no-tlsv11", "check-sni", "check-alpn", "check-proto", "resolve-opts", "force-tlsv12", "pool-max-conn",
        "pool-purge-delay", "id"
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerLine:
    """A server that takes its defaults from `default-server`."""

    line: Statement
    name: str = ""
    address: str = ""
    """Address as written."""
    settings: dict[str, str] = field(default_factory=dict)
    """Maps each keyword to its value, or to an empty string for a flag."""
    unknown: tuple[str, ...] = ()
    """Unsupported keywords, with their values."""
    statements: tuple[Statement, ...] = ()
    """`default-server` lines."""

    @classmethod
    def defaults(cls, section: HaproxySection) -> ServerLine:
        """Return the settings of all `default-server` lines that apply to a section."""
        settings: dict[str, str] = {}
        unknown: list[str] = []
        lines: list[Statement] = []
        for level in (*reversed(section.defaults), section.block):
            for item in level.block:
                if item.name == "default-server":
                    supported, others = _settings(item.args)
                    settings |= supported
                    unknown += others
                    lines.append(item)
        return cls(section.block, settings=settings, unknown=tuple(unknown), statements=tuple(lines))

    def of(self, item: Statement) -> ServerLine | None:
        """Return the server on a line, with these settings as defaults, or None for a line without an address."""
        if len(item.args) < 2:
            return None
        supported, unknown = _settings(item.args[2:])
        settings = {**self.settings, **supported}
        if "no-check" in supported:
            settings.pop("check", None)
        return ServerLine(item, item.args[0], item.args[1], settings, (*self.unknown, *unknown))

    def has(self, keyword: str) -> bool:
        """Return whether the keyword is set."""
        return keyword in self.settings

    def get(self, keyword: str, otherwise: str) -> str:
        """Return the value of a keyword."""
        return self.settings.get(keyword, otherwise)

    @property
    def text(self) -> str:
        """The settings as one line."""
        return " ".join(f"{key} {value}".strip() for key, value in self.settings.items())


def _settings(args: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    supported: dict[str, str] = {}
    unknown: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        value = "" if word in _FLAGS or not rest else rest.pop(0)
        if word in _CARRIED:
            supported[word] = value
        elif word not in _IMPLIED:
            unknown.append(f"{word} {value}".strip())
    return supported, unknown


def template(context: HaproxyImport, path: Path, item: Statement, base: ServerLine) -> ServerLine | None:
    """Set the discovery for a `server-template`, which defines several servers with one DNS name."""
    draft = context.draft
    if len(item.args) < 3:
        draft.ledger.omit(item, "`server-template` needs a prefix, a number and an address", path)
        return None
    server = base.of(Statement(item.position, ("server", item.args[0], *item.args[2:])))
    host, _, port = item.args[2].rpartition(":")
    count = re.fullmatch(r"(?:(\d+)-)?(\d+)", item.args[1])
    if server is None or not is_whole(port) or not host or count is None:
        draft.ledger.omit(item, "`server-template` needs a host name and a port", path)
        return None
    dns = {"name": host, "port": int(port), "max_replicas": int(count[2]) - int(count[1] or 1) + 1}
    draft.put((*path, "discovery"), {"dns": dns}, item)
    return ServerLine(item, server.name, server.address, server.settings, server.unknown)
