"""`lbctl render`: defaults depend on the directory of the configuration, which comes from the fleet or from -d."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import render, run
from lbctl.targets.target import Bundle

_FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"%s}}
routes: {all: {match: {path_prefix: /}, pool: p}}
pools: {p: {replicas: [{address: "10.0.0.1:8000"}]}}
"""
_NOTE = "is not suitable for the distribution's"


@pytest.mark.parametrize(
    ("kind", "listener", "proxies", "reason"),
    [
        ("nginx", "", "", "cannot open the access log /dev/stdout"),
        ("nginx", ", access_log: {path: /srv/access.log}", "", None),
        ("nginx", "", "proxies: {edge: {kind: nginx, config: /srv/nginx.conf}}", None),
        ("haproxy", "", "", "would run as root"),
        ("haproxy", "", "proxies: {edge: {kind: haproxy, user: haproxy}}", None),
        ("envoy", "", "", None),
    ],
)
def test_unsuitable_configuration_for_a_service_is_a_note(
    kind: str, listener: str, proxies: str, reason: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(_FLEET % listener + proxies)
    assert run(["render", "-t", kind, "-d", str(tmp_path / "out"), str(tmp_path / "fleet.yaml")]) == 0
    messages = capsys.readouterr().err
    assert (_NOTE in messages) == (reason is not None)
    assert (reason or "") in messages


@pytest.mark.parametrize(
    ("kind", "directory", "line"),
    [
        ("nginx", "/etc/nginx", "access_log /var/log/nginx/access.log lb_log0;"),
        ("nginx", "/opt/nginx/conf", "access_log /var/log/nginx/access.log lb_log0;"),
        ("haproxy", "/etc/haproxy", "chroot '/var/lib/haproxy'"),
    ],
)
def test_service_directory_sets_defaults_of_the_service(
    kind: str, directory: str, line: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    written: dict[str, Bundle] = {}
    monkeypatch.setattr(render, "write_bundle", lambda bundle, place: written.update({place: bundle}))
    (tmp_path / "fleet.yaml").write_text(_FLEET % "")
    assert run(["render", "-t", kind, "-d", directory, str(tmp_path / "fleet.yaml")]) == 0
    assert line in written[directory].main.text
    assert _NOTE not in capsys.readouterr().err
