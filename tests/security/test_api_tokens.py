"""The holder of an API token may do no more than its role allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from lbctl.api.routes import ROUTES, ApiRoute
from tests.support.api import Fleet
from tests.support.api_server import serving

TOKENS = "anna:operate:token-of-anna\nviewer:read:token-of-viewer\nedge:picker:token-of-edge\n"
WRITES = [route for route in ROUTES if route.access == "write"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an API with a token of each role."""
    file: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(TOKENS)
    with serving(Fleet(), file) as url:
        yield url


@pytest.mark.parametrize("route", WRITES, ids=lambda route: route.operation)
@pytest.mark.parametrize(("token", "status"), [("token-of-viewer", 403), ("token-of-edge", 403), ("other", 401)])
def test_only_an_operator_may_write(api: str, route: ApiRoute, token: str, status: int) -> None:
    headers = {"authorization": f"Bearer {token}"}
    answer = requests.request(route.method, api + route.path, json={}, headers=headers, timeout=30)
    assert answer.status_code == status


def test_operator_writes_no_files_and_no_audit_log(api: str) -> None:
    """An operator has exactly these operations. Each of them is recorded, and none accepts the text of a file."""
    operations = {route.operation for route in WRITES}
    assert operations == {"reload", "rollback", "put_override", "remove_override", "act_on_rollout"}
    headers = {"authorization": "Bearer token-of-anna"}
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        for path in ("/api/v1/audit", "/api/v1/fleet", "/api/v1/history"):
            assert requests.request(method, api + path, json={}, headers=headers, timeout=30).status_code == 405
