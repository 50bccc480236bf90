from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from lbctl.targets import token
from lbctl.targets.token import Token, UnquotedError, finalize, write


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A template to fill, in a folder of its own."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(token.resources, "templates", lambda: tmp_path)
    token.environment.cache_clear()
    return tmp_path / "folder" / "t.j2"


def test_a_token_and_an_int_are_written_as_they_are() -> None:
    assert finalize(Token('"a;b"')) == '"a;b"'
    assert finalize(7) == "7"


class _Text(str):
    """As markup is: a str to everything that asks."""


class _Number(int):
    pass


@pytest.mark.parametrize("value", ["x", "", True, False, 1.5, None, b"x", [], Token, _Text("x"), _Number(1), object()])
def test_nothing_else_is_written(value: object) -> None:
    with pytest.raises(UnquotedError):
        finalize(value)


@pytest.mark.parametrize("text", ["a\nb", "a\x00b"])
def test_a_token_is_one_line(text: str) -> None:
    with pytest.raises(UnquotedError):
        finalize(Token(text))


@pytest.mark.parametrize(
    "body",
    ["{{ text }}", "{{ token ~ token }}", "{{ token|string }}", "{{ token|upper }}", "{{ [token]|join }}", "{{ true }}",
     "{{ 'x' }}", "{{ none }}", "{{ '%s' % token }}", "{{ number / 2 }}", "{{ token.text }}", "{{ missing }}"],
)  # fmt: skip
def test_a_template_cannot_write_what_no_target_has_quoted(template: Path, body: str) -> None:
    template.write_text(body)
    with pytest.raises(UnquotedError):
        write("folder", "t.j2", {"text": "x", "token": Token("x"), "number": 3})


def test_a_name_that_is_not_there_is_an_error(template: Path) -> None:
    template.write_text("{% for item in missing %}x{% endfor %}")
    with pytest.raises(UndefinedError):
        write("folder", "t.j2", {})


def test_every_line_knows_the_first_value_that_it_came_from(template: Path) -> None:
    template.write_text("{% for item in items %}\nserver {{ item }} {{ other }};\n{% endfor %}\nend {{ plain }}\n")
    replica = ("pools", "llama", "replicas", "0")
    pin = ("routes", "chat", "pin", 0)
    items = [Token("a", replica), Token("b", pin), Token("c")]
    values = {"items": items, "other": Token("o", ("listeners", "l")), "plain": Token("p")}
    text, sources = write("folder", "t.j2", values)
    assert text == "server a o;\nserver b o;\nserver c o;\nend p\n"
    assert sources == {1: replica, 2: pin, 3: ("listeners", "l")}
