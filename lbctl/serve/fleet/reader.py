"""Reads a fleet from the contents of its YAML files, along with every file that it names.

The contents may come from the files or from the saved state. Certificates, key files and target files are read from
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.discovery import read_targets
from lbctl.compile.files import file_of, named_files
from lbctl.compile.own_lines import own_lines_nodes
from lbctl.ir.secrets import Secrets
from lbctl.ir.topology import Topology
from lbctl.lint.ignores import silenced_by_comments
from lbctl.model.control_section import ControlSection, control_alone
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import SourceText
from lbctl.model.load import texts as read_texts
from lbctl.model.node import descend
from lbctl.model.section_cache import SectionCache
from lbctl.serve.fleet.certificates import CertificateCache
from lbctl.serve.fleet.key_files import refusal_reason
from lbctl.targets.load import Loaded, complete

ReadKeys = Callable[[FleetSource, Diagnostics], Secrets]
WithOwn = Callable[[FleetSource, Diagnostics], FleetSource]
"""Returns the fleet with the sections from this process's own files, and reports paths that the fleet must not name."""
Writers = Literal["this process", "members", "anybody"]
"""The possible writers of a state's fleets: a directory's only process, or the clients of a shared store."""
_OWN_FILES = (
    ("control", "xds", "tls", "certificate"),
    ("control", "xds", "tls", "key"),
    ("control", "xds", "tls", "client_ca"),
    ("control", "xds", "tls", "client_crl"),
    ("control", "api", "tls", "certificate"),
    ("control", "api", "tls", "key"),
    ("control", "api", "token_file"),
)
"""Fields that name files belonging to the control plane itself."""


def unchanged(source: FleetSource, _: Diagnostics) -> FleetSource:
    """Return the fleet unchanged, because its files are this process's own files."""
    return source


@dataclass(frozen=True, slots=True)
class FleetContents:
    """Result of reading a fleet."""

    texts: tuple[SourceText, ...]
    """The files."""
    source: FleetSource | None
    """The parsed YAML; None if it could not be parsed."""
    loaded: Loaded | None
    """The compiled fleet; None if there are errors."""
    diagnostics: tuple[Diagnostic, ...]
    """Diagnostics of these files."""
    targets: Mapping[str, bytes] = field(default_factory=dict)
    """Maps the path of each target file or file with custom lines to the contents used; missing files are absent."""

    @property
    def topology(self) -> Topology | None:
        """The fleet's topology; None if there are errors."""
        return self.loaded.compiled.topology if self.loaded else None

    @property
    def failure(self) -> str:
        """A short phrase that explains why the fleet cannot be used."""
        count = sum(item.severity == "error" for item in self.diagnostics)
        return refusal_reason(self.diagnostics) or f"{count} error{'s' if count > 1 else ''} in its files"

    def files(self) -> list[Path]:
        """Return every file that the YAML names, including files that belong to the control plane itself."""
        if self.source is None:
            return []
        nodes = [node for _, node in named_files(self.source.root)]
        nodes += own_lines_nodes(self.source.root)
        nodes += [node for path in _OWN_FILES if (node := descend(self.source.root, path)) is not None]
        return sorted({file_of(self.source, node) for node in nodes if isinstance(node.value, str)})


def read(
    texts: Sequence[SourceText],
    target_contents: Mapping[str, bytes],
    certificates: CertificateCache,
    read_keys: ReadKeys,
    diagnostics: Diagnostics,
    with_own: WithOwn = unchanged,
    withheld: tuple[str, ...] = (),
) -> FleetContents:
    """Read the fleet from these texts.

    `target_contents` maps the path of each target file to the contents to use instead of the file's own contents.
    `read_keys` reads a fleet's key files. `diagnostics` contains the findings from earlier steps. `with_own` returns a
    fleet with the sections from this process's own files, for use if the texts come from elsewhere. `withheld`: this
    process's files and directories that no fleet may name.
    """
    silenced = silenced_by_comments(texts)
    diagnostics.silence(silenced)
    source = parse_cached(tuple(texts), diagnostics)
    if source is None:
        return FleetContents(tuple(texts), None, None, tuple(diagnostics))
    source = with_own(source, diagnostics)
    targets = _targets(source, target_contents)
    source = replace(source, target_contents=targets, withheld=withheld)
    loaded = complete(source, diagnostics, secrets=read_keys(source, diagnostics), cache=_SECTIONS)
    if loaded is None:
        return FleetContents(tuple(texts), source, None, tuple(diagnostics), targets)
    files, findings = certificates.read(source, loaded.compiled.topology)
    combined = Diagnostics()
    combined.silence(silenced)
    combined.extend(item for item in diagnostics if not _is_superseded(item, findings))
    combined.extend(findings)
    complete_fleet = replace(loaded, secrets=replace(loaded.secrets, files=files))
    return FleetContents(tuple(texts), source, None if combined.failed else complete_fleet, tuple(combined), targets)


def read_control(paths: Sequence[str]) -> ControlSection:
    """Read the `control` section of the files at these paths, even if they have errors elsewhere."""
    diagnostics = Diagnostics()
    files = read_texts(paths, diagnostics)
    unreadable = next((item for item in diagnostics if item.severity == "error"), None)
    fleet = parse_cached(tuple(files), diagnostics)
    if fleet is not None and not diagnostics.failed:
        return ControlSection(fleet)
    section = control_alone(files)
    return section if section.source or section.lost else ControlSection(fleet, unreadable)


def own_control(paths: Sequence[str]) -> FleetSource | None:
    """Return the fleet at these paths, reduced to its `control` section; None unless that section is complete."""
    section = control_alone(read_texts(paths, Diagnostics()))
    return None if section.lost else section.source


def parse_cached(texts: tuple[SourceText, ...], diagnostics: Diagnostics) -> FleetSource | None:
    """Parse the YAML. Return None if this fails.

    The result of the last call is cached, because the same texts are parsed again to find the listen addresses, after a
    change to a certificate only, and after a new fleet has been rejected.
    """
    source, all_diagnostics = _parse_cached(texts, tuple(diagnostics))
    diagnostics.extend(all_diagnostics)
    return source


_SECTIONS = SectionCache()
"""The pools and routes of the last fleet, because a reload validates and compiles only those that have changed."""


@lru_cache(maxsize=1)
def _parse_cached(
    texts: tuple[SourceText, ...], earlier: tuple[Diagnostic, ...]
) -> tuple[FleetSource | None, tuple[Diagnostic, ...]]:
    """Parse the texts, and return all diagnostics. `earlier`: diagnostics from when the texts were read."""
    diagnostics = Diagnostics()
    diagnostics.extend(earlier)
    source = parse(texts, diagnostics, _SECTIONS)
    return source, tuple(diagnostics)


def _is_superseded(item: Diagnostic, findings: Sequence[Diagnostic]) -> bool:
    """Return whether `item` reports a missing certificate or key file that a more specific finding also reports."""
    is_missing_file = item.code == "LB110" and item.path[-1] != "path"
    return is_missing_file and any(item.path[:-1] == finding.path[:-1] for finding in findings)


def _targets(source: FleetSource, target_contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Read the target files and custom lines once, so that the compiled contents are also the saved contents."""
    nodes = [node for path, node in named_files(source.root) if path[0] == "pools" and path[-1] == "path"]
    nodes += own_lines_nodes(source.root)
    paths = {str(file_of(source, node)) for node in nodes}
    contents = {path: target_contents.get(path, read_targets(Path(path))) for path in sorted(paths)}
    return {path: content for path, content in contents.items() if content is not None}
