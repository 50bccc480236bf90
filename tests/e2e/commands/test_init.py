"""Each proxy accepts the fleets that `lbctl init` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support import init as fake
from tests.support.init import fleet_of_every_kind, init_process, serving
from tests.support.processes.binaries import Kind, require
from tests.support.processes.certs import Authority

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def every_kind() -> str:
    return fleet_of_every_kind()


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the fleet of a server with TLS, whose CA the system trusts."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    context = fake.server_context(authority.issue("localhost", ["localhost", "127.0.0.1"]))
    with serving(fake.vllm(), tls=context) as (server,):
        process = init_process(server.url, SSL_CERT_FILE=str(authority.ca))
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("fixture", ["every_kind", "with_tls"])
def test_proxy_accepts_the_fleet_of_servers(
    kind: Kind, fixture: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: Output
) -> None:
    require(kind)
    file = tmp_path / "fleet.yaml"
    file.write_text(request.getfixturevalue(fixture), encoding="utf-8")
    code = run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)])
    messages = capsys.readouterr().err
    assert code == 0, messages
    assert ": error " not in messages


def test_proxy_accepts_the_default_fleet(kind: Kind, tmp_path: Path, capsys: Output) -> None:
    require(kind)
    file = tmp_path / "fleet.yaml"
    assert run(["init", "-f", str(file)]) == 0
    assert run(["render", "-t", kind, "--check", "-d", str(tmp_path / "out"), str(file)]) == 0
    assert ": error " not in capsys.readouterr().err
