"""A fleet that is compiled with cached objects of the previous fleet equals a fleet that is compiled from scratch."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.fleet import Compiled
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.model.section_cache import SectionCache
from lbctl.targets.load import complete
from tests.benchmarks.fleets import fleet

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

_FLEET = """\
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes:
  all: {match: {path_prefix: /}, pool: one, fallback: two}
  some: {match: {path_prefix: /some}, pool: two}
  tokens: {match: {path_prefix: /tokens}, pool: picked, rate_limit: [{by: all, prompt_tokens: 5k/m}]}
pools:
  one: {replicas: [{address: "127.0.0.1:9001", gpu: L4}, {address: "127.0.0.1:9002", gpu: L4}]}
  picked: {replicas: [{address: "127.0.0.1:9020"}], balance: {algorithm: pick}}
  ranks: {replicas: [{address: "127.0.0.1:9003", ports: 2}]}
  two: {discovery: {file: {path: targets.json}}}
"""
_CHANGES = (
    ("", ""),
    ("gpu: L4}]", "gpu: L40S}]"),
    ("version: 1\n", "version: 1\ngpus: {L4: 7}\n"),
    (", fallback: two", ""),
    ("pool: two}", "pool: three}"),
    ("gpu: L4}]", "gpu: L5}]"),
    ("version: 1\n", 'version: 1\ncontrol: {api: {bind: "127.0.0.1:9001"}}\n'),
    ("version: 1\n", "version: 1\n# a comment\ndefaults: {pool: {drain_deadline: 30s}}\n"),
    ("listeners: {", 'listeners: {other: {bind: "127.0.0.1:8081"}, '),
    ("  two: {", '  three: {replicas: [{address: "127.0.0.1:9010"}]}\n  two: {'),
    ("path_prefix: /some", "path_prefix: /"),
    (", ports: 2", ""),
    ("5k/m", "6k/m"),
    (", rate_limit: [{by: all, prompt_tokens: 5k/m}]", ""),
    ("algorithm: pick", "algorithm: random"),
)


class _Compiler:
    """Compiles one fleet after the other with the same cache."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache = SectionCache()

    def compiled(self, text: str) -> tuple[Compiled | None, list[str]]:
        diagnostics = Diagnostics()
        texts = [SourceText("fleet.yaml", text.encode(), str(self._directory))]
        source = parse(texts, diagnostics, self._cache)
        assert source is not None
        loaded = complete(source, diagnostics, cache=self._cache)
        return loaded and loaded.compiled, list(map(str, diagnostics))


def _equal(first: tuple[Compiled | None, list[str]], second: tuple[Compiled | None, list[str]]) -> bool:
    """Compare topologies and messages; YAML trees cannot be compared."""
    topologies = [
        compiled and (compiled.topology, compiled.sources.replicas, compiled.sources.limits)
        for compiled, _ in (first, second)
    ]
    return topologies[0] == topologies[1] and first[1] == second[1]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(_CHANGES)))
def test_a_cached_compilation_equals_a_fresh_one(first: int, tmp_path: Path) -> None:
    """Each fleet is compiled after each other one, and compiled again after that."""
    (tmp_path / "targets.json").write_text('[{"targets": ["127.0.0.1:9009"]}]')
    fleets = [_FLEET.replace(*change) for change in _CHANGES]
    fresh = [_Compiler(tmp_path).compiled(text) for text in fleets]
    for second in {*range(len(fleets))} - {first}:
        compiler = _Compiler(tmp_path)
        for number in (first, second, first):
            assert _equal(compiler.compiled(fleets[number]), fresh[number]), (first, second)


def test_a_targets_file_is_read_again(tmp_path: Path) -> None:
    compiler, file = _Compiler(tmp_path), tmp_path / "targets.json"
    for port in (9009, 9010):
        file.write_text(f'[{{"targets": ["127.0.0.1:{port}"]}}]')
        compiled, _ = compiler.compiled(_FLEET)
        assert compiled is not None
        assert [str(item.address) for item in compiled.topology.pools[3].replicas] == [f"127.0.0.1:{port}"]


def test_unchanged_pools_and_routes_are_reused(tmp_path: Path) -> None:
    compiler, text = _Compiler(tmp_path), fleet(40, 3)
    first, _ = compiler.compiled(text)
    changed = text.replace('{name: r1, address: "127.7.0.2:9"', '{name: r1, drain: true, address: "127.7.0.2:9"')
    assert changed != text
    second, _ = compiler.compiled(changed)
    assert _equal((second, []), (_Compiler(tmp_path).compiled(changed)[0], []))
    assert first is not None
    assert second is not None
    pairs = zip(first.topology.pools, second.topology.pools, strict=True)
    assert [old.name for old, new in pairs if old is not new] == ["pool-7"]
    assert all(old is new for old, new in zip(first.topology.routes, second.topology.routes, strict=True))
