"""One reading of a fleet with everything that it names: texts in, what may be served out.

The texts may be those of the files or kept ones; certificates, key files and files of targets are read as they are now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile.discovery import content
from lbctl.compile.files import file_of, named_files
from lbctl.ir.topology import Topology
from lbctl.model.fleet import Source, understand
from lbctl.model.load import Text
from lbctl.model.node import descend
from lbctl.serve.pem import Pem
from lbctl.targets.load import Loaded, complete

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
class Reading:
    """`loaded`: None where there are errors; `source`: what is left of the YAML then, or None. `targets`: place of a
    file of targets → the content that was taken; one that is not there is absent."""

    texts: tuple[Text, ...]
    source: Source | None
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
        return f"{count} error{'s' if count > 1 else ''} in its files"

    def files(self) -> list[Path]:
        """Every file that the YAML names, the control plane's own too."""
        if self.source is None:
            return []
        nodes = [node for _, node in named_files(self.source.root)]
        nodes += [node for path in _OWN_FILES if (node := descend(self.source.root, path)) is not None]
        return sorted({file_of(self.source, node) for node in nodes if isinstance(node.value, str)})


def read(texts: Sequence[Text], stand_ins: Mapping[str, bytes], pem: Pem, diagnostics: Diagnostics) -> Reading:
    """`stand_ins`: place of a file of targets → what is taken for its content; `diagnostics`: found so far."""
    source = understood(tuple(texts), diagnostics)
    if source is None:
        return Reading(tuple(texts), None, None, tuple(diagnostics))
    targets = _targets(source, stand_ins)
    source = replace(source, stand_ins=targets)
    loaded = complete(source, diagnostics)
    if loaded is None:
        return Reading(tuple(texts), source, None, tuple(diagnostics), targets)
    files, findings = pem.read(source, loaded.compiled.topology)
    told = Diagnostics()
    told.extend(item for item in diagnostics if not _said_better(item, findings))
    told.extend(findings)
    whole = replace(loaded, secrets=replace(loaded.secrets, files=files))
    return Reading(tuple(texts), source, None if told.failed else whole, tuple(told), targets)


def understood(texts: tuple[Text, ...], diagnostics: Diagnostics) -> Source | None:
    """What the YAML says. The last texts are remembered: the same ones are asked for again to know where to listen,
    where only a certificate has changed, and where what is new is refused."""
    source, found = _understood(texts, tuple(diagnostics))
    diagnostics.extend(found)
    return source


@lru_cache(maxsize=1)
def _understood(texts: tuple[Text, ...], known: tuple[Diagnostic, ...]) -> tuple[Source | None, tuple[Diagnostic, ...]]:
    """`known`: what was found when they were read."""
    diagnostics = Diagnostics()
    diagnostics.extend(known)
    source = understand(texts, diagnostics)
    return source, tuple(diagnostics)


def _said_better(item: Diagnostic, findings: Sequence[Diagnostic]) -> bool:
    """That a file is missing, where something was found of the certificate or key that it is."""
    return item.code == "LB110" and item.path[-1] != "path" and any(item.path[:-1] == f.path[:-1] for f in findings)


def _targets(source: Source, stand_ins: Mapping[str, bytes]) -> dict[str, bytes]:
    """What the fleet is compiled with, read once, so that this and nothing else is kept of it."""
    nodes = [node for path, node in named_files(source.root) if path[0] == "pools" and path[-1] == "path"]
    places = {str(file_of(source, node)) for node in nodes}
    found = {place: stand_ins.get(place, content(Path(place))) for place in sorted(places)}
    return {place: data for place, data in found.items() if data is not None}
