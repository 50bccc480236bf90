"""The files that the author of a fleet may name, and the files that no fleet may read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.compile import allowed_files
from lbctl.ir.pools import KubernetesDiscovery
from lbctl.runtime.net.kubernetes import kubeconfig
from lbctl.runtime.net.kubernetes.cluster import ClusterError
from lbctl.serve.discovery.kubernetes import cluster_of
from lbctl.serve.fleet.reload import FleetReloader
from lbctl.targets.load import Loaded, load
from tests.support.fleets import fleet_of, pool, replica, write_fleet

_TOKEN = "operator:operate:TOKEN-of-the-control-plane"
Named = Callable[[str], dict[str, Any]]
_PASSED_ON: dict[str, Named] = {
    "upstream header": lambda file: _with_pool(upstream={"host": "a.example", "headers": {"x-loot": {"file": file}}}),
    "credentials": lambda file: _with_pool(credentials={"header": "x-key", "file": file}),
    "api keys": lambda file: fleet_of(route={"auth": {"api_keys": {"file": file}}}),
    "users": lambda file: fleet_of(route={"auth": {"basic": {"file": file}}}),
    "own lines": lambda file: fleet_of(proxies={"n": {"kind": "nginx", "include": {"http": [file]}}}),
    "kubeconfig": lambda file: fleet_of(
        pools={"k": {"discovery": {"kubernetes": {"namespace": "n", "service": "s", "kubeconfig": file}}}}
    ),
}
_CHECKED: dict[str, Named] = {
    "certificate": lambda file: _with_pool(tls={"ca": file}),
    "jwks": lambda file: fleet_of(route={"auth": {"jwt": {"issuer": "https://i", "jwks_file": file}}}),
    "targets": lambda file: fleet_of(pools={"f": {"discovery": {"file": {"path": file}}}}),
}
passed_on = pytest.mark.parametrize("name", _PASSED_ON)
any_file = pytest.mark.parametrize("name", [*_PASSED_ON, *_CHECKED])


def _with_pool(**keys: Any) -> dict[str, Any]:
    return fleet_of(pool(replica(), **keys))


@pytest.fixture(name="outside")
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file outside the fleet's directory, `tmp_path / "fleet"`."""
    monkeypatch.delenv(allowed_files.VARIABLE, raising=False)
    (tmp_path / "fleet").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "token"
    file.write_text(f"{_TOKEN}\n")
    return file


def _loaded(directory: Path, fleet: dict[str, Any]) -> tuple[Loaded | None, list[Diagnostic]]:
    diagnostics = Diagnostics()
    loaded = load([str(write_fleet(directory, fleet))], diagnostics)
    return loaded, list(diagnostics)


def _refused(directory: Path, fleet: dict[str, Any]) -> list[Diagnostic]:
    return [item for item in _loaded(directory, fleet)[1] if item.code == allowed_files.REFUSED]


@passed_on
def test_file_elsewhere_is_not_read(name: str, outside: Path) -> None:
    loaded, diagnostics = _loaded(outside.parents[1] / "fleet", _PASSED_ON[name](str(outside)))
    assert loaded is None
    (refused,) = (item for item in diagnostics if item.severity == "error")
    assert refused.code == "LB514"
    assert refused.position is not None
    assert refused.position.line
    assert allowed_files.VARIABLE in refused.hint
    assert "TOKEN" not in " ".join(map(str, diagnostics))


@passed_on
def test_file_elsewhere_need_not_exist_to_be_refused(name: str, outside: Path) -> None:
    outside.unlink()
    assert len(_refused(outside.parents[1] / "fleet", _PASSED_ON[name](str(outside)))) == 1


@passed_on
def test_operator_allows_a_directory(name: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allowed_files.VARIABLE, f"/nowhere:{outside.parent}")
    assert _refused(outside.parents[1] / "fleet", _PASSED_ON[name](str(outside))) == []


