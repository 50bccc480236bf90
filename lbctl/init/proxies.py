"""Reports which proxies support a fleet written by `init`, so that users can choose a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets import target
from lbctl.targets.load import Loaded, complete
from lbctl.up.launchers import LAUNCHERS
from lbctl.up.proxy_choice import suitability


def advice(text: str) -> tuple[str, ...]:
    """Return one line for each kind of proxy that states whether it supports all of the fleet's features."""
    loaded = _loaded(text)
    return tuple(_lines(loaded)) if loaded else ()


def obstacles(text: str, kind: str) -> tuple[Diagnostic, ...]:
    """Return what prevents this kind of proxy from serving the fleet.

    Positions are config paths, because no file exists yet.
    """
    loaded = _loaded(text)
    diagnostics = suitability(loaded, kind).obstacles if loaded else ()
    return tuple(replace(item, position=None) for item in diagnostics)


def _lines(loaded: Loaded) -> Iterator[str]:
    for kind in LAUNCHERS.names:
        yield f"{target(kind).title} {suitability(loaded, kind).summary}"


def _loaded(text: str) -> Loaded | None:
    source = parse([SourceText("fleet.yaml", text.encode(), ".")], diagnostics := Diagnostics())
    return complete(source, diagnostics) if source else None
