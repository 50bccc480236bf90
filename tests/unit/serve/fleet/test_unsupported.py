"""The warnings about unsupported features are complete although unchanged pools and routes are not searched again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.model.section_cache import SectionCache
from lbctl.serve.fleet.unsupported import unsupported_features
from lbctl.targets.load import Loaded, complete

_FLEET = """\
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes:
  all: {match: {path_prefix: /}, pool: one}
  llama: {match: {path_prefix: /, model: [llama]}, pool: two}
pools:
  one: {replicas: [{address: "127.0.0.1:9001"}], balance: {algorithm: least_time}}
  two: {replicas: [{address: "127.0.0.1:9002"}], health: {load_shedding: {}}}
"""
_CHANGES = {
    "nothing": ("", ""),
    "another pool": ('9002"}]', '9002"}], drain_deadline: 5s'),
    "a pool without the feature": (", health: {load_shedding: {}}", ""),
    "the lines above": ("pools:\n", "# a comment\npools:\n"),
    "the defaults of all pools": ("version: 1\n", "version: 1\ndefaults: {pool: {timeouts: {queue: 5s}}}\n"),
    "the listener of all routes": ('8080"', '8080", http2: true'),
    "the protection of a model": ("[llama]}, pool: two", "[llama]}, pool: two, rate_limit: [{by: all, rate: 5/s}]"),
}
_PROXIES = (Proxy("e", "envoy", (1, 40)), Proxy("h", "haproxy", (2, 6)), Proxy("n", "nginx", (1, 22)))


def _loaded(directory: Path, text: str, cache: SectionCache | None = None) -> Loaded:
    diagnostics = Diagnostics()
    source = parse([SourceText("fleet.yaml", text.encode(), str(directory))], diagnostics, cache)
    assert source is not None
    loaded = complete(source, diagnostics, cache=cache)
    assert loaded is not None, list(diagnostics)
    return loaded


def _warnings(loaded: Loaded) -> tuple[Diagnostic, ...]:
    return unsupported_features(loaded, Snapshot(loaded.compiled.topology), _PROXIES)


@pytest.mark.parametrize("change", _CHANGES)
def test_warnings_after_a_change_equal_warnings_at_start(change: str, tmp_path: Path) -> None:
    """The fleet changes and changes back; at last, the fleet before it is still in use."""
    changed, cache = _FLEET.replace(*_CHANGES[change]), SectionCache()
    at_start = {text: _warnings(_loaded(tmp_path, text)) for text in (_FLEET, changed)}
    assert (at_start[changed] == at_start[_FLEET]) == (change == "nothing")
    for text, other in ((_FLEET, changed), (changed, _FLEET)) * 2:
        loaded = _loaded(tmp_path, text, cache)
        assert _warnings(loaded) == at_start[text]
        assert _warnings(_loaded(tmp_path, other, cache)) == at_start[other]
        assert _warnings(loaded) == at_start[text]
