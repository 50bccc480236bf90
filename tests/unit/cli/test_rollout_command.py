"""`lbctl rollout`: the percentage of `set`, the output of `status`, and `--wait`; `freeze` and `rollback`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli import run
from tests.support import api
from tests.support.api import Fleet
from tests.support.api_server import serving
from tests.support.processes.ports import free_port

NO_REQUESTS = schema.RolloutCounts(0, 0, None)
COUNTS = schema.RolloutCounts(100, 1, 0.01)
GOOD = schema.RolloutEvaluation("2026-05-01T10:00:00.000Z", 1, "good", None, COUNTS, COUNTS, ())
ANALYSIS = schema.RolloutAnalysis(None, COUNTS, COUNTS, 0, 2, {"good": 1}, (GOOD,))
STEPS = (schema.RolloutStep(50.0, 60.0), schema.RolloutStep(100.0, None))
BEFORE = schema.Rollout(
    route="chat", to="new", mode="analysis", phase="progressing", step=1, steps=STEPS, percent=50.0,
    split={"new": 1, "old": 1}, since=None, next_at="2026-05-01T11:00:00.000Z", reason=None,
    analysis=replace(ANALYSIS, new=NO_REQUESTS, verdicts={}, evaluations=()),
)  # fmt: skip
EVALUATED = replace(BEFORE, analysis=ANALYSIS)
ROLLED_BACK = replace(EVALUATED, phase="rolled_back", percent=None, next_at=None)


class FleetWithRollout(Fleet):
    """A control plane with one rollout, which records the percentages that it receives."""

    def __init__(self, *rows: schema.Rollout) -> None:
        super().__init__()
        self.rows = list(rows)
        self.percents: list[float | None] = []
        self.asked = threading.Event()

    def rollouts(self) -> schema.Rollouts:
        """Return the next row, and at the end always the last one."""
        self.asked.set()
        row = self.rows.pop(0) if len(self.rows) > 1 else self.rows[0]
        return schema.Rollouts((row,))

    async def act_on_rollout(self, request: schema.RolloutRequest, actor: str) -> schema.RolloutResult:
        self.percents.append(request.percent)
        return schema.RolloutResult(BEFORE)


def token_files(directory: Path) -> tuple[Path, Path]:
    """Write a file of tokens for a control plane, and one with the token alone for a command. Return their paths."""
    token = "0123456789abcdef0123456789abcdef"
    paths = directory / "tokens", directory / "alone"
    for path, text in zip(paths, (f"operator:operate:{token}", token), strict=True):
        path.write_text(text + "\n")
        path.chmod(0o600)
    return paths


@pytest.mark.parametrize(("text", "percent"), [("30", 30.0), ("30%", 30.0), ("2.5%", 2.5), ("0", 0.0)])
def test_percentage_may_have_a_percent_sign(text: str, percent: float, tmp_path: Path) -> None:
    token, alone = token_files(tmp_path)
    fleet = FleetWithRollout(BEFORE)
    with serving(fleet, token) as url:
        assert run(["rollout", "set", "chat", text, "--server", url, "--token-file", str(alone)]) == 0
    assert fleet.percents == [percent]


@pytest.mark.parametrize("text", ["101", "-1%", "half", "nan", "%"])
def test_invalid_percentage_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout", "set", "chat", "--", text]) == 64
    assert f"'{text}' is not a percentage from 0 to 100, for example 30 or 30%" in capsys.readouterr().err


@pytest.mark.slow
def test_wait_reports_each_evaluation_once(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FleetWithRollout(BEFORE, EVALUATED, ROLLED_BACK)) as url:
        assert run(["rollout", "status", "chat", "--wait", "--server", url]) == 3
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "lbctl: step 1 is good: new 1 of 100 (1.00 %), old 1 of 100 (1.00 %)",
        "lbctl: the rollout of chat is rolled_back, the split in the files applies: {new: 1, old: 1}",
    ]
    assert "rolled_back" in out


def test_split_override_of_a_rollout_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FleetWithRollout(replace(BEFORE, held_by="ada: a trial"))) as url:
        assert run(["rollout", "status", "--server", url]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "chat: the split is overridden by ada: a trial; `lbctl split unset chat` restores" in shown


WAITING = replace(BEFORE, next_at=None, hold_waits_for="a connected proxy of the route that has applied the step")


def test_paused_hold_is_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FleetWithRollout(WAITING)) as url:
        assert run(["rollout", "status", "--server", url]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "chat: the hold time of step 1 is paused and waits for a connected proxy of the route" in shown
        assert run(["status", "--server", url]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "new has 50 %, its hold time waits for a connected proxy of the route that has applied the step" in shown


@pytest.mark.slow
def test_wait_continues_while_a_hold_is_paused() -> None:
    with serving(FleetWithRollout(WAITING, WAITING, BEFORE, ROLLED_BACK)) as url:
        assert run(["rollout", "status", "chat", "--wait", "--server", url]) == 3


def test_status_has_a_line_for_each_rollout(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FleetWithRollout(BEFORE)) as url:
        assert run(["status", "--server", url]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "rollout chat: progressing, step 1 of 2: new has 50 %, until 2026-05-01T11:00:00.000Z or later" in shown


@pytest.mark.slow
def test_wait_survives_a_restart_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    codes: list[int] = []
    command = ["rollout", "status", "chat", "--wait", "--server", f"http://127.0.0.1:{port}"]
    waiting = threading.Thread(target=lambda: codes.append(run(command)))
    fleet = FleetWithRollout(BEFORE)
    with serving(fleet, port=port):
        waiting.start()
        assert fleet.asked.wait(60)
    time.sleep(1)
    assert waiting.is_alive()
    with serving(FleetWithRollout(ROLLED_BACK), port=port):
        waiting.join(60)
    assert codes == [3]
    assert "is not responding" not in capsys.readouterr().err


class FleetWithLateEnvoy(FleetWithRollout):
    """A control plane with one Envoy, which connects after the first request. Its last good snapshot is `has`."""

    def __init__(self, has: str) -> None:
        super().__init__(BEFORE)
        self.envoys: list[tuple[schema.Proxy, ...]] = [(), (replace(api.ENVOY, last_good=has),)]

    def status(self) -> schema.Status:
        return replace(api.STATUS, snapshot=schema.Snapshot("v1", api.THEN, 1.0, "files", 2, 2))

    def proxies(self) -> schema.Proxies:
        self.asked.set()
        return schema.Proxies(self.envoys.pop(0) if len(self.envoys) > 1 else self.envoys[0])


@pytest.mark.slow
def test_wait_of_an_abort_survives_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, (token, alone) = free_port(), token_files(tmp_path)
    codes: list[int] = []
    where = ["--server", f"http://127.0.0.1:{port}", "--token-file", str(alone)]
    aborting = threading.Thread(target=lambda: codes.append(run(["rollout", "abort", "chat", "--wait", *where])))
    before = FleetWithLateEnvoy("v0")
    del before.envoys[0]
    with serving(before, token, port=port):
        aborting.start()
        assert before.asked.wait(60)
    time.sleep(1)
    assert aborting.is_alive()
    with serving(FleetWithLateEnvoy("v1"), token, port=port):
        aborting.join(60)
    assert codes == [0]
    assert "is not responding" not in capsys.readouterr().err


def test_observed_share_is_shown_next_to_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FleetWithRollout(replace(BEFORE, observed=0.123))) as url:
        assert run(["rollout", "status", "--server", url]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines()[:2])
    assert head[5:7] == ["SHARE", "OBSERVED"]
    assert "50 % 12.3 %" in " ".join(row)


def test_wait_needs_a_route(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout", "status", "--wait"]) == 64
    assert "--wait needs a ROUTE" in capsys.readouterr().err


def test_freeze_without_telemetry_reports_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Fleet()) as url:
        assert run(["freeze", "--server", url]) == 0
    assert "nothing to freeze: no pool has telemetry" in capsys.readouterr().err


class FleetWithFreeze(Fleet):
    """A control plane in which one pool without telemetry is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[str] = []

    def overrides(self) -> schema.Overrides:
        held = schema.Override("freeze", "old", None, None, None, {}, None, "ada", None, None)
        return schema.Overrides((held,))

    async def remove_override(self, request: schema.OverrideRemoval, actor: str) -> schema.RemovalResult:
        self.removed.append(request.pool or "")
        return schema.RemovalResult(True, None)


