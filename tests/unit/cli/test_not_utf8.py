"""Arguments and server answers that are not UTF-8 are refused or escaped. They never cause a traceback."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lbctl.api.codec import plain
from lbctl.cli import run
from tests.support import api

FLEET = """\
version: 1
listeners:
  web: {bind: "127.0.0.1:8080"}
routes:
  coffee: {match: {path_prefix: /coffee}, pool: p}
  all: {match: {path_prefix: /}, pool: p}
pools:
  p: {replicas: [{address: "10.0.0.1:8000"}]}
"""
UNUSED_SERVER = ["--server", "http://127.0.0.1:9"]
LATIN = "caf\udce9"
"""The byte E9 of the command line, as Python reads it."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["drain", "chat/a", "--reason", LATIN],
        ["drain", f"chat/{LATIN}"],
        ["undrain", f"{LATIN}/a"],
        ["weight", "set", "chat/a", "2", "--reason", LATIN],
        ["freeze", LATIN],
        ["unfreeze", LATIN],
        ["split", "set", LATIN, "a=1", "b=2"],
        ["split", "set", "all", f"{LATIN}=1", "b=2"],
    ],
)
def test_argument_that_is_not_utf8_is_not_sent(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, *UNUSED_SERVER]) == 64
    assert "an argument is not valid UTF-8 text" in capsys.readouterr().err


@contextmanager
def server_answering(status: int, document: object) -> Iterator[str]:
    """Run a server that answers every request with this document, and yield its URL."""
    body = json.dumps(plain(document)).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_answer_that_is_not_unicode_is_shown(form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # type: ignore[union-attr]
    document = {"pools": [api.pool(LATIN, api.REPLICA)]}
    with server_answering(200, document) as url:
        assert run(["status", "pools", "--server", url, "-o", form]) == 0
    assert "caf" in capfdbinary.readouterr().out.decode()


def test_error_message_of_a_server_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with server_answering(400, {"error": f"{LATIN} \x1b[2J"}) as url:
        assert run(["drain", "chat/a", "--server", url]) == 1
    assert "caf\\udce9 \\x1b[2J" in capsys.readouterr().err


def test_url_that_is_not_utf8_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    assert run(["explain", "route", "GET", f"/coffee/{LATIN}", str(file), "-t", "nginx"]) == 0
    assert "coffee" in capsys.readouterr().out
