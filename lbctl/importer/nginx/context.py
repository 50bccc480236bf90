"""State shared by the parts of the nginx importer: the draft, variables, and the levels above a directive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft
from lbctl.importer.statement import Statement


@dataclass(frozen=True, slots=True)
class Scope:
    """An nginx block with its enclosing blocks."""

    levels: tuple[Statement, ...]
    """The levels, with the block itself first and `http` last."""

    def inside(self, block: Statement) -> Scope:
        """Return the scope of a block within this one."""
        return Scope((block, *self.levels))

    @property
    def block(self) -> Statement:
        """Innermost block."""
        return self.levels[0]

    @property
    def server(self) -> Scope:
        """Scope of the enclosing `server`."""
        depth = next((index for index, level in enumerate(self.levels) if level.name == "server"), 0)
        return Scope(self.levels[depth:])

    def last(self, name: str) -> Statement | None:
        """Return the effective directive, which is the last one at the innermost level that contains it."""
        return next((item for level in self.levels for item in reversed(list(flat(level, name)))), None)

    def all(self, name: str) -> list[Statement]:
        """Return the directives that apply together, which are all those at the innermost level that contains any."""
        return next((items for level in self.levels if (items := list(flat(level, name)))), [])


@dataclass(slots=True)
class NginxImport:
    """One import of an nginx configuration."""

    draft: Draft
    http: Scope
    upstreams: dict[str, Path] = field(default_factory=dict)
    """Pools, by `upstream` name."""
    maps: dict[str, Statement] = field(default_factory=dict)
    """Maps each variable to the `map`, `geo` or `split_clients` that sets it."""
    zones: dict[str, Statement] = field(default_factory=dict)
    """`limit_req_zone` and `limit_conn_zone` directives, by zone name."""
    listeners_of: dict[Statement, list[Path]] = field(default_factory=dict)
    """Maps each `server` to its listeners."""
    addresses: dict[tuple[str, str, tuple[str, ...]], Path] = field(default_factory=dict)
    """Maps the scheme, the upstream or address in a `proxy_pass`, and the secrets sent to it, to its pool."""
    unread: dict[Statement, list[Statement]] = field(default_factory=dict)
    """Maps each block to its unread includes that may protect it."""
    examined: set[Path] = field(default_factory=set)
    """Routes that are closed if such an include may protect them."""


def flat(block: Statement, *names: str) -> Iterator[Statement]:
    """Yield the directives in a block that have one of the names, or all directives.

    Includes are replaced by their content.
    """
    for item in block.block:
        if item.name == "include":
            yield from flat(item, *names)
        elif not names or item.name in names:
            yield item
