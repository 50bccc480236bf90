"""State shared by the parts of the HAProxy importer: the draft, the sections, and the `defaults` of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft
from lbctl.importer.statement import Statement


@dataclass(frozen=True, slots=True)
class HaproxySection:
    """A section with the `defaults` sections that it inherits, nearest first."""

    block: Statement
    defaults: tuple[Statement, ...] = ()
    """`defaults` sections that apply to it."""

    @property
    def name(self) -> str:
        """Name of the section, which may be empty."""
        return self.block.args[0] if self.block.args else ""

    def own(self, *prefix: str) -> Iterator[Statement]:
        """Yield the section's own lines that begin with these words."""
        return (item for item in self.block.block if item.tokens[: len(prefix)] == prefix)

    def rules(self, *names: str) -> Iterator[Statement]:
        """Yield the rules and ACLs with these names. The rules of a `defaults` section come first, as in HAProxy."""
        levels = (*reversed(self.defaults), self.block)
        return (item for level in levels for item in level.block if item.name in names)

    def last(self, *prefix: str) -> Statement | None:
        """Return the effective line: the last one in `defaults` or the section that begins with these words."""
        for level in (self.block, *self.defaults):
            for item in reversed(level.block):
                if item.tokens[: len(prefix)] == prefix:
                    return item
                if item.tokens[: len(prefix) + 1] == ("no", *prefix):
                    return None
        return None

    @property
    def is_http(self) -> bool:
        """Whether the section uses HTTP. HAProxy's default is TCP."""
        mode = self.last("mode")
        return mode is not None and mode.args == ("http",)


@dataclass(slots=True)
class HaproxyImport:
    """One import of an HAProxy configuration."""

    draft: Draft
    sections: dict[str, HaproxySection] = field(default_factory=dict)
    """Backend and listen sections, by name."""
    tcp: dict[str, HaproxySection] = field(default_factory=dict)
    """Sections in TCP mode, by name."""
    pools: dict[str, Path] = field(default_factory=dict)
    """Pools, by backend name."""
    globals: tuple[Statement, ...] = ()
    """Lines in the `global` sections."""

    userlists: dict[str, Statement] = field(default_factory=dict)
    """`userlist` sections, by name."""

    def file(self, kind: str, text: str) -> str:
        """Return the path of a file, resolved against `ca-base` or `crt-base`."""
        base = next((item for item in self.globals if item.name == f"{kind}-base" and item.args), None)
        if base is None or text.startswith(("/", "@")):
            return text
        self.draft.ledger.imply("lbctl writes full paths", base)
        return f"{base.args[0].rstrip('/')}/{text}"


def sections(statements: tuple[Statement, ...]) -> list[HaproxySection]:
    """Return the sections that handle traffic, each with its `defaults` sections."""
    named: dict[str, HaproxySection] = {}
    latest: tuple[Statement, ...] = ()
    result = []
    for item in statements:
        source = item.args[item.args.index("from") + 1] if "from" in item.args[:-1] else None
        inherited = (named[source].block, *named[source].defaults) if source in named else ()
        if item.name == "defaults":
            latest = (item, *inherited)
            if item.args and item.args[0] != "from":
                named[item.args[0]] = HaproxySection(item, inherited)
        elif item.name in {"frontend", "backend", "listen"}:
            result.append(HaproxySection(item, inherited if source is not None else latest))
    return result
