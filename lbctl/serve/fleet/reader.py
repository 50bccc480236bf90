"""One reading of a fleet with everything that it names: texts in, what may be served out.

The texts may be those of the files or kept ones; certificates, key files and files of targets are read as they are now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.discovery import read_targets
from lbctl.compile.files import file_of, named_files
from lbctl.ir.secrets import Secrets
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource, parse
from lbctl.model.load import SourceText
from lbctl.model.node import descend
from lbctl.serve.fleet.certificates import Pem
from lbctl.serve.fleet.key_files import reason
from lbctl.targets.load import Loaded, complete

ReadKeys = Callable[[FleetSource, Diagnostics], Secrets]
_OWN_FILES = (
    ("control", "xds", "tls", "certificate"),
    ("control", "xds", "tls", "key"),
    ("control", "xds", "tls", "client_ca"),
    ("control", "api", "tls", "certificate"),
    ("control", "api", "tls", "key"),
    ("control", "api", "token_file"),
)
"""What the control plane itself reads."""


@dataclass(frozen=True, slots=True)
class FleetContents:
    """`loaded`: None where there are errors; `source`: what is left of the YAML then, or None. `targets`: place of a
    file of targets → the content that was taken; one that is not there is absent."""

    texts: tuple[SourceText, ...]
    source: FleetSource | None
    loaded: Loaded | None
    diagnostics: tuple[Diagnostic, ...]
    targets: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def topology(self) -> Topology | None:
        return self.loaded.compiled.topology if self.loaded else None

    @property
    def failure(self) -> str:
        """Why there is no fleet, in a few words."""
        count = sum(item.severity == "error" for item in self.diagnostics)
        return reason(self.diagnostics) or f"{count} error{'s' if count > 1 else ''} in its files"

    def files(self) -> list[Path]:
        """Every file that the YAML names, the control plane's own too."""
        if self.source is None:
            return []
        nodes = [node for _, node in named_files(self.source.root)]
        nodes += [node for path in _OWN_FILES if (node := descend(self.source.root, path)) is not None]
        return sorted({file_of(self.source, node) for node in nodes if isinstance(node.value, str)})


def read(
    texts: Sequence[SourceText],
    target_contents: Mapping[str, bytes],
    pem: Pem,
    keys: ReadKeys,
    diagnostics: Diagnostics,
) -> FleetContents:
    """`target_contents`: place of a file of targets → what is taken for its content; `keys`: reads the key files of a
    fleet; `diagnostics`: found so far."""
    source = understood(tuple(texts), diagnostics)
    if source is None:
        return FleetContents(tuple(texts), None, None, tuple(diagnostics))
    targets = _targets(source, target_contents)
    source = replace(source, target_contents=targets)
    loaded = complete(source, diagnostics, secrets=keys(source, diagnostics))
    if loaded is None:
        return FleetContents(tuple(texts), source, None, tuple(diagnostics), targets)
    files, findings = pem.read(source, loaded.compiled.topology)
    told = Diagnostics()
    told.extend(item for item in diagnostics if not _said_better(item, findings))
    told.extend(findings)
    whole = replace(loaded, secrets=replace(loaded.secrets, files=files))
    return FleetContents(tuple(texts), source, None if told.failed else whole, tuple(told), targets)


def understood(texts: tuple[SourceText, ...], diagnostics: Diagnostics) -> FleetSource | None:
    """What the YAML says. The last texts are remembered: the same ones are asked for again to know where to listen,
    where only a certificate has changed, and where what is new is refused."""
    source, found = _understood(texts, tuple(diagnostics))
    diagnostics.extend(found)
    return source


@lru_cache(maxsize=1)
def _understood(
    texts: tuple[SourceText, ...], known: tuple[Diagnostic, ...]
) -> tuple[FleetSource | None, tuple[Diagnostic, ...]]:
    """`known`: what was found when they were read."""
    diagnostics = Diagnostics()
    diagnostics.extend(known)
    source = parse(texts, diagnostics)
    return source, tuple(diagnostics)


def _said_better(item: Diagnostic, findings: Sequence[Diagnostic]) -> bool:
    """That a file is missing, where something was found of the certificate or key that it is."""
    return item.code == "LB110" and item.path[-1] != "path" and any(item.path[:-1] == f.path[:-1] for f in findings)


def _targets(source: FleetSource, target_contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """What the fleet is compiled with, read once, so that this and nothing else is kept of it."""
    nodes = [node for path, node in named_files(source.root) if path[0] == "pools" and path[-1] == "path"]
    places = {str(file_of(source, node)) for node in nodes}
    found = {place: target_contents.get(place, read_targets(Path(place))) for place in sorted(places)}
    return {place: data for place, data in found.items() if data is not None}
