"""`lbctl drain --wait` and `--wait-idle`: the applied state of the proxies, and exit code 3 if a proxy lags behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli import drain_wait, overrides, run
from tests.support import api
from tests.support.api import Fleet
from tests.support.api_server import serving

TOKEN = "0123456789abcdef0123456789abcdef"
FAILING = replace(
    api.DRIVEN, connected=False, state="FAILING", reason="no such file: /run/ha.sock", last_good="v0", version="v0"
)
DRAINED = replace(api.REPLICA, state="drained", in_flight=0, idle=True, state_reason="drained by an operator")
DRAINING = replace(DRAINED, state="draining", in_flight=2, idle=False)
NOT_KNOWN = "drained; its requests in flight are unknown"
UNKNOWN = replace(DRAINED, state="draining", in_flight=None, idle=None, state_reason=NOT_KNOWN)


class DrainFleet(Fleet):
    """A control plane that accepts a drain, and then shows one row of the replica after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = api.status(snapshot=schema.Snapshot("v1", api.THEN, 0.0, "files", 1, 1))
        self.rows = [DRAINED]

    async def put_override(self, request: schema.OverrideRequest, actor: str) -> schema.OverrideResult:
        held = schema.Override(
            request.kind, request.pool, request.replica, value=None, route=None, shares={}, reason=None, author=actor,
            since=api.THEN, until=None,
        )  # fmt: skip
        return schema.OverrideResult(held, None, ())

    def pools(self) -> schema.Pools:
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        return schema.Pools((replace(api.pool("chat", row), drain_deadline_seconds=1.0),))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> DrainFleet:
    for module, name in ((overrides, "_WAIT_TIMEOUT"), (drain_wait, "_MARGIN"), (drain_wait, "_UNKNOWN_FOR")):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(drain_wait, "_POLL_INTERVAL", 0.05)
    return DrainFleet()


@pytest.fixture
def command(fleet: DrainFleet, tmp_path: Path) -> Iterator[list[str]]:
    token = tmp_path / "token"
    token.write_text(f"operator:operate:{TOKEN}\n")
    token.chmod(0o600)
    (tmp_path / "alone").write_text(f"{TOKEN}\n")
    with serving(fleet, token) as url:
        yield ["drain", "chat/a", "--server", url, "--token-file", str(tmp_path / "alone")]


def test_drain_does_not_report_more_than_it_knows(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 0
    assert capsys.readouterr().err == "lbctl: draining chat/a\n"
    assert run([*command, "--wait"]) == 0
    assert capsys.readouterr().err == "lbctl: draining chat/a\nlbctl: applied by edge-1\n"


@pytest.mark.slow
def test_failing_proxy_without_the_drain_ends_with_3(
    fleet: DrainFleet, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.connected = (api.ENVOY, FAILING)
    assert run([*command, "--wait"]) == 3
    assert "lbctl: not applied by ha (FAILING: no such file: /run/ha.sock)\n" in capsys.readouterr().err
    recovers = threading.Timer(0.3, setattr, (fleet, "connected", (api.ENVOY, api.DRIVEN)))
    recovers.start()
    assert run([*command, "--wait"]) == 0
    recovers.join()
    assert "applied by edge-1, ha" in capsys.readouterr().err


@pytest.mark.slow
def test_proxies_that_have_left_or_have_nothing_are_not_awaited(fleet: DrainFleet, command: list[str]) -> None:
    gone = replace(api.ENVOY, node="edge-2", connected=False, state="GONE", last_good="v0")
    foreign = replace(api.ENVOY, node="stranger", state="REFUSED", last_good="")
    fleet.connected = (api.ENVOY, gone, foreign)
    assert run([*command, "--wait"]) == 0
    fleet.connected = (api.ENVOY, replace(foreign, last_good="v0"))
    assert run([*command, "--wait"]) == 3


def test_idle_is_awaited(fleet: DrainFleet, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fleet.rows = [DRAINING, DRAINING, DRAINED]
    assert run([*command, "--wait-idle"]) == 0
    assert capsys.readouterr().err.endswith("lbctl: chat/a: it has no requests in flight\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([replace(DRAINING, state_reason="drained; 2 requests in flight")], "2 requests in flight"),
        ([UNKNOWN], "its requests in flight are unknown"),
        ([DRAINING, replace(DRAINING, state="removed")], "its drain deadline has passed"),
        ([replace(api.REPLICA, state="in")], "it is no longer draining: its state is in"),
    ],
    ids=["busy", "unknown", "removed", "undrained"],
)
def test_replica_that_is_not_idle_ends_with_3(
    rows: list[schema.Replica], message: str, fleet: DrainFleet, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.rows = rows
    assert run([*command, "--wait-idle"]) == 3
    assert message in capsys.readouterr().err
