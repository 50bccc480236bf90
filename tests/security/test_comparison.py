"""A comparison of a hostile configuration touches nothing on this machine, even without a sandbox.

Each file of `hostile` is named after its attack. It is checked as text, and compared with the real proxy: nothing that
it names (`tests.support.hostile`) is created, changed, deleted, connected to or executed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.base.diagnostics import Diagnostics, Position
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.processes import NotStartedError
from lbctl.importer.compare.run import compare_in, rewritten
from lbctl.importer.compare.sandbox.confined import Sandbox
from lbctl.importer.compare.sources import haproxy, nginx
from lbctl.importer.compare.sources.haproxy_keywords import ACTIONS, KEYWORDS, OPTIONS
from lbctl.importer.compare.sources.nginx_directives import RUN, UPSTREAM
from lbctl.importer.draft import addresses
from lbctl.importer.run import run
from lbctl.importer.statement import Statement
from tests.security.hostile_checks import CHECKS
from tests.support.hostile import DIRECTORY, KINDS, Guard, guarded
from tests.support.processes.binaries import require

FILES = [(kind, file) for kind in KINDS for file in sorted((DIRECTORY / kind).iterdir()) if file.is_file()]
CASES = [pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind, file in FILES]
_AT_ONCE = 4
_SOME = {
    "nginx": ("unix_socket_by_variable", "store_by_proxy_store", "access_log_by_variable"),
    "haproxy": ("runtime_socket", "destination_by_rule"),
    "envoy": ("lua_by_typed_struct", "access_log_to_file", "authorization_by_google_grpc"),
}
"""Files that `make test` compares with the real proxy."""


@pytest.mark.parametrize(("kind", "file"), CASES)
def test_hostile_file_is_made_anew_of_harmless_parts(kind: str, file: Path, tmp_path: Path) -> None:
    with guarded() as guard:
        source = guard.written(kind, file, tmp_path)
        imported = run(kind, [str(source)], Diagnostics())
        fleet = imported.draft.fleet if imported is not None else {"listeners": {}, "pools": {}}
        binds = {str(item["bind"]): 20000 + number for number, item in enumerate(fleet["listeners"].values())}
        replicas = {name: 21000 for pool in fleet["pools"].values() for name in addresses(pool)}
        own = tmp_path / "own"
        own.mkdir()
        text = rewritten(kind, [str(source)], StandIns(own, binds, replicas)).text
        assert [*CHECKS[kind](text, own, guard)] == []
        assert guard.secret not in text
        assert guard.violations() == []


PIECES = st.sampled_from(
    [
        "$x", "${x}", "$LBCTL_host_0", "(?<lbctl_path_0>.*)", "$realpath_root", "u", "http://", "unix:/run/s",
        "10.0.0.1", ":8000", "/../etc/passwd", '"', "'", ";", "}", "{", "\n", "\r", "\\", "#", " ", "%[path]",
        "%[env(HOME)]", "%[lua.x]", "if", "-f", "map(/etc/passwd)", "str(a)", ",", "7", "on", "zone=z:1m", "= ", "~"
    ]
)  # fmt: skip
WORDS = st.lists(PIECES, max_size=4).map("".join)
NGINX = st.sampled_from(
    [*RUN, *UPSTREAM, "proxy_pass", "grpc_pass", "fastcgi_pass", "root", "listen", "limit_req", "set", "include"]
)
NGINX_BLOCKS = st.sampled_from(
    ["location", "if", "limit_except", "map", "geo", "split_clients", "upstream", "types", "server"]
)
HAPROXY = st.sampled_from(
    [*KEYWORDS, "acl", "server", "bind", "use_backend", "balance", "option", "http-request", "http-response"]
)
ACTION = st.one_of(WORDS, st.sampled_from([*ACTIONS, *OPTIONS, "set-var(txn.a)", "lua.x", "if", "{", "}"]))


def statement(name: str, args: list[str], block: list[Statement], *, is_block: bool = False) -> Statement:
    return Statement(Position("drawn", 1), (name, *args), tuple(block), is_block)


DIRECTIVES = st.recursive(
    st.builds(statement, NGINX, st.lists(WORDS, max_size=4), st.just([])),
    lambda inner: st.builds(
        statement, NGINX_BLOCKS, st.lists(WORDS, max_size=3), st.lists(inner, max_size=4), is_block=st.just(value=True)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    with guarded() as things:
        yield things


@given(block=st.lists(DIRECTIVES, max_size=8))
def test_drawn_directives_are_made_anew_of_harmless_parts(guard: Guard, block: list[Statement]) -> None:
    listen = statement("listen", ["8080"], [])
    server = statement("server", [], [listen, *block], is_block=True)
    places = StandIns(guard.own, {"0.0.0.0:8080": 20000}, {"10.0.0.1:8000": 21000})
    assert [*CHECKS["nginx"](nginx.rewrite([server, *block], places).text, guard.own, guard)] == []


@given(lines=st.lists(st.builds(statement, HAPROXY, st.lists(ACTION, max_size=6), st.just([])), max_size=12))
def test_drawn_lines_are_made_anew_of_harmless_parts(guard: Guard, lines: list[Statement]) -> None:
    sections = [statement("frontend", ["f"], lines, is_block=True)]
    text = haproxy.rewrite(sections, StandIns(guard.own, {}, {"10.0.0.1:8000": 21000})).text
    assert [*CHECKS["haproxy"](text, guard.own, guard)] == []


def violations(kind: str, file: Path) -> list[str]:
    """Return the effects that a comparison without a sandbox had on the targets that the file names."""
    binary = str(require(kind))  # type: ignore[arg-type]
    with guarded() as guard, tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        base.chmod(0o711)
        (base / "source").mkdir()
        source = guard.written(kind, file, base / "source")
        imported = run(kind, [str(source)], Diagnostics())
        shown = ""
        if imported is not None:
            with suppress(NotStartedError):
                shown = repr(compare_in(Sandbox("none", base), kind, binary, [str(source)], imported.draft))
        seen = ["a file was shown"] if guard.secret in shown else []
        return [f"{file.name}: {each}" for each in (*seen, *guard.violations())]


def all_violations(kind: str, files: Iterable[Path]) -> list[str]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [each for found in pool.map(lambda file: violations(kind, file), files) for each in found]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("kind", _SOME)
def test_comparisons_leave_the_machine_alone(kind: str) -> None:
    assert all_violations(kind, [file for each, file in FILES if each == kind and file.stem in _SOME[kind]]) == []


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_all_comparisons_leave_the_machine_alone(kind: str) -> None:
    assert all_violations(kind, [file for each, file in FILES if each == kind]) == []


def test_corpus_is_large() -> None:
    assert len(FILES) >= 60


def test_guard_sees_each_kind_of_damage(tmp_path: Path) -> None:
    with guarded() as guard:
        source = guard.written("nginx", DIRECTORY / "nginx" / "load_module.conf", tmp_path)
        assert str(guard.directory) in source.read_text()
        assert guard.violations() == []
        (guard.directory / "executed").touch()
        (guard.directory / "kept").write_text("changed")
        (guard.directory / "below" / "other").unlink()
        assert len(guard.violations()) >= 4
