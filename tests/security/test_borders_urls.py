"""No message, log line or setting shows the user and password of a URL."""

from __future__ import annotations

import io

import pytest

from lbctl.base.diagnostics import show
from lbctl.base.urls import with_digests, without_user, without_values
from lbctl.cli import run
from lbctl.runtime import log

_PASSWORD = "Zq7secret"
_URLS = {
    f"http://ann:{_PASSWORD}@host/x": "http://…@host/x",
    f"redis://:{_PASSWORD}@host:6379/0": "redis://…@host:6379/0",
    f"https://{_PASSWORD}@host": "https://…@host",
    f"http://ann:{_PASSWORD}@b@host/": "http://…@host/",
    f"http://ann:Zq7/{_PASSWORD}@host/": "http://…@host/",
    "http://host:80/x@y": "http://host:80/x@y",
    "http://host/x@y:z": "http://host/x@y:z",
    "http://[::1]:80/x@y": "http://[::1]:80/x@y",
}


@pytest.mark.parametrize("url", _URLS)
def test_user_and_password_are_left_out(url: str) -> None:
    assert without_user(url) == _URLS[url]
    assert without_values(url) == with_digests(url) == _URLS[url]
    assert show(url) == repr(_URLS[url])
    assert without_user(f"one {url} and 'two'") == f"one {_URLS[url]} and 'two'"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--server", f"http://ann:{_PASSWORD}@127.0.0.1:9"],
        ["status", "--server", f"ftp://ann:{_PASSWORD}@127.0.0.1:9"],
        ["bootstrap", "--server", f"http://ann:{_PASSWORD}@127.0.0.1:9"],
        ["picker", "--server", f"http://ann:{_PASSWORD}@127.0.0.1:9"],
        ["doctor", "--server", f"http://ann:{_PASSWORD}@127.0.0.1:9", "fleet.yaml"],
        ["explain", "route", "GET", f"http://ann:{_PASSWORD}@host/", "fleet.yaml"],
    ],
)
def test_command_with_a_password_in_a_url_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 64
    printed = capsys.readouterr()
    assert _PASSWORD not in printed.out + printed.err


def test_log_shows_no_password_of_a_url() -> None:
    stream = io.StringIO()
    handler = log.start(stream)
    try:
        log.warn(f"no answer from http://ann:{_PASSWORD}@host/", url=f"http://ann:{_PASSWORD}@host/x")
    finally:
        log.stop(handler)
    assert "no answer from http://…@host/ url=" in stream.getvalue()
    assert _PASSWORD not in stream.getvalue()
