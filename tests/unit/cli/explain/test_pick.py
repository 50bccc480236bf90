"""`lbctl explain pick` from files: the choice with its reason, then a row for each replica."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbctl.cli import run

FLEET = """\
version: 1
pools:
  llama:
    model: {name: llama-3, adapters: [sql]}
    balance: {algorithm: pick, pick: {session: [{body: $.chat.id}, x-session-id]}}
    replicas:
      - {name: big, address: "10.0.0.1:8000", weight: 4}
      - {name: small, address: "10.0.0.2:8000", weight: 1}
      - {name: gone, address: "10.0.0.3:8000", weight: 1, drain: true}
  plain: {replicas: [{address: "10.0.0.4:8000"}]}
  same: {balance: {algorithm: pick}, replicas: [{name: a, address: "10.0.0.5:1"}, {name: b, address: "10.0.0.6:1"}]}
  empty: {balance: {algorithm: pick}, replicas: [{address: "10.0.0.7:1", drain: true}, {address: "10.0.0.8:1"}]}
"""

TENANTS = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes:
  chat: {match: {path_prefix: /chat}, pool: llama, auth: {api_keys: {file: keys.txt}}}
  open: {match: {path_prefix: /open}, pool: llama}
pools:
  llama: {balance: {algorithm: pick}, replicas: [{name: a, address: "10.0.0.1:8000"}]}
"""


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return str(path)


def test_choice_and_reason_come_first(fleet_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "sql", "prompt": "word " * 1000}))
    assert run(["explain", "pick", "llama", fleet_file, "--body", str(body)]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "big gets the request: no cache is known to help, and it has the shortest expected wait."
    assert "prompt         about 961 tokens, 19 blocks for prefix matching" in others
    assert "model          sql, an adapter" in others
    assert others[-1].split(maxsplit=6) == ["gone", "10.0.0.3:8000", "-", "-", "-", "-", "drained by the files"]


def test_session_option_gives_the_session_key(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "pick", "llama", fleet_file, "--session", "s-1", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["request"]["session"], shown["choices"], shown["reason"]) == ("s-1", ["big"], "load")
    assert [row["name"] for row in shown["candidates"]] == ["big", "small", "gone"]


def test_all_equal_replicas_are_named(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "pick", "same", fleet_file]) == 0
    assert capsys.readouterr().out.startswith("Any of a or b gets the request, at random:")


def test_missing_tenant_is_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys.txt").write_text("sk-secret: acme\n")
    path = tmp_path / "fleet.yaml"
    path.write_text(TENANTS)
    hint = "hint           sessions and prompts are separate for each tenant on the route chat: add --tenant NAME"

    def lines(*options: str) -> list[str]:
        assert run(["explain", "pick", "llama", str(path), *options]) == 0
        return capsys.readouterr().out.splitlines()

    assert hint in lines("--session", "s-1")
    assert hint not in lines("--session", "s-1", "--tenant", "acme")
    assert hint not in lines(), "the request has neither a session nor a prompt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain"], "plain uses the algorithm least_request: its proxies choose replicas themselves"),
        (["lama"], "did you mean 'llama'?"),
        (["llama", "--body", "/nowhere"], "/nowhere"),
    ],
)
def test_unknown_pool_or_body_is_refused(
    fleet_file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, *options = arguments
    assert run(["explain", "pick", pool, fleet_file, *options]) != 0
    assert message in capsys.readouterr().err
