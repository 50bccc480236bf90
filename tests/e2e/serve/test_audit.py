"""Named tokens with roles, and the audit log over a restart."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import requests

from lbctl.cli import run
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.replicas import replicas

_TOKENS = "anna:operate:token-of-anna\nviewer:read:token-of-viewer\n"


def _ask(control: ControlPlane, method: str, path: str, token: str, **more: Any) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        headers = {"authorization": f"Bearer {token}", **more.pop("headers", {})}
        return session.request(method, control.url + path, timeout=30, headers=headers, **more)


def _cli(control: ControlPlane, token: Path, *words: str) -> int:
    return run([*words, "--server", control.url, "--token-file", str(token)])


def test_audit_log_has_authors_and_detects_removed_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anna, viewer = tmp_path / "anna", tmp_path / "viewer"
    anna.write_text("token-of-anna\n")
    viewer.write_text("token-of-viewer\n")
    with (
        replicas("a", "b") as members,  # a replica that is down would add a record
        controlling(
            fleet_of(pool_of(members), control={"api": {"token_file": "tokens"}}), files={"tokens": _TOKENS}
        ) as control,
    ):
        assert _cli(control, anna, "drain", "pool/a", "--reason", "a fan", "--ttl", "1h") == 0
        assert _cli(control, viewer, "drain", "pool/b") == 4
        assert "viewer's token allows read access only" in capsys.readouterr().err
        body = {"kind": "drain", "pool": "pool", "replica": "b"}
        overrides = "/api/v1/overrides"
        assert _ask(control, "POST", overrides, "token-of-viewer", json=body).status_code == 403
        assert _ask(control, "POST", overrides, "nobody", json=body).status_code == 401
        assert _ask(control, "POST", overrides, "anna:operate:token-of-anna", json=body).status_code == 401
        foreign = {"origin": "http://elsewhere.example"}
        assert _ask(control, "POST", overrides, "token-of-anna", json=body, headers=foreign).status_code == 403
        foreign = {"host": "elsewhere.example"}
        assert _ask(control, "POST", overrides, "token-of-anna", json=body, headers=foreign).status_code == 403
        assert _ask(control, "PUT", overrides, "token-of-anna", json=body).status_code == 405
        large = json.dumps({"reason": "x" * 100_000}).encode()
        json_type = {"content-type": "application/json"}
        assert _ask(control, "POST", overrides, "token-of-anna", data=large, headers=json_type).status_code == 413
        both = tmp_path / "both"
        both.write_text(_TOKENS)
        assert _cli(control, both, "undrain", "pool/a") == 4
        refused = capsys.readouterr().err
        assert "contains 2 tokens: specify a file with exactly one token" in refused
        assert "token-of-anna" not in refused
        anna.write_text("anna:operate:token-of-anna\n")
        assert _cli(control, anna, "status") == 0
        assert ", by anna: a fan" in capsys.readouterr().out

        control.kill()
        control.start()
        assert _cli(control, anna, "undrain", "pool/a") == 0
        assert _cli(control, viewer, "audit", "show", "-o", "json") == 0
        rows = [(row["actor"], row["action"], row["subject"]) for row in json.loads(capsys.readouterr().out)]
        version = control.status["snapshot"]["version"]
        assert rows == [
            ("lbctl", "publish", version), ("anna", "drain", "pool/a"), ("lbctl", "publish", rows[2][2]),
            ("anna", "end drain", "pool/a"),
        ]  # fmt: skip
        assert _cli(control, viewer, "audit", "verify") == 0
        assert "4 records (1 to 4), valid hash chain" in capsys.readouterr().out

        control.stop()
        with sqlite3.connect(control.state / "lbctl.db") as database:
            removed = database.execute("DELETE FROM entries WHERE key = 'audit/000000000002'")
            assert removed.rowcount == 1
        control.start()
        assert _cli(control, viewer, "audit", "verify") == 1
        assert "records were removed or added between record 1 and record 3" in capsys.readouterr().err
