"""`lint`, `diff` and `explain route` report the same shares of a split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbctl.base.diagnostics import dotted
from lbctl.cli import run
from lbctl.ir.diff import difference
from tests.support.fleet import compiled
from tests.support.lint import findings

FLEET = """\
version: 1
listeners: {public: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /v1/chat}, split: {a: 100, b: 200, c: 700}}}
pools:
  a: {replicas: [{name: one, address: "10.0.0.1:8000"}]}
  b: {replicas: [{name: one, address: "10.0.0.2:8000"}]}
  c: {replicas: [{name: one, address: "10.0.0.3:8000"}]}
"""


@pytest.mark.parametrize(
    ("split", "shares"),
    [
        ("{a: 1, b: 1, c: 0}", {"a": 0.5, "b": 0.5}),
        ("{a: 5, b: 2, c: 1}", {"a": 0.625, "b": 0.25, "c": 0.125}),
        ("{a: 0, b: 7, c: 0}", {"b": 1.0}),
    ],
)
def test_lint_diff_and_explain_agree_on_shares_of_a_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str, shares: dict[str, float]
) -> None:
    text = FLEET.replace("{a: 100, b: 200, c: 700}", split)
    path = tmp_path / "fleet.yaml"
    path.write_text(text)

    assert run(["explain", "route", "POST", "http://127.0.0.1:8080/v1/chat", str(path), "-o", "json"]) == 0
    (explained,) = json.loads(capsys.readouterr().out)["proxies"]
    assert {pool["pool"]: pool["probability"] for pool in explained["pools"]} == shares

    changes = difference(compiled(FLEET).topology, compiled(text).topology)
    settings = {dotted(item.path): item.new for item in changes.settings}
    assert settings == {f"routes.chat.split.{pool}": f"{100 * shares.get(pool, 0):g}%" for pool in "abc"}
    traffic = {item.pool: item.new for item in changes.traffic if not item.replica}
    assert {pool: share for pool, share in traffic.items() if share} == shares

    needed = {item.path[1] for item in findings(text) if item.code == "LB218"}
    assert needed == {pool for pool, share in shares.items() if share >= 0.5}
