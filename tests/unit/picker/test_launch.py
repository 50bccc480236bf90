"""A picker on another machine starts again with the seed of its key, at most once."""

from __future__ import annotations

import os

import pytest

from lbctl.picker.launch import environment, use_seed


class _Started(BaseException):
    """The process would have been replaced; `args` has the new environment."""


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_program: str, _arguments: list[str], variables: dict[str, str]) -> None:
        raise _Started(variables)

    monkeypatch.setattr(os, "execve", start)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.delenv("LBCTL_PICKER_RESTARTED", raising=False)


def test_picker_starts_again_once_with_the_seed_of_its_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_seed("")
    with pytest.raises(_Started) as started:
        use_seed("key")
    for name, value in started.value.args[0].items():
        monkeypatch.setenv(name, value)
    assert os.environ["PYTHONHASHSEED"] == environment("key")["PYTHONHASHSEED"]
    use_seed("key")
    assert "different picker keys" not in caplog.text
    use_seed("the key of another control plane at the same URL")
    assert "different picker keys" in caplog.text


def test_picker_that_cannot_start_again_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", fail)
    use_seed("key")
    assert "it cannot restart" in caplog.text
