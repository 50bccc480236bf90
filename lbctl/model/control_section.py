"""Reads only the `control` section, even if the rest of the fleet's files is invalid.

Commands need the address of a running `serve`, and `serve` needs its state directory, especially while a file is
invalid. The section consists of the lines from `control:` in the first column up to the next key in that column. If the
section itself has a syntax error, the keys that can still be parsed are kept.

A follower that serves the leader's files takes this section from its own local files, as does a `serve` process that
uses its saved fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.model.control import Control
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import SourceText
from lbctl.model.node import Node, descend

_NAME = b"control"
FAULTS_OF_THE_REST = frozenset({"LB010"})
"""Codes of faults that occur only because the rest of the file is not read."""


@dataclass(frozen=True, slots=True)
class ControlSection:
    """The `control` section, as far as it can be read."""

    source: FleetSource | None = None
    """A fleet that contains only this section; None if no file has a readable section."""
    lost: Diagnostic | None = None
    """Reason why part of the section is missing; None if the section is complete or absent."""
    text: bytes = b""
    """The lines of the section; empty if they were not found."""

    def lacks(self, key: str) -> bool:
        """Return whether the section may set this key of `control` to a value that cannot be read."""
        if self.lost is None or (self.source is not None and key in self.source.fleet.control.model_fields_set):
            return False
        return not self.text or key.encode() in self.text


_NONE = ControlSection()


class SectionLines(NamedTuple):
    """The range of lines in a file that form a section."""

    first: int
    """Index of the first line."""
    end: int
    """Index after the last line."""


def control_alone(texts: Iterable[SourceText]) -> ControlSection:
    """Return the section from the first text in which it is readable."""
    damaged = _NONE
    for text in texts:
        section = _section(text)
        if section.source is not None:
            return section
        damaged = section if damaged.lost is None else damaged
    return damaged


def without_control(text: SourceText) -> SourceText:
    """Return the text without its `control` section, to compare the fleets of a control plane's members."""
    lines = text.data.split(b"\n")
    found = lines_of(lines, "control")
    return text if found is None else replace(text, data=b"\n".join([*lines[: found.first], *lines[found.end :]]))


def with_control(source: FleetSource, own: FleetSource) -> FleetSource:
    """Return the fleet with `control` taken from `own`, except for the keys that belong to the fleet."""
    sections = dict(source.root.value) if isinstance(source.root.value, dict) else {}
    sections.pop("control", None)
    node = descend(own.root, ("control",))
    if node is not None:
        sections["control"] = node
    root = Node(sections, source.root.file, source.root.line, source.root.column)
    fleet = source.fleet.model_copy(update={"control": _merged(source.fleet.control, own.fleet.control)})
    return replace(source, fleet=fleet, root=root, roots={**source.roots, **own.roots})


def _merged(of_fleet: Control, own: Control) -> Control:
    """Return the member's own section with the fleet's `max_shrink` and `unmatched_nodes`, which all members share."""
    nodes = of_fleet.xds.unmatched_nodes
    xds = own.xds if own.xds.unmatched_nodes == nodes else own.xds.model_copy(update={"unmatched_nodes": nodes})
    return own.model_copy(update={"xds": xds, "max_shrink": of_fleet.max_shrink})


def _section(text: SourceText) -> ControlSection:
    lines = text.data.split(b"\n")
    found = lines_of(lines, "control")
    faults = Diagnostics()
    if found is None:
        source = _parsed(text, faults) if _NAME in text.data else None
        return ControlSection(source, None if source else _fault(faults))
    source = _parsed(only_lines(text, lines, [found]), faults)
    lost = _fault(faults)
    if source is None:
        readable = [part for part in _parts(lines, found) if _parsed(only_lines(text, lines, part), Diagnostics())]
        source = _parsed(only_lines(text, lines, chain.from_iterable(readable)), Diagnostics()) if readable else None
    return ControlSection(source, lost, b"\n".join(lines[found.first : found.end]))


def _parsed(text: SourceText, faults: Diagnostics) -> FleetSource | None:
    """Parse a text; return None if the section is missing or empty."""
    source = parse([text], faults)
    return source if source is not None and "control" in source.fleet.model_fields_set else None


def _fault(faults: Diagnostics) -> Diagnostic | None:
    return next((item for item in faults if item.severity == "error" and item.code not in FAULTS_OF_THE_REST), None)


def lines_of(lines: Sequence[bytes], section: str) -> SectionLines | None:
    """Return the lines of one of the file's sections; None if no line begins with the section's name."""
    keys = tuple(f"{quote}{section}{quote}:".encode() for quote in ("", '"', "'"))
    first = next((index for index, line in enumerate(lines) if line.startswith(keys)), None)
    if first is None:
        return None
    end = next((index for index in range(first + 1, len(lines)) if _is_key(lines[index])), len(lines))
    while not lines[end - 1].strip() or lines[end - 1].startswith(b"#"):
        end -= 1  # comments above the next key belong to that key
    return SectionLines(first, end)


def _is_key(line: bytes) -> bool:
    """Return whether a line has a key in the first column, rather than a comment or a closing bracket."""
    return bool(line.strip()) and line[:1] not in b" \t\r#}]"


def only_lines(text: SourceText, lines: Sequence[bytes], kept: Iterable[SectionLines]) -> SourceText:
    """Return the text with all other lines blanked, so that positions remain valid."""
    numbers = {number for part in kept for number in range(part.first, part.end)}
    return replace(text, data=b"\n".join(line if number in numbers else b"" for number, line in enumerate(lines)))


def _parts(lines: Sequence[bytes], section: SectionLines) -> list[list[SectionLines]]:
    """Return the lines of each key in the section, each together with the `control:` line."""
    head = SectionLines(section.first, section.first + 1)
    content = [number for number in range(head.end, section.end) if _is_content(lines[number])]
    if not content:
        return []
    indent = min(_indent(lines[number]) for number in content)
    starts = [number for number in content if _indent(lines[number]) == indent]
    return [[head, SectionLines(start, end)] for start, end in zip(starts, [*starts[1:], section.end], strict=True)]


def _is_content(line: bytes) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(b"#")


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" "))
