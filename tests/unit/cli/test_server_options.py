"""Errors of the API's client: each ends a command with its message and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.api.client import InvalidRequestError, RejectedError, ServeClient, UnavailableError
from lbctl.cli import run

SERVER = ["--server", "http://127.0.0.1:9"]
USAGE = "Usage: lbctl status"


@pytest.mark.parametrize(
    ("error", "code", "begins"),
    [
        (UnavailableError("it is away"), 4, "Error: it is away"),
        (RejectedError("there is no pool x"), 1, "Error: there is no pool x"),
        (InvalidRequestError("not UTF-8"), 64, USAGE),
    ],
)
def test_error_of_the_api_ends_the_command(
    error: Exception, code: int, begins: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ServeClient, "get", fail)
    assert run(["status", *SERVER]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(begins)
    assert f"Error: {error}\n" in shown.err


def test_invalid_port_is_an_error_of_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text("a-token\n")
    assert run(["reload", "--server", "http://127.0.0.1:99999", "--token-file", str(token)]) == 64
    shown = capsys.readouterr().err
    assert shown.startswith("Usage: lbctl reload")
    assert "Error: --server: http://127.0.0.1:99999 has an invalid port\n" in shown