def test_unfreeze_ends_all_freezes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, alone = token_files(tmp_path)
    fleet = FleetWithFreeze()
    with serving(fleet, token) as url:
        assert run(["unfreeze", "--server", url, "--token-file", str(alone)]) == 0
    assert fleet.removed == ["old"]
    assert "old: override removed" in capsys.readouterr().err


class FleetAfterRollback(FleetWithRollout):
    """A control plane that serves an earlier fleet, in which a rollout sets the split."""

    async def rollback(self, request: schema.RollbackRequest, actor: str) -> schema.RollbackResult:
        return schema.RollbackResult("rolled_back", None, "abc", None, ())


def test_rollback_lists_rollouts_that_set_a_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, alone = token_files(tmp_path)
    for phase, percent, expected in (
        ("promoted", 100.0, "chat: new has 100 % because its rollout ended"),
        ("progressing", 50.0, "chat: new has 50 % because its rollout is progressing"),
        ("aborted", None, ""),
    ):
        with serving(FleetAfterRollback(replace(BEFORE, phase=phase, percent=percent)), token) as url:
            assert run(["rollback", "abc", "--server", url, "--token-file", str(alone)]) == 0
        err = capsys.readouterr().err
        assert "published abc until the files change" in err
        assert (expected in err) if expected else ("chat" not in err)
