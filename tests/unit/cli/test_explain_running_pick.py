"""`lbctl explain pick` without files: the running picker answers, in the same form as the files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lbctl.cli import run
from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.snapshot import Snapshot
from lbctl.serve.api import pick_rows, schema
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker import tables, wire
from lbctl.serve.picker.link import explanation_line
from lbctl.serve.picker.question import Caller, PickerQuestion
from lbctl.serve.picker.service import PickService
from tests.support.api import Fleet
from tests.support.api_server import serving
from tests.support.fleet import compiling
from tests.unit.cli.test_explain_pick import FLEET

TOKEN = "t" * 32
COMMAND = ["explain", "pick", "llama"]


class Picking(Fleet):
    """The API of a control plane whose picker runs in this process; a question takes the way of the link's lines."""

    def __init__(self) -> None:
        super().__init__()
        made, found = compiling(FLEET)
        assert made is not None, found
        composed = compose(Snapshot(made.topology), LoopOutput(), (), {}, 0.0)
        served = cast(PublishedFleet, SimpleNamespace(composed=composed))
        measured, arrivals = tables.FleetMeasurements(0.0), tables.Arrivals()
        sent = {pool.name: tables.table(served, pool, measured, arrivals) for pool in tables.picked_pools(served)}
        self.service = PickService()
        for name in sent.keys() - {"empty"}:
            self.service.set_table(name, sent[name])
        self.picker: Any = SimpleNamespace(feed=SimpleNamespace(tables=sent), explain=self._explain)

    async def explain_pick(self, request: schema.PickQuestion, actor: str) -> schema.PickExplanation:
        return await pick_rows.explain(self.picker, request)

    async def _explain(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = wire.parse(wire.line("explain", number=1, **question))
        return wire.parse(explanation_line(self.service, asked))


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
def test_an_idle_picker_says_what_the_files_say(
    form: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, body = tmp_path / "fleet.yaml", tmp_path / "body"
    fleet.write_text(FLEET)
    body.write_text(json.dumps({"model": "sql", "prompt": "a" * 4000, "chat": {"id": "s-1"}}))
    more = ["--body", str(body), "-o", form]
    assert shown([*COMMAND, *more, *options], capsys) == shown([*COMMAND, str(fleet), *more], capsys)


def test_it_shows_the_work_in_flight_and_the_session_s_home(
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
def test_of_a_long_or_compressed_body_the_beginning_is_sent(
    content: bytes, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body"
    body.write_bytes(content)
    answer = json.loads(shown([*COMMAND, "--body", str(body), "-o", "json", *options], capsys))
    assert answer["request"]["body_bytes"] == len(content)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain"], "no pool 'plain' has the algorithm pick"),
        (["empty"], "has no table of the pool yet"),
        (["llama", "--body", "/nowhere"], "/nowhere"),
        (["llama", "fleet.yaml"], "give one"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    arguments: list[str], message: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", "pick", *arguments, *options]) != 0
    assert message in capsys.readouterr().err