@passed_on
def test_link_out_of_an_allowed_directory_is_resolved(
    name: str, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = outside.parents[1] / "allowed"
    allowed.mkdir()
    (allowed / "link").symlink_to(outside)
    monkeypatch.setenv(allowed_files.VARIABLE, str(allowed))
    (refused,) = _refused(outside.parents[1] / "fleet", _PASSED_ON[name](str(allowed / "link")))
    assert str(outside) in refused.message


@passed_on
def test_absolute_path_below_the_fleet_is_read(name: str, outside: Path) -> None:
    directory = outside.parents[1] / "fleet"
    assert _refused(directory, _PASSED_ON[name](str(directory / "keys"))) == []


@passed_on
@pytest.mark.parametrize("directory", allowed_files.DIRECTORIES)
def test_usual_directories_are_allowed(name: str, directory: str, outside: Path) -> None:
    assert _refused(outside.parents[1] / "fleet", _PASSED_ON[name](f"{directory}/not-here/keys")) == []


@pytest.mark.parametrize("name", _CHECKED)
def test_checked_file_may_be_anywhere(name: str, outside: Path) -> None:
    assert _refused(outside.parents[1] / "fleet", _CHECKED[name](str(outside))) == []


@any_file
@pytest.mark.parametrize("place", ["/var/lib/lbctl/api-token", "/run/secrets/kubernetes.io/serviceaccount/token"])
def test_files_of_the_control_plane_are_never_read(
    name: str, place: str, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(allowed_files.VARIABLE, "/")
    fleet = {**_PASSED_ON, **_CHECKED}[name](place)
    (refused,) = _refused(outside.parents[1] / "fleet", fleet)
    assert "belongs to the control plane" in refused.message


@any_file
@pytest.mark.parametrize(
    "control",
    [
        {"state": "state"},
        {"api": {"token_file": "state/api-token"}},
        {"store": {"url": "redis://127.0.0.1", "key_file": "state/api-token"}},
        {"store": {"url": "redis://127.0.0.1", "password": {"file": "state/api-token"}}},
    ],
)
def test_state_that_the_fleet_names_is_never_read(name: str, control: dict[str, Any], outside: Path) -> None:
    fleet = {**_PASSED_ON, **_CHECKED}[name]("state/api-token") | {"control": control}
    assert len(_refused(outside.parents[1] / "fleet", fleet)) == 1


def test_serve_withholds_the_state_of_its_option(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allowed_files.VARIABLE, str(outside.parent))
    directory = outside.parents[1] / "fleet"
    write_fleet(directory, _PASSED_ON["upstream header"](str(outside)))
    assert FleetReloader([str(directory)]).load().refused is None
    outcome = FleetReloader([str(directory)], str(outside.parent)).load()
    assert outcome.loaded is None
    assert "LB514" in [item.code for item in outcome.diagnostics]


_KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://author.example"}}]
users: [{name: u, user: {tokenFile: FILE}}]
"""


def test_kubeconfig_of_a_fleet_sends_no_foreign_token(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = outside.parents[1] / "fleet" / "kubeconfig"
    file.write_text(_KUBECONFIG.replace("FILE", str(outside)))
    with pytest.raises(ClusterError, match=r"kubeconfig:5:.* is outside the directories"):
        kubeconfig.read(file)
    monkeypatch.setenv("KUBECONFIG", str(file))
    kubeconfig.ambient()
    monkeypatch.setenv(allowed_files.VARIABLE, str(outside.parent))
    kubeconfig.read(file)


def test_kubeconfig_of_a_fleet_reads_its_own_token(outside: Path) -> None:
    file = outside.parents[1] / "fleet" / "kubeconfig"
    file.write_text(_KUBECONFIG.replace("FILE", "secrets/token"))
    kubeconfig.read(file)


@pytest.mark.parametrize("token_file", ["state/api-token", "../elsewhere/token", "link"])
def test_kubeconfig_of_a_fleet_sends_no_own_token(
    token_file: str, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(allowed_files.VARIABLE, str(outside.parent))
    directory = outside.parents[1] / "fleet"
    (directory / "state").mkdir()
    (directory / "state" / "api-token").write_text(_TOKEN)
    (directory / "link").symlink_to("state/api-token")
    (directory / "kubeconfig").write_text(_KUBECONFIG.replace("FILE", token_file))
    control = {"state": "state", "api": {"token_file": str(outside)}}
    loaded, _ = _loaded(directory, _PASSED_ON["kubeconfig"]("kubeconfig") | {"control": control})
    assert loaded is not None
    (discovery,) = (item.discovery for item in loaded.compiled.topology.pools if item.name == "k")
    assert isinstance(discovery, KubernetesDiscovery)
    with pytest.raises(ClusterError, match=r"kubeconfig:5:.* belongs to the control plane"):
        cluster_of(discovery)


def test_token_that_becomes_a_link_is_not_sent(outside: Path) -> None:
    file, token = (outside.parents[1] / "fleet" / name for name in ("kubeconfig", "token"))
    file.write_text(_KUBECONFIG.replace("FILE", "token"))
    token.write_text("of-the-author")
    credentials = kubeconfig.read(file).credentials
    assert asyncio.run(credentials.access()).authorization == "Bearer of-the-author"
    token.unlink()
    token.symlink_to(outside)
    with pytest.raises(ClusterError, match="is outside the directories"):
        asyncio.run(credentials.access())


@pytest.mark.parametrize("name", ["upstream header", "credentials", "api keys", "users", "own lines"])
def test_file_that_becomes_a_link_is_not_read(name: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = outside.parents[1] / "fleet" / "file"
    file.write_text("harmless\n")
    opened, contents = os.open, []

    def replaced(path: Path, flags: int) -> int:
        if Path(path) == file:
            file.unlink()
            file.symlink_to(outside)
            contents.append(path)
        return opened(path, flags)

    monkeypatch.setattr("lbctl.compile.files.os.open", replaced)
    _, diagnostics = _loaded(file.parent, _PASSED_ON[name]("file"))
    assert contents
    assert [item.code for item in diagnostics if "replaced while it was being read" in item.message] == [
        "LB130" if name == "own lines" else "LB503"
    ]
