"""`lbctl explain pick` without files: the running picker answers, in the same form as the files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests

from lbctl.api import schema
from lbctl.cli import run
from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.pools import QueuePolicy, SlowStart
from lbctl.ir.routes import ApiKeys, Auth, Forward, Route, Share
from lbctl.ir.snapshot import Snapshot
from lbctl.picker import wire
from lbctl.picker.child_link import explanation_line
from lbctl.picker.messages import Caller, PickerQuestion
from lbctl.picker.service import PickService
from lbctl.serve.api import pick_rows
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker import tables
from lbctl.serve.picker.explanation import explanation_of
from tests.support.api import Fleet
from tests.support.api_server import serving
from tests.support.fleet import compiled
from tests.unit.cli.explain.test_pick import FLEET

TOKEN = "t" * 32
COMMAND = ["explain", "pick", "llama"]


class Picking(Fleet):
    """A control plane whose picker runs in this process. Questions pass through the wire format of the link."""

    def __init__(self) -> None:
        super().__init__()
        composed = compose(Snapshot(compiled(FLEET).topology), LoopOutput(), (), {}, 0.0)
        served = cast(PublishedFleet, SimpleNamespace(composed=composed))
        measured = tables.FleetMeasurements(0.0)
        sent = {pool.name: tables.table(served, pool, measured) for pool in tables.picked_pools(served)}
        self.service = PickService()
        for name in sent.keys() - {"empty"}:
            self.service.set_table(name, sent[name])
        self.routes: tuple[Route, ...] = ()
        self.picker: Any = SimpleNamespace(feed=SimpleNamespace(tables=sent), explain=self._explain)

    async def explain_pick(self, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
        return await pick_rows.explain(self.picker, request, self.routes)

    async def _explain(self, pool: str, question: PickerQuestion) -> schema.PickExplanation | None:
        received = wire.parse(wire.question(question, 1))
        return explanation_of(pool, wire.parse(explanation_line(self.service, received)))


@pytest.fixture
def control() -> Picking:
    return Picking()


@pytest.fixture
def options(control: Picking, tmp_path: Path) -> Iterator[list[str]]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(control, token) as url:
        yield ["--server", url, "--token-file", str(token)]


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("form", ["table", "json"])
def test_idle_picker_explains_the_same_as_the_files(
    form: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, body = tmp_path / "fleet.yaml", tmp_path / "body"
    fleet.write_text(FLEET)
    body.write_text(json.dumps({"model": "sql", "prompt": "a" * 4000, "chat": {"id": "s-1"}}))
    more = ["--body", str(body), "-o", form]
    assert shown([*COMMAND, *more, *options], capsys) == shown([*COMMAND, str(fleet), *more], capsys)


def test_work_in_flight_and_home_of_a_session_are_shown(
    control: Picking, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"prompt": "a" * 400, "chat": {"id": "s-1"}}).encode()
    picked = control.service.pick(PickerQuestion(Caller("llama"), {}, body, len(body)))
    (home, *_), command = picked.names, [*COMMAND, "--session", "s-1", "-o", "json", *options]
    answer = json.loads(shown(command, capsys))
    assert {row["name"] for row in answer["candidates"] if row["work"]} == {home}
    assert control.service.open_picks == 1
    control.service.finished(picked.id)
    answer = json.loads(shown(command, capsys))
    assert (answer["reason"], answer["choices"]) == ("session", [home])


@pytest.mark.parametrize("content", [b'{"prompt": "' + b"\\n" * 100_000, b"\x1f\x8b" + bytes(range(256)) * 1000])
def test_beginning_of_a_long_or_compressed_body_is_sent(
    content: bytes, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body"
    body.write_bytes(content)
    answer = json.loads(shown([*COMMAND, "--body", str(body), "-o", "json", *options], capsys))
    assert answer["request"]["body_bytes"] == len(content)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain"], "there is no pool 'plain' with the algorithm pick"),
        (["empty"], "has not received the pool yet"),
        (["llama", "--body", "/nowhere"], "/nowhere"),
        (["llama", "fleet.yaml"], "cannot be combined with"),
    ],
)
def test_unknown_pool_or_body_is_refused(
    arguments: list[str], message: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "pick", *arguments, *options]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("length", [-1, 2**53 + 1, 10**400])
def test_impossible_body_length_is_refused(length: int, control: Picking) -> None:
    with serving(control, None) as url:
        question = {"pool": "llama", "session": None, "body": None, "body_bytes": length}
        answer = requests.post(f"{url}/api/v1/picks/explain", json=question, timeout=10)
    assert answer.status_code == 400
    assert "body_bytes must be a whole number from 0 to 9007199254740992" in answer.json()["error"]


def test_failed_question_does_not_stop_the_picker(control: Picking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control.service, "explain", None)
    values = {"number": 7, "pool": "llama", "headers": {}, "body": "{}", "length": 2, "place": [None, None]}
    answer = wire.parse(explanation_line(control.service, values))
    assert (answer["number"], answer["explanation"]) == (7, None)


@pytest.mark.parametrize("role", ["read", None])
def test_read_role_is_enough(
    role: str | None, control: Picking, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted, own = tmp_path / "accepted", tmp_path / "own"
    accepted.write_text(f"reader:read:{TOKEN}\n")
    own.write_text(f"reader:{role}:{TOKEN}\n")
    with serving(control, accepted) as url:
        token = ["--token-file", str(own)] if role else []
        assert run([*COMMAND, "--session", "s-1", "-o", "json", "--server", url, *token]) == 0
    assert json.loads(capsys.readouterr().out)["pool"] == "llama"


def test_loaded_adapter_is_the_reason_of_a_choice(
    control: Picking, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body"
    body.write_text(json.dumps({"model": "sql", "prompt": "a" * 400}))
    command = [*COMMAND, "--body", str(body), *options]
    assert shown(command, capsys).startswith("big gets the request: no cache is known to help")
    other = json.dumps({"model": "sql", "prompt": "b" * 400}).encode()
    question = PickerQuestion(Caller("llama"), {}, other, len(other), frozenset({"10.0.0.2:8000"}))
    picked = control.service.pick(question)
    control.service.finished(picked.id)
    assert picked.names == ("small",)
    text = " ".join(shown(command, capsys).split())
    assert text.startswith("small gets the request: no cache is known to help, and it has the shortest expected wait.")
    assert (
        "The adapter sql made the difference: it has had requests for it, and any other replica would have to load it"
        in text
    )
    assert "which costs as much as 2000 tokens." in text


def test_cached_tokens_are_shown_with_their_effect(
    control: Picking, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "body"
    path.write_text(json.dumps({"prompt": "word " * 3200}))
    body, command = path.read_bytes(), [*COMMAND, "--body", str(path), *options]

    def cached() -> dict[str, str]:
        rows = [line for line in shown(command, capsys).splitlines() if " 10.0.0." in line]
        return {row.split()[0]: row.split("  ")[-3].strip() for row in (re.sub("  +", "  ", line) for line in rows)}

    assert cached() == {"big": "-", "small": "-", "gone": "-"}
    question = PickerQuestion(Caller("llama"), {}, body, len(body), frozenset({"10.0.0.2:8000"}))
    seen = control.service.pick(question)
    control.service.finished(seen.id)
    assert cached() == {"big": "-", "small": "3075", "gone": "-"}
    other = json.dumps({"prompt": "other " * 100_000}).encode()
    control.service.pick(PickerQuestion(Caller("llama"), {}, other, len(other), frozenset({"10.0.0.2:8000"})))
    assert cached() == {"big": "-", "small": "3075, ignored", "gone": "-"}


def test_learned_factor_of_a_prompt_is_shown(
    control: Picking, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "body"
    path.write_text(json.dumps({"prompt": "word " * 1000}))
    body, command = path.read_bytes(), [*COMMAND, "--body", str(path), *options]
    assert "about 961 tokens, 19 blocks" in shown(command, capsys)
    for number in range(200):
        control.service.sampled(
            wire.EngineSample("llama", "big", 0.0, 0.0, number, False, prompt_tokens=1200.0 * number)
        )
        pick = control.service.pick(PickerQuestion(Caller("llama"), {}, body, len(body), frozenset({"10.0.0.1:8000"})))
        control.service.finished(pick.id)
    assert re.search(r"about (1[12]\d\d) tokens \(learned factor 1\.2\d\), 19 blocks", shown(command, capsys))


def test_slow_start_of_a_replica_is_shown_with_its_progress(
    control: Picking, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    served = control.service.tables["llama"]
    a_year = 365 * 86_400.0
    joined = time.monotonic() - 0.7 * a_year
    members = (replace(item, started=joined if item.name == "big" else None) for item in served.candidates)
    ramp = SlowStart(window=int(a_year * 1000))
    control.service.set_table("llama", replace(served, candidates=tuple(members), slow_start=ramp))
    big, small, _ = shown([*COMMAND, *options], capsys).splitlines()[-3:]
    assert big.split(maxsplit=6)[-1] == "slow start: it gets 70% of its weight"
    assert big.split()[2] == "2.8"
    assert small.split(maxsplit=6)[-1] == "-"


def test_table_head_names_the_units(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown([*COMMAND, *options], capsys).splitlines()
    assert any("RATE  WORK (TOKENS)  CACHED (TOKENS)  WAIT (TOKENS/RATE)" in line for line in lines)


def test_missing_tenant_is_mentioned(control: Picking, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    action, auth = Forward((Share("llama", 1),)), Auth(ApiKeys("keys.txt"))
    control.routes = tuple(Route(name, action, auth=auth) for name in ("batch", "chat"))
    command = [*COMMAND, "--session", "s-1", *options]
    assert "are separate for each tenant on the routes batch, chat: add --tenant NAME\n" in shown(command, capsys)
    assert "--tenant" not in shown([*command, "--tenant", "acme"], capsys)


def _wait_in_queue(control: Picking, *priorities: str) -> None:
    """Let a request of each of these priorities wait, because all replicas of the pool are full."""
    table = control.service.tables["llama"]
    policy = replace(table.policy, queue=QueuePolicy(10_000))
    full = tuple(replace(item, limit=0) for item in table.candidates)
    control.service.set_table("llama", replace(table, policy=policy, candidates=full))
    for priority in priorities:
        question = PickerQuestion(Caller("llama", tenant="acme", priority=priority), {}, b"{}", 2)
        assert control.service.pick(question).must_wait
        control.service.wait(question, lambda _answer: None)


def test_place_in_the_queue_is_shown(control: Picking, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    _wait_in_queue(control, "normal")
    first, *_ = shown([*COMMAND, *options], capsys).splitlines()
    assert first == "No replica has room: the request would wait behind 1 request of 1 tenant."
    answer = json.loads(shown([*COMMAND, "-o", "json", *options], capsys))
    assert answer["queue"] == {"requests": 1, "flows": 1, "seconds": None, "rejected": False}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--priority", "high"], "at the head of the queue"),
        ([], "behind 1 request of 1 tenant"),
        (["--priority", "low"], "behind 2 requests of 1 tenant"),
    ],
)
def test_place_in_the_queue_depends_on_the_priority(
    arguments: list[str], place: str, control: Picking, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _wait_in_queue(control, "normal", "low")
    first, *_ = shown([*COMMAND, *arguments, *options], capsys).splitlines()
    assert first == f"No replica has room: the request would wait {place}."
